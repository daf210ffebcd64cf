"""Runs below a remote run: their events cross to the caller, once, through crashes of both servers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from tests.conformance.far import Both, Far, at, both
from tests.conformance.served import Served, served
from tests.conformance.test_runs_events import Reader, is_end, plain, stored
from tests.conformance.test_runs_streams import reading
from tests.conformance.test_teams_remote_transport import MemoryTransport, Mill
from tests.conformance.worlds import until

from sapwood import Agent, App, RemoteSubAgent, Run
from sapwood.errors import StoredDataError, Unavailable
from sapwood.remote import NestedEvent, NestedEvents, Position, RemoteEvent, RemoteStatus, RunTransport
from sapwood.runs.dispatch.subscription import Subscription
from sapwood.testing import running
from sapwood.types import Event, PathSegment

pytestmark = pytest.mark.slow  # two servers, many crashes

DEPTH = 3
"""How many levels below the root the agent is that starts the remote run."""
LEAF = "leaf"
MIDDLE = "middle"
HEARD = "a reader at the caller has heard of the leaf"
NEAR = (PathSegment("NearCaller", "n"), *[PathSegment("NearCaller", "r")] * DEPTH)
STAND_IN = (*NEAR, PathSegment("AtFarTrunk", "r"))
MIDDLE_PATH = (*STAND_IN, PathSegment("FarBranch", MIDDLE))
LEAF_PATH = (*MIDDLE_PATH, PathSegment("FarTwig", LEAF))


class FarTwig(Agent):
    """Reports, waits, and ends."""

    migrations = ("CREATE TABLE reached (one INTEGER) STRICT",)
    deps: Far

    async def on_run(self, input: str) -> AsyncGenerator[str, None]:
        self.deps.log.append("leaf")
        if not self.sql("SELECT count(*) FROM reached").scalar(int):
            self.sql("INSERT INTO reached VALUES (1)")
            self.report_progress(milestone="here")
        # Progress reaches only those who listen.
        await until(lambda: HEARD in self.deps.log or self.deps.go.is_set())
        self.report_progress(0.5, "half")
        yield "not told at the caller"
        await self.deps.go.wait()
        if input == "fail":
            raise ValueError("a secret of the other server")
        yield "done"


class FarBranch(Agent):
    """Has one below it do the work."""

    async def on_run(self, input: str) -> str:
        run = await self.run_agent(FarTwig, input, run_id=LEAF)
        return f"middle of {run.status}"


class FarTrunk(Agent):
    """Has one below it, which has one below it."""

    expose_runs = True
    hidden: list[str]

    async def on_run(self, input: str) -> str:
        run = await self.run_agent(FarBranch, input, run_id=MIDDLE)
        return f"top of {run.status}"

    async def on_before_sub_agent(self, request: Any, child: PathSegment) -> Any:
        return PlainTextResponse("not for you", 403) if child.type in self.hidden else None


def caller(url: str) -> type[Any]:
    """Make the agents of the near server: each gives the run to one below it, and the lowest one to the far server."""
    stand_in = at(url, FarTrunk)

    class NearCaller(Agent):
        hidden: list[str]

        async def on_run(self, input: list[Any]) -> Any:
            return (await self.give(*input)).output

        async def give(self, what: str, depth: int = DEPTH) -> Run:
            if depth:
                return await self.run_agent(NearCaller, [what, depth - 1], run_id="r")
            return await self.run_agent(stand_in, what, run_id="r")

        async def stop(self) -> None:
            self.runs.cancel("r", "enough")

        async def at_stand_in(self, depth: int = DEPTH) -> AsyncGenerator[Event, None]:
            """Yield what an agent further down tells of its children."""
            if depth:
                async for event in (await self.sub_agent(NearCaller, "r")).at_stand_in(depth - 1):
                    yield event
            async for event in (await self.sub_agent(stand_in, "r")).subscribe("children"):
                yield event

        async def on_before_sub_agent(self, request: Any, child: PathSegment) -> Any:
            return PlainTextResponse("not for you", 403) if child.type in self.hidden else None

    NearCaller.hidden = []
    return NearCaller


class Near:
    """The near server, and a run on the far one."""

    def __init__(self, two: Both, near: Served, cls: type[Any]) -> None:
        self.two, self.near, self.cls = two, near, cls

    async def root(self) -> Any:
        return await self.near.world.get_agent(self.cls, "n")

    async def reader(self, after: str | None = None, depth: Any = "tree") -> Reader:
        return Reader((await self.root()).subscribe(depth, after=after))

    def start(self, what: str = "work") -> None:
        async def give() -> None:
            await (await self.root()).give(what)

        self._giving = asyncio.create_task(give())

    async def stop(self) -> None:
        self._giving.cancel()
        await asyncio.gather(self._giving, return_exceptions=True)


@asynccontextmanager
async def near(what: str = "work", *, durability: str = "process") -> AsyncGenerator[Near, None]:
    FarTrunk.hidden = []
    async with both(far=[FarTrunk, FarBranch, FarTwig], level=durability) as two:
        cls = caller(f"http://127.0.0.1:{two.far.site.port}")
        async with served(App(agents=[cls], deps=two.bench), durability=durability) as server:
            one = Near(two, server, cls)
            one.start(what)
            try:
                yield one
            finally:
                await one.stop()


def nested(events: Sequence[Event]) -> list[Event]:
    return [one for one in plain(events) if one.remote]


def kinds(events: Sequence[Event], path: Sequence[PathSegment]) -> list[str]:
    return [one.kind for one in events if one.path == path and one.kind != "progress"]


def key(event: Event) -> Any:
    return event.path, event.run_id, event.kind, event.seq


async def half(one: Near, reader: Reader) -> Event:
    await reader.until(lambda event: event.path == LEAF_PATH and event.kind == "milestone")
    one.two.bench.log.append(HEARD)
    return await reader.until(lambda event: event.path == LEAF_PATH and event.kind == "progress")


async def over(reader: Reader) -> None:
    await reader.until(lambda one: len(one.path) == 2 and is_end(one))


WHOLE = ["started", "milestone", "completed"]


@pytest.mark.promise("B-21", "A-103")
async def test_events_of_runs_below_a_remote_run_are_told_at_the_root_of_the_caller() -> None:
    async with near() as one:
        reader = await one.reader()
        progress = await half(one, reader)
        assert (progress.body["fraction"], progress.remote) == (0.5, 2)
        one.two.bench.go.set()
        await over(reader)

        found = nested(await reader.stop())

        assert kinds(found, MIDDLE_PATH) == ["started", "completed"]
        assert kinds(found, LEAF_PATH) == WHOLE
        assert {one.path for one in found} == {MIDDLE_PATH, LEAF_PATH}
        started = {one.path: one for one in found if one.kind == "started"}
        assert (started[MIDDLE_PATH].run_id, started[MIDDLE_PATH].parent_run_id) == (MIDDLE, "r")
        assert (started[LEAF_PATH].run_id, started[LEAF_PATH].parent_run_id) == (LEAF, MIDDLE)
        assert started[LEAF_PATH].body["input"] == "work"
        ends = {one.path: one for one in found if one.kind == "completed"}
        assert ends[MIDDLE_PATH].body == "middle of completed"
        # A reader that comes later sees the same, also while the other server is away.
        await one.two.cut_off()
        later = await one.reader()
        await over(later)
        assert nested(await later.stop()) == [one for one in found if one.kind != "progress"]


async def test_the_depth_that_a_reader_asks_for_counts_the_steps_on_the_other_server() -> None:
    async with near() as one:
        tree = await one.reader()
        await half(one, tree)
        children = await one.reader(depth="children")
        below = Reader((await one.root()).at_stand_in())
        await below.until(lambda one: one.path == MIDDLE_PATH)
        one.two.bench.go.set()
        await over(tree)
        await over(children)
        await below.until(lambda one: one.path == MIDDLE_PATH and is_end(one))

        assert nested(await children.stop()) == []
        assert {one.path for one in nested(await below.stop())} == {MIDDLE_PATH}
        await tree.stop()


@pytest.mark.promise("A-216", "B-21")
@pytest.mark.parametrize("who", ["near", "far", "both"])
@pytest.mark.parametrize("is_over", [False, True])
async def test_a_crash_of_either_server_loses_no_event_and_repeats_none(who: str, is_over: bool) -> None:
    async with near() as one:
        before = await one.reader()
        seen = await half(one, before)
        if is_over and who == "near":  # the run ends while the caller is away
            one.two.bench.is_down = True
        if who in ("near", "both"):
            await one.near.world.crash()
        if who in ("far", "both"):
            await one.two.far.world.crash()
        first = await before.stop()
        one.two.bench.go.set()
        if is_over and who == "near":
            await one.two.far.world.settled()
            one.two.bench.is_down = False
        after = await one.reader(seen.cursor)
        await over(after)
        rest = await after.stop()
        whole = await one.reader()
        await over(whole)
        found = nested(await whole.stop())

        assert kinds(found, MIDDLE_PATH) == ["started", "completed"]
        assert kinds(found, LEAF_PATH) == WHOLE
        told = Counter(key(one) for one in nested([*first, *rest]) if one.kind != "progress")
        if who == "far":  # the same reader may have seen the end
            told = Counter(set(told))
        assert told == Counter(key(one) for one in found)


async def test_a_reader_resumes_after_any_event() -> None:
    async with near() as one:
        one.two.bench.go.set()
        reader = await one.reader()
        await over(reader)
        await reader.stop()
        await one.near.world.crash()
        late = await one.reader()
        await over(late)
        events = await late.stop()
        assert nested(events)

        for place, event in enumerate(events[:-1]):
            rest = await stored(await one.root(), after=event.cursor, count=len(events) - place - 1)
            assert plain(rest) == plain(events[place + 1 :])


async def test_a_cursor_from_before_the_remote_run_sees_all_of_it() -> None:
    async with near() as one:
        reader = await one.reader()
        old = await reader.until(lambda one: one.kind == "started")
        one.two.bench.go.set()
        await over(reader)
        await reader.stop()
        late = await one.reader(old.cursor)
        await over(late)

        assert kinds(nested(await late.stop()), LEAF_PATH) == WHOLE


async def test_a_cancelled_caller_ends_the_runs_below_the_remote_run() -> None:
    async with near() as one:
        reader = await one.reader()
        await half(one, reader)

        await (await one.root()).stop()

        await over(reader)
        late = await one.reader()
        await late.until(lambda one: one.path == LEAF_PATH and is_end(one))
        found = nested(await late.stop())
        assert kinds(found, MIDDLE_PATH) == ["started", "cancelled"]
        assert kinds(found, LEAF_PATH) == ["started", "milestone", "cancelled"]
        assert {one.body["reason"] for one in found if one.kind == "cancelled"} == {"enough"}
        await reader.stop()


async def test_a_failure_below_says_no_more_than_the_other_server_tells_its_clients() -> None:
    async with near("fail") as one:
        one.two.bench.go.set()
        reader = await one.reader()
        await over(reader)

        found = nested(await reader.stop())

        assert kinds(found, LEAF_PATH) == ["started", "milestone", "failed"]
        assert "secret" not in repr(found)


@pytest.mark.parametrize("format", ["events", "helix"])
async def test_clients_of_the_caller_read_them_over_http(format: str) -> None:
    async with near() as one:
        one.two.bench.go.set()
        reader = await one.reader()
        await over(reader)
        await reader.stop()
        found: list[dict[str, Any]] = []
        async with reading(one.near.site, f"/agents/near-caller/n/events?format={format}") as lines:
            while not found or not _is_last(found[-1]):
                found.append(await lines.json())

        if format == "events":
            (leaf,) = [x for x in found if x["kind"] == "started" and x.get("remote") == 2]
            assert "chunk" not in {x["kind"] for x in found if x.get("remote")}
            assert [step["name"] for step in leaf["path"]] == ["n", "r", "r", "r", "r", MIDDLE, LEAF]
        else:
            started = [x for x in found if x["type"] == "subagent_start"]
            ended = [x for x in found if x["type"] == "subagent_end"]
            at = "NearCaller:n/NearCaller:r/NearCaller:r/NearCaller:r/AtFarTrunk:r/FarBranch:middle"
            assert f"{at}/FarTwig:leaf" in {x["subAgentId"] for x in started}
            assert {x["parentSessionId"] for x in ended if x["agentType"] == "FarTwig"} == {at}


def _is_last(told: dict[str, Any]) -> bool:
    if "kind" in told:
        return len(told["path"]) == 2 and told["kind"] == "completed"
    return told["type"] == "subagent_end" and told["subAgentId"] == "NearCaller:n/NearCaller:r"


@pytest.mark.parametrize(
    ("here", "there", "wanted"),
    [([], [], 2), (["AtFarTrunk"], [], 0), ([], ["FarBranch"], 0)],
    ids=["open", "gate of the caller", "gate of the other server"],
)
async def test_the_gates_of_both_servers_decide_what_is_seen(here: list[str], there: list[str], wanted: int) -> None:
    async with near() as one:
        one.cls.hidden, FarTrunk.hidden = here, there
        one.two.bench.go.set()
        reader = await one.reader()
        await over(reader)
        await reader.stop()
        found: list[dict[str, Any]] = []
        async with reading(one.near.site, "/agents/near-caller/n/events") as lines:
            while not found or not _is_last(found[-1]):
                found.append(await lines.json())

        assert len({json.dumps(x["path"]) for x in found if x.get("remote")}) == wanted


@pytest.mark.parametrize("cursor", ["nonsense", "WzEse31d", "x" * 100_000, 7])
async def test_the_other_server_refuses_a_position_that_it_cannot_have_told(cursor: Any) -> None:
    async with both() as two:
        run = await (await two.desk()).give("FarDigger", "dig", "r1")
        body = json.dumps({"from_seq": 1, "nested": cursor}).encode()

        told = await two.ask(run, "/stream", method="POST", body=body)

        assert (told.status, told.json()["code"]) == (400, "invalid_arguments")


async def test_a_run_is_told_to_its_end_if_what_is_below_it_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def damaged(*_: Any) -> AsyncGenerator[Event, None]:
        raise StoredDataError("damaged")
        yield  # pyright: ignore[reportUnreachable] - makes it a generator

    monkeypatch.setattr(Subscription, "_below", damaged)
    FarTrunk.hidden = []
    async with both(far=[FarTrunk, FarBranch, FarTwig]) as two:
        two.bench.go.set()

        run = await (await two.desk()).give("FarTrunk", "work", "r1")

        assert (run.status, run.output) == ("completed", "top of completed")
        assert "events of nested runs cannot be read" in caplog.text


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("who", ["near", "far"])
async def test_killed_at_any_commit_of_either_side_every_event_is_told_once(who: str) -> None:
    async with near() as one:
        one.two.bench.go.set()
        await over(reader := await one.reader())
        await reader.stop()
        world, nth, passed = (one.near if who == "near" else one.two.far).world, 0, True
        while passed:
            nth += 1
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            name = f"n{nth}"
            caller: Any = await one.near.world.get_agent(one.cls, name)
            giving = asyncio.create_task(caller.give("work", 0))
            await until(lambda: giving.done() or world.points.ended)  # noqa: B023 - awaited here
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()
            await asyncio.gather(giving, return_exceptions=True) if who == "near" else None
            caller = await one.near.world.get_agent(one.cls, name)
            await caller.give("work", 0)
            late = Reader(caller.subscribe())
            await late.until(lambda one: one.run_id == "r" and is_end(one))
            found = nested(await late.stop())

            stand_in = (PathSegment("NearCaller", name), STAND_IN[-1])
            assert kinds(found, (*stand_in, *MIDDLE_PATH[-1:])) == ["started", "completed"], nth
            assert kinds(found, (*stand_in, *LEAF_PATH[-2:])) == WHOLE, nth
        assert nth > 3


# A transport that a user wrote.


class Telling(MemoryTransport):
    """Tells of runs below its own."""

    mill: Mill
    told: list[NestedEvents]
    asked: list[str | None]
    failures: int = 0
    """How many streams fail before one is told."""

    async def status(self, session: str) -> RemoteStatus:
        return replace(await super().status(session), nested=True)

    async def stream(self, session: str, after: Position) -> AsyncGenerator[list[RemoteEvent], None]:
        Telling.asked.append(after.nested)
        if Telling.failures:
            Telling.failures -= 1
            raise Unavailable("not now")
        if after.nested is None:
            yield list(Telling.told)
        async for batch in super().stream(session, after):
            yield batch


class AtTelling(RemoteSubAgent):
    url = "telling"

    def transport(self) -> RunTransport:
        return Telling(Telling.mill)

    async def on_before_watch(self, request: Any) -> Any:
        return PlainTextResponse("not for you", 403) if "hidden" in request.headers else None


class TellingLast(Agent):
    async def on_run(self, input: Any) -> str:
        return "done"


class TellingDesk(Agent):
    async def give_last(self) -> None:
        await self.run_agent(TellingLast, run_id="last")

    async def give(self) -> Run:
        return await self.run_agent(AtTelling, 2, run_id="r")


def event(kind: Any, run: str = "a", **more: Any) -> NestedEvent:
    return NestedEvent((PathSegment("Job", run),), run, kind, 1.0, **more)


async def test_a_transport_of_a_users_own_may_tell_of_nested_runs_and_resumes_at_its_cursor() -> None:
    mill = Telling.mill = Mill()
    Telling.asked = []
    Telling.told = [NestedEvents([event("started"), event("progress", seq=1, body={"fraction": 0.1})], "here")]
    async with running(App(agents=[TellingDesk])) as world:
        giving = asyncio.create_task((await world.get_agent(TellingDesk, "d")).give())
        reader = Reader((await world.get_agent(TellingDesk, "d")).subscribe())
        await reader.until(lambda one: one.kind == "progress" and one.remote == 1)
        await reader.stop()
        await world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        await mill.say(2)
        desk = await world.get_agent(TellingDesk, "d")
        reader = Reader(desk.subscribe())
        await reader.until(lambda one: one.run_id == "r" and is_end(one))
        found = nested(await reader.stop())

        assert Telling.asked == [None, "here"]
        assert [one.kind for one in found] == ["started", "progress", "interrupted"]
        assert found[-1].body["reason"] == "not-followed"


@pytest.mark.parametrize(("failures", "wanted"), [(3, ["started", "completed"]), (100, [])])
async def test_what_happened_below_while_the_caller_was_away_is_read_with_some_patience(
    failures: int, wanted: list[str]
) -> None:
    mill = Telling.mill = Mill()
    Telling.asked, Telling.told = [], []
    async with running(App(agents=[TellingDesk])) as world:
        giving = asyncio.create_task((await world.get_agent(TellingDesk, "d")).give())
        await until(lambda: Telling.asked != [])
        await world.crash()
        await asyncio.gather(giving, return_exceptions=True)
        (job,) = mill.jobs.values()
        job.stopped = "there"
        Telling.told = [NestedEvents([event("started"), event("completed", seq=3, body="done")], "here")]
        Telling.failures = failures
        try:
            reader = Reader((await world.get_agent(TellingDesk, "d")).subscribe())
            end = await reader.until(lambda one: one.run_id == "r" and is_end(one))
        finally:
            Telling.failures = 0

        assert end.kind == "cancelled"  # it is known, whether the rest can be read or not
        assert [one.kind for one in nested(await reader.stop())] == wanted


@pytest.mark.parametrize("header", ["shown", "hidden"])
async def test_beyond_the_stand_in_its_own_gate_decides_also_for_classes_that_are_not_known_here(header: str) -> None:
    mill = Telling.mill = Mill()
    Telling.asked, Telling.told = [], [NestedEvents([event("started"), event("completed", seq=3, body="done")], "here")]
    async with served(App(agents=[TellingDesk])) as server:
        giving = asyncio.create_task((await server.world.get_agent(TellingDesk, "d")).give())
        await mill.started()
        await mill.say(2)
        await giving
        await (await server.world.get_agent(TellingDesk, "d")).give_last()
        found: list[dict[str, Any]] = []
        async with reading(server.site, "/agents/telling-desk/d/events", **{header: "yes"}) as lines:
            while not found or (found[-1]["runId"], found[-1]["kind"]) != ("last", "completed"):
                found.append(await lines.json())

        assert [one["kind"] for one in found if one.get("remote")] == (["started", "completed"] * (header == "shown"))
        assert bool([one for one in found if one["runId"] == "r"]) == (header == "shown")


class FarRelay(Agent):
    """Has a third server do the work."""

    expose_runs = True

    async def on_run(self, input: str) -> str:
        return (await self.run_agent(AtTelling, 2, run_id="relayed")).status


async def test_events_cross_any_number_of_servers() -> None:
    mill = Telling.mill = Mill()
    Telling.asked, Telling.told = [], [NestedEvents([event("started"), event("completed", seq=3, body="done")], "here")]
    async with both(far=[FarRelay]) as two:
        desk = await two.desk()
        giving = asyncio.create_task(desk.give("FarRelay", "work", "r"))
        reader = Reader(desk.subscribe())
        await mill.started()
        await reader.until(lambda one: one.run_id == "a" and is_end(one))
        await mill.say(2)
        await giving
        await reader.until(lambda one: one.run_id == "r" and is_end(one))

        found = nested(await reader.stop())

        stand_in = (PathSegment("NearDesk", "d"), PathSegment("AtFarRelay", "r"), PathSegment("AtTelling", "relayed"))
        assert kinds(found, stand_in) == ["started", "milestone", "completed"]
        assert kinds(found, (*stand_in, PathSegment("Job", "a"))) == ["started", "completed"]
        (started,) = [one for one in found if one.kind == "started" and one.run_id == "a"]
        assert (started.parent_run_id, started.remote) == ("relayed", 2)
