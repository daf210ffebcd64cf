"""What agents and people wrote is in no answer of the admin API to a token that may not see it.

A secret is planted wherever agents and people write. Every endpoint is asked with every scope, over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.cases import slow

from sapwood import After, App, ChatAgent, Retry, agent_tool, tool
from sapwood.admin.access import SCOPES, Access, Scope
from sapwood.admin.admin import Admin
from sapwood.admin.door import AdminDoor
from sapwood.admin.endpoint import AdminCall
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.admin.log_ring import LogRing
from sapwood.admin.tokens import TokenKey
from sapwood.kernel.actors.watchdog import RecentSlice, SlowSlice
from sapwood.studio import StudioTab
from sapwood.testing import ScriptedModel, World, call, running, text
from sapwood.types import Address

PAGE = Path(__file__).parents[2] / "examples/studio_tab.html"
SECRET = "hunter2-planted"
OTHER = "neighbour-of-ann"
"""The name of a tree, and of a child, that a limited token must not see."""
MAIN = "SecretDesk:main"
OWN = f"{MAIN}/SecretDesk:mine"
RAW = frozenset[Scope]({"content", "call", "sql", "write", "admin"})
"""Scopes that show content, or what no scope hides."""
ENDLESS = {"watch", "logs"}
LATER = Retry(max_attempts=2, initial_delay=timedelta(hours=1), max_delay=timedelta(hours=1))
log = logging.getLogger("tests.admin_content")


class SecretClerk(ChatAgent):
    """Looks something up, and fails."""

    model = ScriptedModel(text(f"{SECRET} is in the drawer."), each=True)


class SecretDesk(ChatAgent[dict[str, Any] | None]):
    """Has a secret in everything that an agent can have."""

    initial_state = None
    is_broken = False
    tools = (agent_tool(SecretClerk),)
    studio_tabs = (StudioTab("Notes", PAGE, methods=("read", "file")),)
    model = ScriptedModel(
        call("secret_clerk", id="c1", message=f"where is {SECRET}"),
        call("pay", id="k1", word=SECRET),
        text(f"Done, {SECRET}."),
        each=True,
    )

    async def on_start(self) -> None:
        if SecretDesk.is_broken:
            raise ValueError(f"cannot start: {SECRET}")

    @tool(requires_approval=True)
    async def pay(self, word: str) -> str:
        """Pay a bill."""
        return f"paid with {word}"

    async def fill(self) -> None:
        self.set_state({"note": SECRET, "deep": [{"password": SECRET}]})
        self.sql("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
        self.sql("INSERT INTO notes VALUES (?)", SECRET)
        self.history.mark(SECRET)
        self.start_fiber("name", self.ask_name)
        self.start_fiber("wreck", self.wreck, SECRET)
        self.schedule(After(timedelta(hours=1)), self.file, SECRET)
        self.queues["slow"].with_retry(LATER).add(self.file, SECRET)
        self.queues.default.with_retry(Retry(max_attempts=1)).add(self.file, SECRET)
        await self.files.put(b"note", name=f"{SECRET}.txt", media_type="text/plain")
        log.warning("the word is %s", SECRET)

    async def ask_name(self) -> str:
        return await self.questions.ask(f"What is {SECRET}?", options=[SECRET, "x"])

    async def wreck(self, word: str) -> None:
        raise ValueError(word)

    async def file(self, what: str) -> None:
        raise ValueError(what)

    async def read(self) -> str:
        return f"It is {SECRET}."

    async def grow(self, name: str) -> None:
        await (await self.sub_agent(SecretDesk, name)).fill()


@pytest.fixture(autouse=True)
def _whole() -> None:
    SecretDesk.is_broken = False


@asynccontextmanager
async def asking() -> AsyncGenerator[tuple[World, httpx2.AsyncClient]]:
    async with running(App(agents=[SecretDesk]), history=86400.0) as world:
        ring = world.node.shared(LogRing)
        ring.attach()
        try:
            for name in ("main", OTHER):
                desk = await world.get_agent(SecretDesk, name)
                for words in (f"Pay with {SECRET}.", f"Pay it with {SECRET}."):  # the second begins a branch
                    said = {"id": "said", "role": "user", "parts": [{"type": "text", "text": words}]}
                    async for _ in Admin(world.node).call(f"SecretDesk:{name}", "send", [[said]]):
                        pass
                await desk.fill()
                for child in ("mine", OTHER):
                    await desk.grow(child)
            await world.settled()
        finally:
            ring.detach()
        for name in ("main", OTHER):
            slow = SlowSlice(Address.root_of("SecretDesk", name), "file", 1.0, f"raise {SECRET}")
            world.node.watchdog.recent.append(RecentSlice(slow, 1.0, 1.0))
        transport = httpx2.ASGITransport(app=AdminDoor(world.app, lambda: world.node, "t" * 40))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1/_sapwood") as client:
            yield world, client


def access(*scopes: Scope, below: str | None = None) -> Access:
    return Access("ann", frozenset(scopes), None if below is None else Address.parse(below), 2e10)


async def answer(world: World, client: httpx2.AsyncClient, what: str, may: Access, **params: Any) -> tuple[int, str]:
    """Return the status and the whole answer; of an endless stream, its first events."""
    token = TokenKey(world.data).sign(may)
    if what not in ENDLESS:
        response = await client.post(f"/{what}", json=params, headers={"authorization": f"Bearer {token}"})
        return response.status_code, response.text
    endpoint = ENDPOINTS[what]
    assert endpoint.stream is not None
    try:
        events = endpoint.stream(AdminCall(world.node, Admin(world.node), may), endpoint.read(params, may))
        return 200, str(await asyncio.wait_for(anext(aiter(events)), 30))
    except Exception as error:  # noqa: BLE001 - what the door answers with
        return 403, str(error)


async def requests_of(world: World, client: httpx2.AsyncClient) -> list[tuple[str, dict[str, Any]]]:
    """Return requests for every endpoint, that find something, about an agent and about all, and previews."""
    everything = access(*SCOPES)

    async def rows(what: str, **params: Any) -> list[dict[str, Any]]:
        told = json.loads((await answer(world, client, what, everything, **params))[1])
        return told["rows"] if "rows" in told else told["letters"]

    agenda, letters = await rows("agenda", address=MAIN), await rows("dead-letters", address=MAIN)
    branches = await rows("branches", address=MAIN)
    asked, (turn, *_) = await rows("questions", address=MAIN), await rows("works", address=MAIN)
    (run, *_) = await rows("runs", address=MAIN)
    about: dict[str, Any] = {"address": MAIN}
    found: list[tuple[str, dict[str, Any]]] = [
        ("session", {}),
        ("cluster", {}),
        ("upgrade", {}),
        ("slow", {}),
        ("top", {}),
        ("watch", {"addresses": [MAIN, OWN, f"SecretDesk:{OTHER}"]}),
        ("find", {"text": ""}),
        ("find", {"text": "", **about}),
        ("asked", {**about, "turn": turn["work"], "step": 1}),
        ("record", {**about, "turn": turn["work"]}),
        ("record", {"address": f"{MAIN}/{run['agent']}", "turn": run["id"]}),
        ("replay", {"address": f"{MAIN}/{run['agent']}", "turn": run["id"]}),
        ("spans", {**about, "below": True}),
        ("spending", {"by": ["hour", "user"]}),
        ("sql", {**about, "sql": "SELECT * FROM notes"}),
        ("call", {**about, "method": "file", "arguments": [SECRET]}),
        ("tab-call", {**about, "tab": "Notes", "method": "read"}),
        ("tab-call", {**about, "tab": "Notes", "method": "file", "arguments": [SECRET]}),
        ("backup", {**about, "folder": str(world.data / "copy")}),
        ("restore", {**about, "folder": "/nowhere"}),
        ("fork", {**about, "to": "copy"}),
        ("move", {**about, "to": "main"}),
        ("export", {**about, "file": str(world.data / "copy.tree")}),
        ("import", {"file": "/nowhere"}),
        ("cancel-run", {**about, "run": run["id"], "preview": True}),
        ("cancel-turn", {**about, "preview": True}),
        ("create", about),
        ("restart", {**about, "preview": True}),
        ("destroy", {**about, "preview": True}),
        ("destroy", {**about, "name": "wrong"}),
        ("erase", {**about, "name": "wrong"}),
        ("release", about),
        ("verify", about),
        ("explain", {**about, "turn": turn["work"].removeprefix("run ")}),
        ("decisions", about),
        ("schema", about),
        ("diff", {**about, "other": OWN}),
        ("methods", about),
        ("state", about),
        ("transcript", about),
        ("branches", about),
        ("switch-branch", {**about, "id": branches[0]["id"], "preview": True}),
        ("works", about),
        ("files", about),
        ("connections", about),
        ("chunks", {**about, "work": turn["work"]}),
        ("chunks", {"address": f"{MAIN}/{run['agent']}", "work": f"run {run['id']}"}),
        ("send", {**about, "message": SECRET, "preview": True}),
        ("runs", about),
        ("moments", about),
        ("rewind", {**about, "at": "nothing"}),
        ("move", {**about, "to": "https://other.example"}),
        ("receive", about),
        ("arrival", {**about, "id": "none", "do": "discard"}),
        ("arrival-parts", {**about, "id": "none", "parts": []}),
    ]
    found += [
        (what, params) for what in ("agents", "agenda", "questions", "tree", "spending") for params in ({}, about)
    ]
    found += [("agenda", {**about, "below": True}), ("dead-letters", {}), ("dead-letters", about)]
    found += [("logs", {}), ("logs", about)]
    for row in agenda:
        found += [("act", {**about, "id": row["id"], "do": do, "preview": True}) for do in ("fire", "cancel", "retry")]
    for letter in letters:
        found += [("act", {**about, "id": letter["id"], "do": do, "preview": True}) for do in ("replay", "delete")]
    for question in asked:
        found.append(
            ("answer", {"address": question["address"], "id": question["id"], "answer": "value", "value": "neither"})
        )
    return found


def shown(found: Sequence[tuple[str, Any, int, str]], text: str) -> list[tuple[str, Any, int]]:
    return [(what, params, status) for what, params, status, body in found if text in body.replace("\\", "")]


async def test_the_table_has_every_endpoint_and_what_is_planted_is_found() -> None:
    async with asking() as (world, client):
        requests = await requests_of(world, client)
        assert {name for name, _ in requests} == set(ENDPOINTS)
        everything = access(*SCOPES)
        found = [(what, params, *await answer(world, client, what, everything, **params)) for what, params in requests]

        seen = {what for what, _, _ in shown(found, SECRET)}
        assert seen >= {
            *("agenda", "answer", "call", "dead-letters", "logs", "questions", "record", "slow", "spans"),
            *("branches", "chunks", "diff", "files", "sql", "state", "tab-call", "transcript", "works"),
        }


@pytest.mark.parametrize("scope", ["look", *slow(scope for scope in SCOPES if scope not in {*RAW, "look"})])
async def test_no_answer_has_a_secret_without_the_scope_content(scope: Scope) -> None:
    async with asking() as (world, client):
        requests = await requests_of(world, client)
        may = access("look", scope)
        found = [(what, params, *await answer(world, client, what, may, **params)) for what, params in requests]

        assert shown(found, SECRET) == []
        failed = {status for what, _, status, _ in found if what == "tab-call"}
        assert {status for *_, status, _ in found} - failed <= {200, 400, 403, 404}
        assert failed == ({200, 500} if scope == "act" else {403})


async def test_no_act_repeats_the_error_of_an_agent_without_the_scope_content() -> None:
    async with asking() as (world, client):
        agenda = json.loads((await answer(world, client, "agenda", access("look"), address=MAIN))[1])["rows"]
        asked = json.loads((await answer(world, client, "questions", access("look"), address=MAIN))[1])["rows"]
        await world.restart()
        SecretDesk.is_broken = True
        about = {"address": MAIN}
        acts: list[tuple[str, dict[str, Any]]] = [
            ("act", {**about, "id": agenda[0]["id"], "do": "cancel"}),
            ("act", {**about, "id": "all", "do": "replay"}),
            ("cancel-turn", about),
            ("destroy", {"address": OWN, "name": "mine"}),
            ("send", {**about, "message": "Pay."}),
            *(("answer", {"address": one["address"], "id": one["id"], "answer": "deny"}) for one in asked),
        ]

        for may, is_shown in ((access("look", "act", "answer"), False), (access("content", "act", "answer"), True)):
            found = [(what, params, *await answer(world, client, what, may, **params)) for what, params in acts]
            assert [what for what, _, _ in shown(found, SECRET)] == [what for what, _ in acts if is_shown]
            assert [(what, body) for what, _, status, body in found if status < 400] == []


async def test_a_limited_token_sees_nothing_of_other_trees_and_of_other_children() -> None:
    async with asking() as (world, client):
        may = access(*SCOPES, below=OWN)
        requests = await requests_of(world, client)
        requests += [(what, params | {"address": OWN}) for what, params in requests if "address" in params]
        requests = [one for one in requests if OTHER not in str(one[1].get("address"))]
        copies = ("backup", "restore", "verify", "export", "fork")
        requests = [one for one in requests if one[0] not in (*copies, "release")]
        found = [(what, params, *await answer(world, client, what, may, **params)) for what, params in requests]

        assert shown(found, OTHER) == []
        refused = {what for what, params, status, _ in found if status == 403 and params.get("address") == MAIN}
        assert refused == {what for what, params in requests if params.get("address") == MAIN}
        whole = {what for what, _, status, _ in found if status == 403} - refused
        # The last is of another child.
        assert whole == {"watch", "slow", "top", "cluster", "upgrade", "import", "replay"}
        seen = {what for what, _, _ in shown(found, OWN)}
        assert seen >= {"agents", "agenda", "questions", "find", "dead-letters", "logs", "tree"} - {"agents"}


async def test_every_act_is_a_line_of_the_audit_log_without_what_it_says() -> None:
    async with asking() as (world, client):
        requests = [one for one in await requests_of(world, client) if ENDPOINTS[one[0]].scope not in (None, "look")]
        requests = [one for one in requests if ENDPOINTS[one[0]].scope != "content"]
        file = world.data / "operator.jsonl"
        for what, params in requests:
            if what in ("sql", "backup", "restore", "verify", "upgrade", "import"):
                continue
            before = len(file.read_text().splitlines()) if file.exists() else 0
            await answer(world, client, what, access(*SCOPES), **params)
            lines = file.read_text().splitlines()[before:] if file.exists() else []
            is_act = not params.get("preview") and ENDPOINTS[what].is_audited
            assert [(one["endpoint"], one["address"], one["token"]) for one in map(json.loads, lines)] == (
                [(what, params["address"], "ann")] * 2 if is_act else []
            ), (what, params)
        assert SECRET not in file.read_text()
