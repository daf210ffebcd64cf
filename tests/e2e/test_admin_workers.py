"""The admin API of a server of two workers: pages, searches and streams are of all of them, as if there were one."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import PATIENCE, Server, said_by, serving

from sapwood.cli import remote
from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart
from sapwood.types import Address

APP = """
import logging
import time
from datetime import timedelta

from sapwood import After, Agent, App


class Box(Agent):
    async def plan(self) -> None:
        self.schedule(After(timedelta(hours=1)), self.note)
        self.schedule(After(timedelta(hours=2)), self.note)

    async def block(self) -> None:
        logging.getLogger("boxes").warning("about to block")
        time.sleep(0.5)

    async def note(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS notes (text TEXT)")

    async def grow(self, name: str) -> None:
        await (await self.sub_agent(Box, name)).ask()

    async def ask(self) -> None:
        self.start_fiber("ask", self.asking)

    async def asking(self) -> str:
        return await self.questions.ask("Which?", options=["a", "b"])


app = App(agents=[Box])
"""
TALKER = """
from sapwood import App, ChatAgent
from sapwood.testing import ScriptedModel, text


class Talker(ChatAgent):
    model = ScriptedModel(text("Hello."), each=True)


app = App(agents=[Talker])
"""
TABBED = """
from sapwood import Agent, App
from sapwood.studio import StudioTab


class Box(Agent):
    studio_tabs = (StudioTab("A tab", "tab.html", methods=("greet",)),)

    async def greet(self) -> str:
        return f"I am {self.name}."

    async def burn(self) -> None: ...


app = App(agents=[Box])
"""
TWO = ("serve", "app:app", "--workers", "2", "--grace", "5")
NAMES = [f"b{number:02}" for number in range(12)]


def worker_of(name: str) -> int:
    return 0 if WorkerPart(0, ShardPlan(2)).is_here(Address.root_of("Box", name)) else 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@contextmanager
def streaming(server: Server, what: str, token: str, **params: Any) -> Iterator[Iterator[tuple[str, Any]]]:
    """Yield the events of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    connection.request("POST", f"/_sapwood/{what}", json.dumps(params), {"authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()

    def events() -> Iterator[tuple[str, Any]]:
        name = ""
        while line := answer.readline():
            if line.startswith(b"event: "):
                name = line.removeprefix(b"event: ").decode().strip()
            elif line.startswith(b"data: "):
                yield name, json.loads(line.removeprefix(b"data: "))

    try:
        yield events()
    finally:
        connection.close()


def post(server: Server, what: str, token: str, **params: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the answer of an endpoint."""
    status, answer = server.post(what, token, **params)
    return status, json.loads(answer)


def pages(folder: Path, what: str, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = remote.ask(str(folder / "sapwood-data"), what, after=after, **params)
        assert page["unanswered"] == []
        found += page["rows"]
        if (after := page["next"]) is None:
            return found


@pytest.mark.slow
def test_pages_searches_and_streams_are_of_both_workers(folder: Path) -> None:
    assert {worker_of(name) for name in NAMES} == {0, 1}
    data = str(folder / "sapwood-data")
    with serving(folder, *TWO) as server:
        for name in NAMES:
            for _ in remote.ask_lines(data, "call", address=f"Box:{name}", method="grow", arguments=["x"]):
                pass
        token = said_by(folder, "token", "--name", "ann", "--may", "look,content").strip()
        addresses = [f"Box:{name}" for name in NAMES]

        assert [row["address"] for row in pages(folder, "agents", limit=5)] == addresses
        assert remote.ask(data, "agents", limit=1)["total"] == len(NAMES)
        assert [row["address"] for row in pages(folder, "agents", address=addresses[3])] == [f"{addresses[3]}/Box:x"]
        asked = pages(folder, "questions", limit=5)
        assert [row["address"] for row in asked] == [f"{address}/Box:x" for address in addresses]

        with streaming(server, "find", token, text=":x", limit=7) as events:
            *found, (end, told) = list(events)
            assert (end, told["more"]) == ("end", True)
            assert len({row["address"] for _, data in found for row in data["rows"]}) == 7

        with streaming(server, "watch", token, addresses=addresses) as events:
            seen: dict[str, int] = {}
            while len(seen) < len(NAMES):
                seen |= {row["address"]: row["asks"] for row in next(events)[1]["rows"]}
            assert set(seen.values()) == {1}
            for one in asked[:2]:
                answer = {"address": one["address"], "id": one["id"], "digest": one["digest"], "answer": "value"}
                assert remote.ask(data, "answer", value="a", **answer) == {"accepted": True}
            while list(seen.values()).count(0) < 2:
                seen |= {row["address"]: row["asks"] for row in next(events)[1]["rows"]}

            server.process.send_signal(signal.SIGTERM)
            *_, (last, told) = list(events)
            assert (last, told["code"]) == ("error", "unavailable")
        assert server.process.wait(PATIENCE) in (0, -signal.SIGTERM)
    lines = (folder / "sapwood-data/operator.jsonl").read_text().splitlines()
    begun = [one["endpoint"] for one in map(json.loads, lines) if one["result"] == "begun"]
    assert begun == ["call"] * len(NAMES) + ["answer"] * 2


@pytest.mark.slow
def test_the_work_of_both_workers_is_listed_and_acted_on(folder: Path) -> None:
    data = str(folder / "sapwood-data")
    with serving(folder, *TWO):
        for name in NAMES:
            for _ in remote.ask_lines(data, "call", address=f"Box:{name}", method="plan", arguments=[]):
                pass
        rows = pages(folder, "agenda", limit=5)
        assert [row["address"] for row in rows] == [f"Box:{name}" for name in NAMES for _ in range(2)]

        for row in rows[:4]:
            about = {"address": row["address"], "id": row["id"], "do": "cancel"}
            assert remote.ask(data, "act", **about, preview=True)["done"] == 0
            assert remote.ask(data, "act", **about)["done"] == 1
        assert pages(folder, "agenda", limit=5) == rows[4:]

        for number, name in enumerate(NAMES, 1):
            about = {"address": f"Box:{name}"}
            assert remote.ask(data, "restart", **about, preview=True)["effect"].startswith("Restarts 1 agent")
            assert remote.ask(data, "restart", **about)["done"] == 1
            assert remote.ask(data, "destroy", **about, preview=True)["effect"] == f"Deletes Box:{name}."
            assert remote.ask(data, "destroy", **about, name=name)["done"] == 1
            assert remote.ask(data, "agents", limit=1)["total"] == len(NAMES) - number


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.realtime("the watchdog measures how long real code takes")
def test_logs_and_slow_methods_are_of_both_workers(folder: Path) -> None:
    data = str(folder / "sapwood-data")
    first = {worker: next(f"Box:{name}" for name in NAMES if worker_of(name) == worker) for worker in (0, 1)}
    with serving(folder, *TWO) as server:
        token = said_by(folder, "token", "--name", "ann", "--may", "look,content").strip()
        with streaming(server, "logs", token, level="warning") as events:
            for address in first.values():
                for _ in remote.ask_lines(data, "call", address=address, method="block", arguments=[]):
                    pass
            seen: dict[str, dict[str, Any]] = {}
            while len(seen) < 2:
                records = next(events)[1]["records"]
                seen |= {one["address"]: one for one in records if one["logger"] == "boxes"}
        assert set(seen) == set(first.values())
        assert len({one["worker"] for one in seen.values()}) == 2

        rows = remote.ask(data, "slow")["rows"]
        assert {(row["address"], row["method"]) for row in rows} >= {(address, "block") for address in first.values()}
        assert all("time.sleep(0.5)" in row["stack"] for row in rows if row["method"] == "block")
        about = {"address": first[0], "level": "warning"}
        with streaming(server, "logs", token, after={seen[first[0]]["worker"]: 0}, **about) as events:
            records = next(events)[1]["records"]
        assert {one["address"] for one in records} == {first[0]}
        assert remote.ask(data, "cluster") == {"cluster": None}


@pytest.mark.nightly
@pytest.mark.slow
def test_the_spending_of_both_workers_is_added_up_by_hour(folder: Path) -> None:
    (folder / "app.py").write_text(TALKER)
    data = str(folder / "sapwood-data")
    with serving(folder, *TWO):
        for name in NAMES:
            for _ in remote.ask_lines(data, "call", address=f"Talker:{name}", method="send", arguments=["Hi."]):
                pass
        told = remote.ask(data, "spending", by=["class", "model", "user"], limit=3)
        every = remote.ask(data, "spending")
    (row,) = told["rows"]
    assert (row["class"], row["model"], row["user"], row["requests"]) == ("Talker", "scripted", "operator", len(NAMES))
    assert (told["count"], len(told["trees"]), told["unanswered"]) == (len(NAMES), 3, [])
    assert row["input_tokens"] == sum(one["input_tokens"] for one in every["rows"])


@pytest.mark.nightly
@pytest.mark.slow
def test_every_worker_serves_the_pages_of_tabs_and_calls_the_agents_of_both(folder: Path) -> None:
    (folder / "tab.html").write_text("<title>A tab</title>")
    (folder / "app.py").write_text(TABBED)
    with serving(folder, *TWO, "--studio") as server:
        for name in NAMES:  # any worker may accept a connection
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            connection.request("GET", "/studio/tabs/Box/0/")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"<title>A tab</title>")
            connection.close()
            assert server.post("call", address=f"Box:{name}", method="greet")[0] == 200  # a tab creates no agent
            called = post(server, "tab-call", server.token, address=f"Box:{name}", tab="A tab", method="greet")
            assert called == (200, {"result": f"I am {name}."})
            refused = post(server, "tab-call", server.token, address=f"Box:{name}", tab="A tab", method="burn")
            assert refused[0] == 403


@pytest.mark.slow
def test_what_agents_say_is_hidden_whichever_worker_has_them(folder: Path) -> None:
    data = str(folder / "sapwood-data")
    some = sorted(next(name for name in NAMES if worker_of(name) == worker) for worker in (0, 1))
    with serving(folder, *TWO) as server:
        may_read = said_by(folder, "token", "--name", "ann", "--may", "look,answer,content").strip()
        may_not = said_by(folder, "token", "--name", "bob", "--may", "look,answer").strip()
        for name in some:
            for _ in remote.ask_lines(data, "call", address=f"Box:{name}", method="ask", arguments=[]):
                pass
        rows = pages(folder, "questions")
        assert [row["address"] for row in rows] == [f"Box:{name}" for name in some]
        for row in rows:
            wrong = {"address": row["address"], "id": row["id"], "answer": "value", "value": "neither"}
            assert post(server, "state", may_not, address=row["address"]) == (200, {"state": None})
            status, told = post(server, "answer", may_read, **wrong)
            assert (status, told["code"], "'a'" in told["error"]) == (400, "invalid_arguments", True), told
            status, told = post(server, "answer", may_not, **wrong)
            assert (status, told["code"], "'a'" in told["error"]) == (400, "invalid_arguments", False), told
