"""Events of nested runs that another server invents: they stay below its stand-in, and are bounded in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.conformance.test_runs_events import Reader, is_end
from tests.conformance.test_teams_remote_transport import MemoryTransport, Mill
from tests.conformance.worlds import until

from sapwood import Agent, App, RemoteSubAgent, Run
from sapwood.remote import NestedEvent, NestedEvents, Position, RunTransport
from sapwood.runs.execution.clients import RunClients
from sapwood.runs.remote.http_transport import _events
from sapwood.runs.remote.nested_log import MAX_BYTES, MAX_EVENTS
from sapwood.testing import running
from sapwood.types import Event, PathSegment
from sapwood.wire import remote as wire
from sapwood.wire.helix import Helix

pytestmark = pytest.mark.slow  # two servers, many crashes

STAND_IN = (PathSegment("Victim", "v"), PathSegment("AtForger", "r"))
FINE = (PathSegment("Job", "a"),)


class Forger(MemoryTransport):
    """Tells what the test says."""

    told: list[Any]
    session: str

    async def stream(self, session: str, after: Position) -> AsyncGenerator[list[Any], None]:
        Forger.session = session
        for one in Forger.told:
            yield [one]
        async for batch in super().stream(session, after):
            yield batch


class AtForger(RemoteSubAgent):
    url = "forger"
    deps: Mill

    def transport(self) -> RunTransport:
        return Forger(self.deps)


class Victim(Agent):
    async def give(self) -> Run:
        return await self.run_agent(AtForger, 1, run_id="r")

    async def stored(self) -> tuple[dict[str, int], int, int]:
        """Return the number of the events that are stored, by kind, their size, and that of the database."""
        database = self._actor.of(RunClients).database_of("r")
        assert database is not None
        kinds = dict(database.execute("SELECT kind, count(*) FROM sapwood_nested_events GROUP BY kind"))
        ((size,),) = database.execute("SELECT total(bytes) FROM sapwood_nested_events")
        ((pages,),) = database.execute("PRAGMA page_count")
        ((page,),) = database.execute("PRAGMA page_size")
        return kinds, int(size), pages * page

    async def cursor(self) -> str | None:
        database = self._actor.of(RunClients).database_of("r")
        assert database is not None
        rows = database.execute("SELECT cursor FROM sapwood_nested_position")
        return rows[0][0] if rows else None


@asynccontextmanager
async def forged(*told: Any) -> AsyncGenerator[tuple[Any, list[Event]], None]:
    """Run a remote run that tells this, to its end; yield the caller, and the events that a reader sees."""
    mill, Forger.told = Mill(), list(told)
    async with running(App(agents=[Victim], deps=mill), slow_slices="allow") as world:
        victim = await world.get_agent(Victim, "v")
        giving = asyncio.create_task(victim.give())
        await mill.started()
        await until(lambda: any(one.startswith("stream") for one in mill.log))
        await mill.say()
        assert (await giving).status == "completed"
        reader = Reader(victim.subscribe())
        await reader.until(lambda one: one.run_id == "r" and is_end(one))
        yield victim, await reader.stop()


def nested(events: list[Event]) -> list[Event]:
    return [one for one in events if one.remote]


def event(path: Any = FINE, run: Any = "a", kind: Any = "started", at: Any = 1.0, **more: Any) -> NestedEvent:
    return NestedEvent(path, run, kind, at, **more)


INVALID = {
    "no path": event(()),
    "long path": event(FINE * (wire.MAX_NESTED_PATH + 1)),
    "large path": event((PathSegment("Job", "x" * 500),) * 20),
    "long name": event((PathSegment("Job", "x" * 600),)),
    "long type": event((PathSegment("x" * 600, "a"),)),
    "empty name": event((PathSegment("Job", ""),)),
    "null in a name": event((PathSegment("Job", "a\0b"),)),
    "half of a character": event((PathSegment("Job", "\ud800"),)),
    "number as name": event((PathSegment("Job", 7),)),  # pyright: ignore[reportArgumentType]
    "no steps": event(("Job", "a")),
    "no iterable": event(7),
    "long run": event(run="x" * 600),
    "no run": event(run=None),
    "long parent": event(parent_run_id="x" * 600),
    "chunk": event(kind="chunk"),
    "unknown kind": event(kind="root"),
    "negative": event(seq=-1),
    "huge": event(seq=2**70),
    "bool": event(seq=True),
    "fraction": event(seq=1.5),
    "not a number": event(at=float("nan")),
    "infinite": event(at=float("inf")),
    "text as time": event(at="now"),
    "far future": event(at=1e300),
    "something else": {"path": []},
}


@pytest.mark.parametrize("case", INVALID)
async def test_an_event_that_cannot_be_one_is_left_out(case: str) -> None:
    async with forged(NestedEvents([event(), INVALID[case], event(kind="completed", seq=1)])) as (_, events):
        assert [one.kind for one in nested(events)] == ["started", "completed"]


async def test_an_event_stays_below_the_stand_in_whatever_it_claims() -> None:
    claimed = (*STAND_IN[:1], PathSegment("Victim", "v"))
    told = [event(claimed), event((PathSegment("..", ".."),)), event((PathSegment("AtForger", "r"),), "r", "completed")]
    async with forged(NestedEvents(told)) as (_, events):
        found = nested(events)
        assert len(found) >= len(told)
        assert {one.path[:2] for one in found} == {STAND_IN}
        assert all(one.remote == len(one.path) - 2 for one in found)
        own = [one.kind for one in events if not one.remote and one.run_id == "r" and one.kind != "chunk"]
        assert own.count("completed") == own.count("started") == 1
        for one in events:
            Helix().of(one)


@pytest.mark.parametrize("body", ["x" * 10**6, {"input": "x" * 10**6}, [[]] * 10**5, 2**70, object(), "\ud800"])
@pytest.mark.parametrize("kind", ["started", "completed", "failed", "milestone", "progress"])
async def test_a_body_has_a_bounded_size_and_the_form_of_its_kind(kind: str, body: Any) -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    async with forged(NestedEvents([event(kind=kind, body=body), event(kind=kind, body=deep)])) as (_, events):
        found = nested(events)
        assert found
        for one in found:
            assert len(msgspec.json.encode(one.body)) <= wire.MAX_NESTED_BODY_BYTES
            Helix().of(one)


@pytest.mark.slow
async def test_the_number_and_the_size_of_stored_events_is_bounded_and_progress_goes_first() -> None:
    def batch(kind: str, first: int, size: int) -> NestedEvents:
        runs = [f"{kind}{first + n}" for n in range(200)]
        return NestedEvents(
            [event((PathSegment("Job", one),), one, kind, body={"text": "x" * size, "input": 1}) for one in runs]
        )

    flood = [batch("milestone", n, 8000) for n in range(0, 10_000, 100)]
    more = [batch("progress", n, 10) for n in range(0, 2000, 100)]
    starts = [batch("started", n, 10) for n in range(0, 500, 100)]
    mill, Forger.told = Mill(), [*starts, *flood, *more, NestedEvents([], "last")]
    async with running(App(agents=[Victim], deps=mill), slow_slices="allow") as world:
        victim = await world.get_agent(Victim, "v")
        giving = asyncio.create_task(victim.give())
        reader = Reader(victim.subscribe())
        await until(lambda: any(one.startswith("stream") for one in mill.log))  # all was taken
        assert await victim.cursor() == "last"
        kinds, size, file = await victim.stored()

        assert sum(kinds.values()) <= MAX_EVENTS
        assert size <= MAX_BYTES
        assert file <= 2 * MAX_BYTES
        assert kinds["started"] == 500
        await mill.say()
        await giving
        await reader.until(lambda one: one.run_id == "r" and is_end(one))
        kinds, size, file = await victim.stored()
        assert sum(kinds.values()) <= MAX_EVENTS
        assert file <= 2 * MAX_BYTES
        await reader.stop()


async def test_a_cursor_that_is_too_long_is_not_stored() -> None:
    long: Any = NestedEvents([], "x" * (wire.MAX_CURSOR + 1))
    number: Any = NestedEvents([], 7)  # pyright: ignore[reportArgumentType]
    async with forged(NestedEvents([event()], "mine"), long, number) as (victim, _):
        assert await victim.cursor() == "mine"


async def test_the_session_is_not_told_as_the_parent_of_a_nested_run() -> None:
    class Leak(list[Any]):
        """Events whose parent is the session, which is known only once the stream is open."""

        def __iter__(self) -> Any:
            yield NestedEvents([event(FINE * 2, parent_run_id=Forger.session)])

    async with forged() as (_, events):
        assert not nested(events)
    mill = Mill()
    Forger.told = Leak()
    async with running(App(agents=[Victim], deps=mill)) as world:
        victim = await world.get_agent(Victim, "v")
        giving = asyncio.create_task(victim.give())
        reader = Reader(victim.subscribe())
        told = await reader.until(lambda one: one.remote == 2)
        await mill.say()
        await giving
        assert told.parent_run_id == "r"
        assert Forger.session not in repr(await reader.stop())


def test_a_batch_that_is_too_large_is_not_even_decoded() -> None:
    large = b'{"events":[' + b'{"path":[],"run":"a","kind":"started","at":1},' * 60_000 + b"]}"
    assert len(large) > wire.MAX_NESTED_BATCH_BYTES
    assert list(_events([wire.RunEvent("nested", large)])) == []
