"""A scripted scenario leaves the same behind whoever drives it: transcripts, rows, events and frames."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.conformance.chats import Talking, approval, cancel, chunks, done, over, say, type_of, user
from tests.conformance.served import Client, Served, served
from tests.faults.reading import has, walk
from tests.machine import patience
from tests.temporal.cluster import Temporal, driven

from sapwood import Agent, App, ChatAgent, Refused, Run, agent_tool, tool
from sapwood.address import Address
from sapwood.kernel.node.data_folder import roots_in
from sapwood.testing import ScriptedModel, call, calls, fails, text

CHIEF = "/agents/scene-chief/t"
TABLES = {
    "sapwood_runs": "number",
    "sapwood_served_runs": "number",
    "sapwood_turns": "number",
    "sapwood_tool_calls": "id",
    "sapwood_messages": "position",
    "sapwood_model_messages": "position",
}
RUNS = 8
"""How many there are in the scenario, at all levels."""
SAID = (
    "do it all",
    "have it dug",
    "a hole",
    "nobody is there",
    "all of it",
    "amount",
    "paid",
    "signed",
    "too tired",
    "once upon",
    "half way",
    "begun",
)
"""What users, models and tools said, and what they were given."""
ASIDE = ("at", "timestamp", "trace", "bytes", "seq", "next_seq", "sequence", "length")
"""Names of values that are times, or random, or depend on in how many pieces a text was said."""


class SceneDigger(Agent):
    """Digs, as deep as it is told to."""

    async def on_run(self, input: str) -> AsyncGenerator[str, None]:
        self.report_progress(0.5, "half way", milestone="begun")
        yield "dug "
        if input == "for ever":
            await asyncio.Event().wait()
        yield str(input)


class SceneScout(ChatAgent):
    """Looks around."""

    model = ScriptedModel(text("nobody is there"), each=True)


class SceneSloth(ChatAgent):
    """Fails."""

    model = ScriptedModel(fails(Refused("too tired")), each=True)


class SceneForeman(ChatAgent):
    """Has somebody dig."""

    model = ScriptedModel(call("scene_digger", id="d1", message="a hole"), text("it is dug"), each=True)
    tools = (agent_tool(SceneDigger),)


class SceneTeller(ChatAgent):
    """Pays, if somebody lets it."""

    model = ScriptedModel(call("pay", id="p1", amount=7), text("paid it all"), each=True)

    @tool(requires_approval=True)
    async def pay(self, amount: int) -> str:
        """Pay."""
        return f"paid {amount}"


class SceneDreamer(ChatAgent):
    """Has somebody dig for ever."""

    model = ScriptedModel(call("scene_digger", id="d2", message="for ever"), each=True)
    tools = (agent_tool(SceneDigger),)


class SceneMuser(ChatAgent):
    """Begins to say something."""

    model = ScriptedModel(text("once upon a time", gate=asyncio.Event()), each=True)


class SceneChief(Talking):
    """Uses all of them."""

    model = ScriptedModel(
        calls(
            call("scene_scout", id="s1", message="look"),
            call("scene_sloth", id="s2", message="run"),
            call("scene_foreman", id="s3", message="have it dug"),
            call("scene_teller", id="s4", message="have it paid"),
        ),
        text("all of it is done"),
        call("sign", id="a1", name="me"),
        text("it is signed"),
        calls(call("scene_dreamer", id="s5", message="dream"), call("scene_muser", id="s6", message="muse")),
        each=True,
    )
    tools = tuple(
        agent_tool(cls) for cls in (SceneScout, SceneSloth, SceneForeman, SceneTeller, SceneDreamer, SceneMuser)
    )

    @tool(requires_approval=True)
    async def sign(self, name: str) -> str:
        """Sign."""
        return f"signed by {name}"

    async def all_runs(self) -> list[Run]:
        return self.runs.list()


@dataclass
class Seen:
    """What somebody could see of the scenario, ids and times aside."""

    rows: dict[str, Any] = field(default_factory=dict[str, Any])
    """What is stored, by agent and table."""
    export: Any = None
    events: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """What was told, by agent and run."""
    replayed: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """The same, to one who came late."""
    frames: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """What a client was sent, by what it is about."""


async def play(one: Served) -> Seen:
    """Play the scenario, and look at it from all sides."""
    seen = Seen()
    chief = await one.world.get_agent(SceneChief, "t")
    heard: list[Any] = []
    watching = asyncio.create_task(_hear(chief, heard))
    client = await one.join(CHIEF)

    await say(client, "r1", user("do it all", "u1"))
    await _until(lambda: _ended(chief, 3))
    asked = await _until(chief.questions.list)
    await chief.questions.approve(asked[0])
    await done(client, "r1")

    await say(client, "r2", user("sign it", "u2"))
    await client.until(lambda _: any(chunk["type"] == "tool-approval-request" for chunk in chunks(client, "r2")))
    await done(client, "r2")
    await approval(client, "a1", approved=True)
    await over(chief, 2)

    await say(client, "r3", user("dream", "u3"))
    await client.until(lambda frame: '"once' in str(frame).replace("'", '"'))
    await _until(lambda: _said(heard, "agent-tool:d2", "dug "))
    await _until(lambda: _said(heard, "agent-tool:s5", "tool-input-available"))
    await cancel(client, "r3")
    await done(client, "r3")
    await over(chief, 3)
    await _until(lambda: _ended(chief, 6))

    await _until(lambda: _has_ends(heard, RUNS + 3))
    watching.cancel()
    again: list[Any] = []
    watching = asyncio.create_task(_hear(chief, again))
    await _until(lambda: _has_ends(again, RUNS))  # turns that the agent took for nobody are in its transcript
    watching.cancel()
    seen.events, seen.replayed = _by_run(heard), _by_run(again)
    seen.export = plain(await chief.conversation.export())
    seen.frames = _by_topic(client)
    return seen


async def _hear(chief: Any, heard: list[Any]) -> None:
    async with aclosing(chief.subscribe("tree")) as events:
        async for event in events:
            heard.append(event)  # noqa: PERF401 - one at a time


async def _until(look: Any) -> Any:
    async with asyncio.timeout(patience()):
        while not (found := await look()):  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.02)
    return found


async def _ended(chief: Any, n: int) -> bool:
    return len([run for run in await chief.all_runs() if run.ended_at is not None]) >= n


async def _said(heard: list[Any], run: str, what: str) -> bool:
    return any(event.run_id == run and what in str(event.body) for event in heard)


async def _has_ends(heard: list[Any], n: int) -> bool:
    return len([event for event in heard if event.kind in ("completed", "failed", "cancelled")]) >= n


def _by_run(heard: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for event in heard:
        key = f"{'/'.join(f'{step.type}:{step.name}' for step in event.path)} {event.run_id}"
        told = {"kind": event.kind, "parent": event.parent_run_id, "body": plain(event.body)}
        found.setdefault(key, []).append(told)
    return {key: joined(told, lambda one: one["body"]) for key, told in found.items()}


def _by_topic(client: Client) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for frame in client.frames:
        frame = dict(frame)
        if type_of(frame) == "agent-tool-event":
            key = f"{frame['type']} {frame['event']['runId']}"
        else:
            key = f"{type_of(frame)} {frame.get('id')}"
        if isinstance(frame.get("body"), str) and frame["body"]:
            frame["body"] = json.loads(frame["body"])
        found.setdefault(key, []).append(plain(frame))
    return {key: joined(frames, _chunk_of) for key, frames in found.items()}


def _chunk_of(frame: Any) -> Any:
    return frame["event"].get("body") if "event" in frame else frame.get("body")


def joined(told: list[Any], chunk_of: Any) -> list[Any]:
    """Join texts that were said in pieces, and sort what was told together: chance decides about both."""
    found: list[Any] = []
    for one in told:
        last: Any = chunk_of(found[-1]) if found else None
        chunk: Any = chunk_of(one)
        if _kind(chunk) == _kind(last) == "text-delta" and chunk["id"] == last["id"]:
            last["delta"] += chunk["delta"]
            continue
        found.append(one)
        at = len(found) - 1
        while at and _output(chunk) and _output(chunk) < _output(chunk_of(found[at - 1])):
            found[at - 1 : at + 1] = found[at], found[at - 1]
            at -= 1
    return found


def _kind(chunk: Any) -> Any:
    return chunk.get("type") if isinstance(chunk, dict) else None


def _output(chunk: Any) -> str:
    return chunk["toolCallId"] if str(_kind(chunk)).startswith("tool-output") else ""


def plain(value: Any) -> Any:
    """Return a value without what is random in it, and without times."""
    if isinstance(value, dict):
        return {key: "*" if key.endswith(("_at", "At")) or key in ASIDE else plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, str):
        if value[:1] in ("{", "["):
            return plain(json.loads(value))
        return re.sub(r"[0-9a-f-]{12,}", "*", value)
    return value


def rows(data: Path, copy: Path) -> dict[str, Any]:
    """Return what is stored of every agent."""
    shutil.copytree(data, copy)
    found: dict[str, Any] = {}

    def read(address: Address, stem: str, database: apsw.Connection | None) -> None:
        for table, order in TABLES.items() if database is not None else ():
            if database is not None and has(database, table):
                asked = database.execute(f"SELECT * FROM {table} ORDER BY {order}")
                found[f"{address} {table}"] = [
                    plain(dict(zip([one[0] for one in asked.get_description()], row, strict=True))) for row in asked
                ]

    for root in roots_in(copy):
        walk(copy, root, read)
    return found


@pytest.mark.nightly
@pytest.mark.promise("B-36")
async def test_transcripts_rows_events_and_frames_are_the_same_whoever_drives(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with served(App(agents=[SceneChief])) as one:
        own = await play(one)
        own.rows = rows(one.world.data, tmp_path / "own")

    async with driven(temporal, tmp_path, SceneChief) as other:
        theirs = await play(other.one)
        ends = await other.closed(RUNS + 3)
        theirs.rows = rows(other.world.data, tmp_path / "theirs")

    assert theirs.rows == own.rows
    assert theirs.export == own.export
    assert theirs.events == own.events
    assert theirs.replayed == own.replayed
    assert theirs.frames == own.frames
    assert ends == {id: "FAILED" if "SceneSloth" in id else "COMPLETED" for id in ends}
    assert len(ends) == RUNS + 3


@pytest.mark.nightly
async def test_nothing_that_was_said_is_in_any_history(temporal: Temporal, tmp_path: Path) -> None:
    async with driven(temporal, tmp_path, SceneChief) as one:
        await play(one.one)
        await one.closed(RUNS + 3)

        histories = await one.histories()

    assert len(histories) == RUNS + 3
    (failed,) = [history for id, history in histories.items() if "SceneSloth" in id]
    assert "It ended with an error; the agent knows which." in failed
    for history in histories.values():
        for said in SAID:
            assert said not in history
