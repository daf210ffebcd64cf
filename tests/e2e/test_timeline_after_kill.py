"""Three agents wait for a person, and their server is killed: the wait and the gap are told on every level."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import PATIENCE, Server, said_by, serving, until

APP = """
from sapwood import Agent, App


class Digger(Agent):
    async def on_run(self, what: str) -> str:
        return await self.questions.ask(f"Dig {what}?", options=["yes", "no"])


class Foreman(Agent):
    async def on_run(self, what: str) -> str:
        await self.step("plan", str, what)
        return (await self.run_agent(Digger, what, run_id="d1")).output


class Owner(Agent):
    async def begin(self, what: str) -> None:
        self.start_fiber("order", self.order, what)

    async def order(self, what: str) -> str:
        return (await self.run_agent(Foreman, what, run_id="f1")).output


app = App(agents=[Owner])
"""
FOREMAN, DIGGER = "Owner:o/Foreman:f1", "Owner:o/Foreman:f1/Digger:d1"


def ask(server: Server, endpoint: str, **params: Any) -> str:
    status, answer = server.post(endpoint, **params)
    assert status == 200, answer
    return answer


def questions(server: Server) -> list[dict[str, Any]]:
    return json.loads(ask(server, "questions", address="Owner:o"))["rows"]


def told(server: Server) -> dict[str, dict[str, Any]]:
    """Return what is told of each agent of the tree."""
    events = [part.split("\n") for part in ask(server, "spans", address="Owner:o", below=True).strip().split("\n\n")]
    found = [json.loads(data.removeprefix("data: ")) for name, data in events if name == "event: spans"]
    return {one["address"]: one for one in found}


def of_kind(one: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [span for span in one["spans"] if span["kind"] == kind]


@pytest.mark.nightly
@pytest.mark.realtime("a server is killed and started again")
def test_a_wait_through_a_kill_is_told_on_every_level(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path) as server:
        ask(server, "call", address="Owner:o", method="begin", arguments=["here"])
        (question,) = until(lambda: questions(server))
        server.process.kill()
        server.process.wait(PATIENCE)
    killed_at = time.time()
    with serving(tmp_path) as server:
        until(lambda: len(of_kind(told(server).get(DIGGER, {"spans": []}), "attempt")) == 2)
        assert [span["status"] for span in of_kind(told(server)["Owner:o"], "run")] == ["waiting"]
        about = {"address": question["address"], "id": question["id"]}
        assert json.loads(ask(server, "answer", **about, answer="value", value="yes"))["accepted"]
        ended = until(lambda: (every := told(server)) and of_kind(every["Owner:o"], "run")[-1]["ended_at"] and every)
        shown = said_by(tmp_path, "explain", DIGGER, "d1")

    owner, foreman, digger = ended["Owner:o"], ended[FOREMAN], ended[DIGGER]
    for one in (owner, foreman, digger):
        assert [span["attempt"] for span in of_kind(one, "fiber" if one is owner else "attempt")] == [1, 2]
        (crash,) = [entry["crashed_at"] for entry in one["incarnations"] if entry["crashed_at"] is not None]
        assert crash >= killed_at
    for one, kind in ((foreman, "run"), (digger, "wait")):
        (waited,) = of_kind(one, kind)
        assert waited["status"] == "completed"
        assert waited["began_at"] < killed_at < waited["ended_at"]
    assert [span["name"] for span in of_kind(foreman, "function")] == ["plan"]
    assert "the process was killed" in shown
