"""Agents of two workers that use each other: who asks, until when, and what was lent, goes along."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.machine import patience

from sapwood import Agent, App, Settings, TimedOut, Unavailable, deadline
from sapwood.errors import CallTooDeep, Crashed, StartCycle
from sapwood.kernel.marshal.call import MAX_DEPTH
from sapwood.kernel.rpc.remote import Peers
from sapwood.runtimes.local import LocalRuntime
from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart
from sapwood.runtimes.workers.share import WorkerShare
from sapwood.types import Address


@dataclass
class Seen:
    log: list[str] = field(default_factory=list[str])
    go: asyncio.Event = field(default_factory=asyncio.Event)
    needs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Whom each `Early` calls in its start, by their names."""

    async def has(self, entry: str) -> None:
        async with asyncio.timeout(patience()):
            while entry not in self.log:  # noqa: ASYNC110 - a list tells nobody
                await asyncio.sleep(0.001)


class Peer(Agent):
    """Uses another of its kind, by its name."""

    deps: Seen
    migrations = ("CREATE TABLE heard (text TEXT NOT NULL) STRICT",)

    async def play(self, name: str, back: str, times: int) -> int:
        """Call the other, which calls back, and so on."""
        return 0 if times == 0 else 1 + await (await self.get_agent(Peer, name)).play(back, name, times - 1)

    async def hang(self) -> None:
        try:
            self.deps.log.append(f"{self.name} hangs")
            await self.deps.go.wait()
            self.deps.log.append(f"{self.name} went on")
        except asyncio.CancelledError:
            self.deps.log.append(f"{self.name} was cancelled")
            raise

    async def wait_for(self, name: str) -> None:
        await (await self.get_agent(Peer, name)).hang()

    async def hear(self, tell: Callable[[str], Awaitable[int]]) -> list[int]:
        return [await tell("one"), await tell("two")]

    async def lend_to(self, name: str) -> tuple[list[int], list[str]]:
        async def tell(text: str) -> int:
            self.sql("INSERT INTO heard VALUES (?)", text)
            return len(text)

        told = await (await self.get_agent(Peer, name)).hear(tell)
        return told, [str(row["text"]) for row in self.sql("SELECT text FROM heard")]

    async def numbers(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    async def sum_of(self, name: str, upto: int) -> int:
        return sum([number async for number in (await self.get_agent(Peer, name)).numbers(upto)])

    async def fail(self) -> None:
        raise LookupError(f"in {self.name}")

    async def fail_in(self, name: str) -> None:
        await (await self.get_agent(Peer, name)).fail()


class Greeter(Agent):
    """Greets another before it has started, which asks back who it is."""

    deps: Seen

    async def on_start(self) -> None:
        if self.name.startswith("first "):
            host = await self.get_agent(Host, self.name.removeprefix("first "))
            self.deps.log.append(await host.welcome(self.name))

    async def who(self) -> str:
        return f"{self.name}!"


class Host(Agent):
    async def welcome(self, name: str) -> str:
        return await (await self.get_agent(Greeter, name)).who()


class Early(Agent):
    """Needs others for its start, once it may."""

    deps: Seen

    async def on_start(self) -> None:
        self.deps.log.append(f"{self.name} begins")
        await self.deps.go.wait()
        for name in self.deps.needs[self.name]:
            await (await self.get_agent(Early, name)).ready()

    async def ready(self) -> str:
        return self.name


class Hasty(Agent):
    """Gives up whoever it needs for its start if that takes a while; the other of them needs it in turn."""

    deps: Seen

    async def on_start(self) -> None:
        try:
            if self.name == ONE:
                await self._wait_in_vain()
            else:
                self.deps.log.append("the other begins")
                await self.deps.has("gave up")
                await (await self.get_agent(Hasty, ONE)).ready()
        except StartCycle:
            self.deps.log.append("refused")

    async def _wait_in_vain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await self.get_agent(Hasty, TWO)
        self.deps.log.append("gave up")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self.deps.has("refused")

    async def ready(self) -> str:
        return self.name


def of(number: int, which: int = 0) -> str:
    """Return a name whose root this one of two workers runs."""
    part = WorkerPart(number, ShardPlan(2))
    return [f"n{at}" for at in range(100) if part.is_here(Address.root_of("Peer", f"n{at}"))][which]


ONE, TWO = of(0), of(1)


@asynccontextmanager
async def two_workers(seen: Seen) -> AsyncGenerator[list[App], None]:
    folder = Path(tempfile.mkdtemp(prefix="sapwood-"))
    apps: list[App] = []
    try:
        for number in range(2):
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(folder / str(number)))
            listening.listen()
            sockets = {str(one): folder / str(one) for one in range(2)}
            settings = Settings(data=str(folder / "data"))
            share = WorkerShare(WorkerPart(number, ShardPlan(2)), sockets, listening, "secret", listening.fileno())
            runtime = LocalRuntime(settings, share=share)
            apps.append(App(agents=[Peer, Greeter, Host, Early, Hasty], deps=seen, settings=settings, runtime=runtime))
            await apps[-1].__aenter__()
        yield apps
    finally:
        for app in apps:
            await app.__aexit__()
        shutil.rmtree(folder)


async def test_agents_of_two_workers_call_each_other_back_and_forth() -> None:
    async with two_workers(Seen()) as (app, _):
        peer = await app.get_agent(Peer, ONE)

        assert await peer.play(TWO, ONE, 20) == 20
        assert await peer.sum_of(TWO, 100) == sum(range(100))


@pytest.mark.slow
async def test_a_chain_of_calls_is_as_long_as_may_be_however_many_processes_it_crosses() -> None:
    async with two_workers(Seen()) as (app, _):
        peer = await app.get_agent(Peer, ONE)

        assert await peer.play(TWO, ONE, MAX_DEPTH - 1) == MAX_DEPTH - 1
        with pytest.raises(CallTooDeep):
            await peer.play(TWO, ONE, MAX_DEPTH)


async def test_a_call_that_descends_from_a_start_in_another_worker_does_not_wait_for_it() -> None:
    seen = Seen()
    names = [f"n{at}" for at in range(200)]
    apart = next(
        name
        for name in names
        if WorkerPart(0, ShardPlan(2)).is_here(Address.root_of("Host", name))
        != WorkerPart(0, ShardPlan(2)).is_here(Address.root_of("G", f"first {name}"))
    )
    async with two_workers(seen) as (app, _), asyncio.timeout(patience()):
        greeter = await app.get_agent(Greeter, f"first {apart}")

        assert await greeter.who() == f"first {apart}!"
        assert seen.log == [f"first {apart}!"]


async def begun(apps: list[App], seen: Seen) -> list[asyncio.Task[Early]]:
    """Have all who need others begin their start by themselves, and let them go on together."""
    starts = [asyncio.create_task(apps[0].get_agent(Early, name)) for name in seen.needs]
    for name in seen.needs:
        await seen.has(f"{name} begins")
    seen.go.set()
    return starts


@pytest.mark.parametrize("circle", [[ONE, TWO], [ONE, of(0, 1), TWO], [ONE, TWO, of(0, 1), of(1, 1)]])
async def test_agents_of_two_workers_that_wait_for_each_other_s_start_are_refused_naming_the_chain(
    circle: list[str],
) -> None:
    seen = Seen(needs={name: [further] for name, further in zip(circle, circle[1:] + circle[:1], strict=True)})
    async with asyncio.timeout(patience()), two_workers(seen) as apps:
        outcomes = await asyncio.gather(*await begun(apps, seen), return_exceptions=True)

        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert failures
        assert all(isinstance(failure, StartCycle) for failure in failures)
        assert all(f"Early:{name}" in str(failures[0]) for name in circle)


async def test_whoever_gave_up_waiting_for_a_start_at_another_worker_closes_no_circle() -> None:
    seen = Seen()
    async with two_workers(seen) as (app, _):
        other = asyncio.ensure_future(app.get_agent(Hasty, TWO))
        await seen.has("the other begins")

        assert await (await app.get_agent(Hasty, ONE)).ready() == ONE
        assert await (await other).ready() == TWO

    assert "refused" not in seen.log


async def test_starts_of_two_workers_that_wait_in_no_circle_are_served() -> None:
    last, other = of(0, 1), of(1, 1)
    seen = Seen(needs={ONE: [TWO, last], TWO: [other], other: [last], last: []})
    async with asyncio.timeout(patience()), two_workers(seen) as apps:
        agents = await asyncio.gather(*await begun(apps, seen))

        assert [await agent.ready() for agent in agents] == list(seen.needs)


async def test_a_deadline_reaches_the_other_worker() -> None:
    seen = Seen()
    async with two_workers(seen) as (app, _):
        peer = await app.get_agent(Peer, ONE)

        with deadline(0.2), pytest.raises(TimedOut):
            await peer.wait_for(TWO)
        await seen.has(f"{TWO} was cancelled")


async def test_a_call_from_outside_that_is_cancelled_ends_in_the_other_worker_before_its_caller_goes_on() -> None:
    seen = Seen()
    async with two_workers(seen) as (app, _):
        hanging = asyncio.create_task((await app.get_agent(Peer, TWO)).hang())
        await seen.has(f"{TWO} hangs")

        hanging.cancel()
        await asyncio.wait({hanging})
        assert hanging.cancelled()
        assert seen.log[-1] == f"{TWO} was cancelled"


async def test_a_call_that_is_cancelled_from_another_worker_is_no_error_of_its_agent() -> None:
    seen, root = Seen(), Address.root_of("Peer", TWO)
    async with two_workers(seen) as (app, other):
        hanging = asyncio.create_task((await app.get_agent(Peer, TWO)).hang())
        await seen.has(f"{TWO} hangs")
        hanging.cancel()
        await asyncio.wait({hanging})

        actor = other.node.trees[root].actors[root]
        assert actor.last_error is None
        assert not actor.calls


async def test_a_call_that_is_cancelled_before_its_agent_is_awake_ends_at_once() -> None:
    async with two_workers(Seen()) as (app, other), asyncio.timeout(patience()):
        peer = await app.get_agent(Peer, TWO)
        for turns in range(12):
            other.node.sleep()
            calling = asyncio.create_task(peer.hang())
            for _ in range(turns):
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait({calling})
            assert calling.cancelled()


async def test_a_call_that_an_agent_made_goes_on_when_that_is_cancelled() -> None:
    seen = Seen()
    async with two_workers(seen) as (app, _):
        waiting = asyncio.create_task((await app.get_agent(Peer, ONE)).wait_for(TWO))
        await seen.has(f"{TWO} hangs")

        waiting.cancel()
        await asyncio.wait({waiting})
        seen.go.set()
        await seen.has(f"{TWO} went on")


async def test_what_an_agent_lends_to_one_of_another_worker_runs_in_the_lender() -> None:
    async with two_workers(Seen()) as (app, _):
        told, heard = await (await app.get_agent(Peer, ONE)).lend_to(TWO)

        assert told == [3, 3]
        assert heard == ["one", "two"]


async def test_a_callback_of_a_worker_that_died_is_not_taken_for_one_of_its_successor() -> None:
    lent: list[set[int]] = []
    for _ in range(2):
        async with two_workers(Seen()) as (app, _other):
            far = app.node.far
            assert far is not None

            async def tell(text: str, far: Peers = far) -> int:
                lent.append({*far.lent})
                return len(text)

            await (await app.get_agent(Peer, TWO)).hear(tell)

    assert lent[0] == lent[1], "it is one callback, called twice"
    assert lent[0].isdisjoint(lent[2])


async def test_an_error_keeps_its_type_and_says_where_it_comes_from_through_two_workers() -> None:
    async with two_workers(Seen()) as (app, _):
        with pytest.raises(LookupError, match=f"in {TWO}") as caught:
            await (await app.get_agent(Peer, ONE)).fail_in(TWO)

    assert isinstance(caught.value, Crashed)
    assert caught.value.path == (("Peer", TWO),)


async def test_when_a_worker_stops_whoever_asked_it_is_told() -> None:
    seen = Seen()
    async with two_workers(seen) as (app, other):
        waiting = asyncio.create_task((await app.get_agent(Peer, ONE)).wait_for(TWO))
        await seen.has(f"{TWO} hangs")
        await other.__aexit__()

        with pytest.raises(Unavailable):
            await waiting
