"""What clients of the caller see of its runs: live in exact order, and replayed as it was."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator
from typing import Any

import apsw
import pytest
import websockets
from tests.conformance.errands import (
    BOSS,
    CALLER,
    EVENT,
    Bench,
    Digger,
    again,
    bodies,
    boss,
    caller,
    check_sequence,
    frames,
    helper,
    joined_later,
    kinds,
    over,
    told,
    told_end,
    told_text,
    without_replay,
    working,
)
from tests.conformance.errands import text as text_of
from tests.conformance.served import type_of
from tests.conformance.worlds import until

from sapwood import Agent, ChatAgent
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.storage.engine import CHECKED
from sapwood.testing import ScriptedModel, call, calls, fails, text
from sapwood.testing.faults import CountingFiles


async def quiet(client: Any) -> None:
    """Return when a client has been sent all there is for now."""
    assert (await client.call("wake"))["result"] == "awake"


@pytest.mark.promise("A-100", "A-102", "A-121", "A-122", "A-124", "A-125", "A-230", "A-260", "CF-80", "CF-115")
async def test_the_caller_tells_its_clients_what_its_helper_says_as_it_says_it(level: str) -> None:
    gate = asyncio.Event()
    ours = ScriptedModel(call("helper", id="c1", message="a" * 300), text("thanks"))
    cls = caller(ours, helper(ScriptedModel(text("once upon a time", gate=gate))))
    async with working(cls, durability=level) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "once")
        assert (await agent.one("agent-tool:c1")).status == "running"
        gate.set()
        await sending
        end = await told_end(client, "agent-tool:c1")

        first, *_ = seen = frames(client)
        assert first == {
            "type": EVENT,
            "sequence": 0,
            "parentToolCallId": "c1",
            "event": {
                "kind": "started",
                "runId": "agent-tool:c1",
                "agentType": "Helper",
                "inputPreview": "a" * 199 + "…",
                "order": 0,
            },
        }
        assert end["event"] == {"kind": "finished", "runId": "agent-tool:c1", "summary": "once upon a time"}
        check_sequence(seen)
        assert text_of(client, "agent-tool:c1") == "once upon a time"
        assert [body["type"] for body in bodies(client, "agent-tool:c1")][:2] == ["start", "start-step"]
        assert [body["type"] for body in bodies(client, "agent-tool:c1")][-2:] == ["finish-step", "finish"]
        assert all("replay" not in frame for frame in seen)
        await joined_later(one, CALLER, client, "agent-tool:c1")


@pytest.mark.promise("A-129")
async def test_only_what_a_helper_streams_is_passed_on_and_its_own_clients_see_all_as_usual() -> None:
    gate = asyncio.Event()
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    theirs = helper(ScriptedModel(text("well then", gate=gate)))
    async with working(caller(ours, theirs)) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "well")
        inside = await one.join(f"{CALLER}/sub/helper/agent-tool%3Ac1")
        gate.set()
        await sending
        await told_end(client, "agent-tool:c1")
        await inside.until(lambda frame: "well then" in str(frame))

        assert {frame["event"]["kind"] for frame in frames(client)} == {"started", "chunk", "finished"}
        assert frames(inside) == []
        assert {type_of(frame) for frame in inside.frames} >= {"cf_agent_identity", "cf_agent_chat_messages"}
        assert all(frame["agent"] == "caller" for frame in client.of_type("cf_agent_identity"))


@pytest.mark.promise("A-129")
async def test_what_a_helper_shows_its_own_clients_does_not_reach_the_callers() -> None:
    class Showing(Agent):
        deps: Bench

        async def on_run(self, input: str) -> AsyncIterator[str]:
            yield "begun"
            await self.deps.go.wait()
            self.set_state({"secret": "state"})  # pyright: ignore[reportArgumentType] - the class declares no state
            self.broadcast("secret word")

    async with working(boss(Showing)) as (one, agent, bench):
        client = await one.join(BOSS)
        giving = asyncio.create_task(agent.give("x", run_id="r1"))
        await told(client, "r1", "chunk")
        inside = await one.join(f"{BOSS}/sub/showing/r1")
        bench.go.set()
        await giving
        await told_end(client, "r1")
        await inside.until(lambda frame: frame == "secret word")
        await quiet(client)

        assert inside.of_type("cf_agent_state")[-1]["state"] == {"secret": "state"}
        assert "secret" not in str(client.frames)


@pytest.mark.promise("A-105", "A-121", "A-124", "A-135", "A-159", "A-231")
@pytest.mark.parametrize("input", ["dig", "fail", "stopped"])
async def test_every_end_is_told_once_and_replayed_as_it_was(input: str, level: str) -> None:
    async with working(cls := boss(), durability=level) as (one, agent, bench):
        client = await one.join(BOSS)
        if input == "stopped":
            giving = asyncio.create_task(agent.give("wait", run_id="r1"))
            await bench.seen("begun wait")
            await agent.stop("r1", "enough")
            run = await giving
        else:
            run = await agent.give(input, run_id="r1")
        end = await told_end(client, "r1")

        check_sequence(frames(client, "r1"))
        told = {key: value for key, value in end["event"].items() if key not in ("kind", "runId")}
        assert (end["event"]["kind"], told) == {
            "dig": ("finished", {"summary": ""}),
            "fail": ("error", {"error": for_clients(run.error)}),
            "stopped": ("aborted", {"reason": "enough"}),
        }[input]
        await joined_later(one, BOSS, client, "r1")
        await one.world.crash()
        await again(one, cls)
        await joined_later(one, BOSS, client, "r1")


@pytest.mark.promise("A-134", "A-137", "A-148", "A-231", "A-232")
async def test_runs_are_replayed_in_the_order_they_were_given_and_not_interleaved() -> None:
    ids = ("c2", "c0", "c1")  # not the order of their names
    asked = calls(*(call("helper", id=id, message="x") for id in ids))
    theirs = ScriptedModel(text("one two three", delay=0.01), each=True)
    async with working(caller(ScriptedModel(asked, text("done")), helper(theirs))) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")
        runs = [f"agent-tool:{id}" for id in ids]
        for run in runs:
            await told_end(client, run)

        late = await joined_later(one, CALLER, client, *runs)

        order = [frame["event"]["runId"] for frame in frames(late)]
        assert order == sorted(order, key=runs.index)
        assert kinds(late) == ["started", "chunk", "finished"] * 3
        assert [frame["event"]["order"] for frame in frames(late) if frame["event"]["kind"] == "started"] == [0, 1, 2]


@pytest.mark.promise("A-135")
async def test_without_runs_nothing_is_replayed() -> None:
    async with working(boss()) as (one, _, _):
        client = await one.join(BOSS)
        await quiet(client)

        assert frames(client) == []


class TellingNumbers(Agent):
    """One that says what it is told to, one number after the other."""

    deps: Bench

    async def on_run(self, input: int) -> AsyncIterator[str]:
        for at in range(input):
            self.deps.log.append(str(at))
            yield f"{at} "
            await asyncio.sleep(0)
        await self.deps.go.wait()


@pytest.mark.slow
@pytest.mark.promise("A-118", "CF-88", "CF-115")
async def test_whoever_joins_in_the_middle_misses_nothing_and_gets_nothing_twice(level: str) -> None:
    async with working(boss(TellingNumbers), durability=level) as (one, agent, bench):
        first = await one.join(BOSS)
        giving = asyncio.create_task(agent.give(300, run_id="r1"))
        await bench.seen("20")
        late = [await one.join(BOSS) for _ in range(5)]
        bench.go.set()
        await giving
        await told_end(first, "r1")

        for client in late:
            await told_end(client, "r1")
            check_sequence(frames(client, "r1"))
            assert without_replay(frames(client, "r1")) == frames(first, "r1")


@pytest.mark.slow
async def test_while_old_runs_are_replayed_new_ones_are_told_live() -> None:
    class TellingAtLength(Agent):
        async def on_run(self, input: str) -> AsyncIterator[str]:
            for _ in range(200):
                yield input * 2000

    class Mixed(boss(TellingAtLength)):
        async def dig(self) -> Any:
            return await self.run_agent(Digger, "dig", run_id="new")

    async with working(type("Boss", (Mixed,), {})) as (one, agent, _):
        for at in range(5):
            await agent.give("x", run_id=f"r{at}")

        client = await one.connect(BOSS)
        await agent.dig()

        for run in ("r0", "r1", "r2", "r3", "r4", "new"):
            await told_end(client, run)
            check_sequence(frames(client, run))


@pytest.mark.promise("CF-91")
async def test_a_client_that_leaves_disturbs_no_other() -> None:
    async with working(boss(TellingNumbers)) as (one, agent, bench):
        leaving, staying = await one.join(BOSS), await one.join(BOSS)
        giving = asyncio.create_task(agent.give(50, run_id="r1"))
        await told_text(leaving, "r1", "0 ")
        await leaving.close()
        late = await one.connect(BOSS)
        await late.close()
        bench.go.set()
        await giving

        await told_end(staying, "r1")
        check_sequence(frames(staying, "r1"))
        assert text_of(staying, "r1") == "".join(f"{at} " for at in range(50))


@pytest.mark.slow
async def test_a_client_that_leaves_while_it_is_told_of_old_runs_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    class TellingMuch(Agent):
        async def on_run(self, input: str) -> AsyncIterator[str]:
            for _ in range(200):
                yield input * 2000

    async with working(boss(TellingMuch)) as (one, agent, _):
        for at in range(8):
            await agent.give("x", run_id=f"r{at}")
        client = await websockets.connect(f"ws://127.0.0.1:{one.site.port}{BOSS}", compression=None, max_queue=1)
        await client.recv()  # the first; then it is silent, and there is no room for more
        await asyncio.sleep(0.2)
        client.transport.abort()
        await client.wait_closed()

        await quiet(await one.join(BOSS))
        gc.collect()
        assert [record.getMessage() for record in caplog.records if "never retrieved" in record.getMessage()] == []


@pytest.mark.promise("A-122", "A-230", "CF-93")
async def test_chunks_are_counted_and_kept_whether_anybody_watches_or_not() -> None:
    async with working(boss(TellingNumbers)) as (one, agent, bench):
        bench.go.set()
        await agent.give(5, run_id="alone")
        client = await one.join(BOSS)
        await agent.give(5, run_id="watched")
        await told_end(client, "watched")

        alone = [(frame["sequence"], frame["event"].get("body")) for frame in frames(client, "alone")]
        watched = [(frame["sequence"], frame["event"].get("body")) for frame in frames(client, "watched")]
        assert alone == watched


async def test_a_client_without_the_protocol_is_told_nothing_of_runs() -> None:
    class Plain(boss()):
        def send_protocol_frames(self, connection: Any) -> bool:
            return False

    async with working(type("Boss", (Plain,), {})) as (one, agent, _):
        client = await one.connect(BOSS)
        await quiet(client)
        await agent.give("dig", run_id="r1")
        await quiet(client)

        assert frames(client) == []


@pytest.mark.promise("CF-84")
async def test_a_failed_stream_fails_the_run_whether_anybody_listens_or_not() -> None:
    theirs = ScriptedModel(fails(ValueError("out of order")))
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("oh"))
    async with working(caller(ours, helper(theirs))) as (one, agent, _):
        await agent.send("go")

        run = await agent.one("agent-tool:c1")
        assert (run.status, "out of order" in run.error) == ("failed", True)
        late = await one.join(CALLER)
        assert (await told_end(late, "agent-tool:c1"))["event"]["error"] == for_clients(run.error)
        check_sequence(frames(late, "agent-tool:c1"))


@pytest.mark.promise("A-130", "A-230", "CF-84")
async def test_a_helper_that_yields_an_error_fails_and_passes_no_error_on_as_a_chunk() -> None:
    class Yielding(ChatAgent):
        async def respond(self, turn: Any) -> Any:
            yield "so far so good"
            yield {"type": "error", "errorText": "and then not"}

    ours = ScriptedModel(call("helper", id="c1", message="x"), text("oh"))
    async with working(caller(ours, helper(None, base=Yielding))) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")

        end = await told_end(client, "agent-tool:c1")
        assert (end["event"]["kind"], end["event"]["error"]) == ("error", "and then not")
        assert "error" not in [body["type"] for body in bodies(client, "agent-tool:c1")]
        assert text_of(client, "agent-tool:c1") == "so far so good"
        check_sequence(frames(client, "agent-tool:c1"))
        await joined_later(one, CALLER, client, "agent-tool:c1")


@pytest.mark.promise("A-123", "A-135")
async def test_a_run_whose_helper_is_gone_is_still_replayed_with_its_end() -> None:
    async with working(boss(TellingNumbers)) as (one, agent, bench):
        client = await one.join(BOSS)
        bench.go.set()
        await agent.give(3, run_id="r1")
        await agent.give(3, run_id="r2")
        await agent.delete("r1")

        late = await one.join(BOSS)
        await told_end(late, "r2")

        assert kinds(late, "r1") == ["started", "finished"]
        assert frames(late, "r1")[-1]["sequence"] == frames(client, "r1")[-1]["sequence"]
        check_sequence(frames(late, "r2"))


@pytest.mark.promise("CF-92", "CF-111")
async def test_chunks_that_cannot_be_read_any_more_cost_nothing_but_themselves() -> None:
    async with working(cls := boss(TellingNumbers)) as (one, agent, bench):
        bench.go.set()
        await agent.give(3, run_id="r1")
        await agent.give(3, run_id="r2")
        await one.world.restart()
        await one.world.app.__aexit__()
        _spoil(one, "r1")
        await one.world.start()

        late = await one.join(BOSS)
        await told_end(late, "r2")

        assert kinds(late, "r1") == ["started", "finished"]
        check_sequence(frames(late, "r2"))
        assert (await (await again(one, cls)).one("r1")).ok


def _spoil(one: Any, run: str) -> None:
    """Damage what an agent has stored of what it said."""
    for path in one.world.data.rglob("*"):
        if not path.is_file() or path.read_bytes()[:6] != b"SQLite":
            continue
        database = apsw.Connection(str(path), vfs=CHECKED)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if (
            "sapwood_served_runs" in tables
            and database.execute("SELECT 1 FROM sapwood_served_runs WHERE id = ?", [run]).fetchall()
        ):
            database.execute("UPDATE sapwood_chunks SET body = 'no JSON'")
        database.close()


@pytest.mark.promise("A-128")
async def test_what_a_run_streams_is_kept_in_its_own_database_and_not_in_those_above() -> None:
    class Middle(Agent):
        async def on_run(self, input: int) -> str:
            return (await self.run_agent(TellingNumbers, input, run_id="below")).status

    async with working(boss(Middle)) as (one, agent, bench):
        bench.go.set()
        await agent.give(20, run_id="r1")
        inside = await one.join(f"{BOSS}/sub/middle/r1")
        await told_end(inside, "below")
        assert len(bodies(inside, "below")) >= 20
        await one.world.app.__aexit__()

        assert _holding(one, "text-delta") == ["sapwood_chunks"]
        await one.world.start()


def _holding(one: Any, word: str) -> list[str]:
    """Return the tables, of all agents, that hold a word."""
    found: list[str] = []
    for path in one.world.data.rglob("*.db"):
        with contextlib.closing(sqlite3.connect(path)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            found += [name for name in tables if word in str(database.execute(f'SELECT * FROM "{name}"').fetchall())]
    return found


@pytest.mark.promise("A-127")
async def test_no_client_hears_of_a_chunk_of_a_run_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run says waits for the disk before it is told, to the clients of its caller too."""
    begun, go, wanted = threading.Event(), threading.Event(), threading.Event()
    sync = CountingFiles.sync_descriptor

    def slow(self: CountingFiles, path: Any, descriptor: int) -> None:
        if wanted.is_set():
            begun.set()
            assert go.wait(60)
        sync(self, path, descriptor)

    monkeypatch.setattr(CountingFiles, "sync_descriptor", slow)
    async with working(boss(Saying), durability="disk") as (one, agent, bench):
        client = await one.join(BOSS)
        giving = asyncio.create_task(agent.give("x", run_id="r1"))
        await told_text(client, "r1", "first ")
        wanted.set()
        bench.go.set()
        await until(begun.is_set)
        for _ in range(500):  # more than enough for a frame that does not wait
            await asyncio.sleep(0)
        assert "second" not in str(client.frames)
        go.set()
        await giving
        await told_end(client, "r1")

        assert text_of(client, "r1") == "first second"


class Saying(Agent):
    deps: Bench

    async def on_run(self, input: str) -> AsyncIterator[str]:
        yield "first "
        await self.deps.go.wait()
        yield "second"


@pytest.mark.slow
@pytest.mark.promise("A-127", "CF-90")
async def test_after_a_crash_the_run_goes_on_where_its_numbers_stopped_for_old_clients_and_new(level: str) -> None:
    gate = asyncio.Event()
    ours = ScriptedModel(call("helper", id="c1", message="x"), text("thanks"))
    theirs = ScriptedModel(text("once upon a time", gate=gate))
    async with working(cls := caller(ours, helper(theirs)), durability=level) as (one, agent, _):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_text(client, "agent-tool:c1", "once")
        before = frames(client, "agent-tool:c1")

        await one.world.crash()
        await asyncio.gather(sending, return_exceptions=True)
        meanwhile = await one.join(CALLER)
        await told(meanwhile, "agent-tool:c1", "started")
        gate.set()
        run = await over(await again(one, cls), "agent-tool:c1")
        await told_end(meanwhile, "agent-tool:c1")
        late = await one.join(CALLER)
        await told_end(late, "agent-tool:c1")

        assert run.output == "once upon a time"
        for watching in (meanwhile, late):
            seen = without_replay(frames(watching, "agent-tool:c1"))
            check_sequence(seen)
            assert seen[: len(before)] == before
        assert without_replay(frames(meanwhile)) == without_replay(frames(late))
