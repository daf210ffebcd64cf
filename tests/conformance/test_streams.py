"""Streams: an async generator runs in its own agent, no faster than it is read, and ends with its reader."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import pytest
from tests.conformance.worlds import Probe, Run, until
from tests.machine import patience

from sapwood import Agent, Limits, NotFound, OverLimit, Refused, TimedOut, deadline
from sapwood.errors import Aborted, Crashed, InvalidResult, UsageError

pytestmark = pytest.mark.core("workers", "cluster")

color: ContextVar[str] = ContextVar("color", default="none")


@dataclass
class Item:
    n: int
    tags: list[str]


class Spring(Agent):
    """Makes streams, and tells the probe how far it is."""

    deps: Probe
    migrations = ("CREATE TABLE drops (n INTEGER NOT NULL) STRICT",)

    async def count(self, to: int) -> AsyncIterator[int]:
        try:
            for n in range(to):
                self.deps.log.append(f"{self.name} {n}")
                yield n
        finally:
            self.deps.log.append(f"{self.name} closed")

    async def items(self) -> AsyncIterator[Item]:
        item = Item(0, [])
        for n in range(3):
            item.n = n
            item.tags.append(str(n))
            yield item

    async def numbers(self) -> AsyncGenerator[int, None]:
        yield 1

    async def more_numbers(self) -> AsyncIterable[int]:
        yield 2

    async def unannotated(self):
        yield {"a": [1]}

    async def drops(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            self.sql("INSERT INTO drops VALUES (?)", n)
            yield n

    async def dropped(self) -> int:
        return self.sql("SELECT count(*) FROM drops").scalar(int)

    async def break_at(self, n: int) -> AsyncIterator[int]:
        for m in range(n):
            yield m
        raise ValueError(f"broken at {n}")

    async def wrong(self) -> AsyncIterator[int]:
        yield 1
        yield cast(Any, "two")

    async def empty(self) -> AsyncIterator[int]:
        return
        yield 0

    async def forever(self) -> AsyncIterator[str]:
        task = asyncio.current_task()
        token = color.set("inside")
        try:
            yield "first"
            await self.deps.go.wait()
            yield "second"
        finally:
            # Only in the task and context that it began in can this be undone.
            assert asyncio.current_task() is task
            color.reset(token)
            self.deps.log.append("unwound")

    async def slow_to_unwind(self) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.deps.log.append("unwound")

    async def cancels_itself(self) -> AsyncIterator[int]:
        yield 1
        task = asyncio.ensure_future(asyncio.sleep(1000))
        task.cancel()
        await task
        yield 2

    async def large(self, size: int) -> AsyncIterator[str]:
        yield "x" * size

    async def relay(self, to: int) -> AsyncIterator[int]:
        child = await self.sub_agent(Spring, "source")
        async for n in child.count(to):
            yield n * 10

    async def relay_forever(self) -> AsyncIterator[str]:
        child = await self.sub_agent(Spring, "source")
        async for text in child.forever():
            yield text

    async def stop_source(self) -> None:
        self.children.abort(Spring, "source", "dry")

    async def delete_source(self) -> None:
        await self.children.delete(Spring, "source")

    async def interleaved(self) -> list[int]:
        """Read two streams of two children in turns."""
        one = await self.sub_agent(Spring, "one")
        two = await self.sub_agent(Spring, "two")
        both: list[int] = []
        second = two.count(5)
        async for n in one.count(5):
            both += [n, await anext(second)]
        return both

    async def last_error(self) -> str | None:
        return self.children.status(Spring, "source").last_error

    async def ping(self) -> str:
        return "pong"


async def read(stream: AsyncIterator[Any], into: list[Any] | None = None) -> None:
    """Read a stream to its end."""
    async for item in stream:
        if into is not None:
            into.append(item)


@pytest.mark.promise("B-29")
async def test_items_arrive_in_order_and_the_stream_ends(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        assert [n async for n in spring.count(100)] == list(range(100))
        assert [n async for n in spring.empty()] == []
        assert [n async for n in spring.numbers()] == [1]
        assert [n async for n in spring.more_numbers()] == [2]
        assert [n async for n in cast(Any, spring).unannotated()] == [{"a": [1]}]
        assert probe.log[-1] == "s closed"


async def test_each_item_is_a_copy_of_what_was_yielded_then(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        items: list[Item] = []
        async for item in spring.items():
            items.append(item)
            item.tags.append("changed by the reader")

        assert [item.n for item in items] == [0, 1, 2]
        assert items[2].tags[:3] == ["0", "1", "2"]


async def test_a_stream_begins_when_it_is_first_read(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        stream = spring.count(3)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert probe.log == []
        assert await anext(stream) == 0


@pytest.mark.promise("B-29")
async def test_a_generator_runs_ahead_of_its_reader_by_a_bounded_number_of_items(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        stream = spring.count(1000)

        assert await anext(stream) == 0
        await until(lambda: len(probe.log) > 2)  # it runs ahead
        for _ in range(1000):
            await asyncio.sleep(0)

        for read in range(1, 1000):
            assert len(probe.log) - read < 20
            assert await anext(stream) == read


@pytest.mark.promise("B-29")
async def test_breaking_off_closes_the_generator(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        async for n in spring.count(1000):
            if n == 3:
                break

        await probe.seen("s closed")
        assert len(probe.log) < 40


async def test_a_generator_unwinds_in_the_task_and_context_it_began_in(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        async for text in spring.forever():
            assert text == "first"
            assert color.get() == "none"
            break

        await probe.seen("unwound")
        assert color.get() == "none"


async def test_aclose_returns_when_the_generator_has_unwound(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        async with aclosing(cast(Any, spring.slow_to_unwind())) as stream:
            assert await anext(stream) == 1

        assert probe.log == ["unwound"]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_cancelling_the_reader_closes_the_generator(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        reading = asyncio.create_task(read(spring.forever(), into=probe.log))
        await probe.seen("first")

        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

        await probe.seen("unwound")


@pytest.mark.slow
async def test_an_iterator_that_is_let_go_closes_the_generator(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        stream = spring.forever()
        assert await anext(stream) == "first"

        del stream
        gc.collect()

        await probe.seen("unwound")


async def test_an_abort_ends_the_stream_with_its_reason(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        stream = spring.relay_forever()
        assert await anext(stream) == "first"

        await spring.stop_source()

        with pytest.raises(Aborted, match="dry") as aborted:
            await anext(stream)
        assert aborted.value.path[-1] == ("Spring", "source")
        await probe.seen("unwound")


async def test_a_deletion_ends_the_stream(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        await read(spring.relay(1))
        source = await world.get_agent(Spring, "s", sub=[(Spring, "source")])
        stream = source.forever()
        assert await anext(stream) == "first"

        await spring.delete_source()

        with pytest.raises(NotFound):
            await anext(stream)


async def test_an_error_in_the_middle_comes_after_the_items_before_it(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        seen: list[int] = []

        with pytest.raises(ValueError, match="broken at 3") as broken:
            await read(spring.break_at(3), into=seen)

        assert seen == [0, 1, 2]
        assert isinstance(broken.value, Crashed)
        assert broken.value.path == (("Spring", "s"),)
        assert "break_at" in broken.value.remote_traceback
        assert await spring.ping() == "pong"


async def test_something_cancelled_inside_a_generator_is_an_error_and_not_the_end(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        with pytest.raises(Crashed, match="cancelled"):
            await read(spring.cancels_itself())


async def test_an_item_that_does_not_fit_is_an_error_naming_the_method(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe, limits=Limits(payload_bytes=100)) as world:
        spring = await world.get_agent(Spring, "s")

        with pytest.raises(InvalidResult, match=r"wrong\(\) does not fit: Expected `int`, got `str`"):
            await read(spring.wrong())
        assert [len(text) async for text in spring.large(100)] == [100]
        with pytest.raises(OverLimit, match=r"large\(\) has 101 bytes"):
            await read(spring.large(101))


async def test_bad_arguments_are_refused_when_the_stream_is_asked_for(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = cast(Any, await world.get_agent(Spring, "s"))

        with pytest.raises(Refused, match=r"Spring\.count\(\) argument 'to' does not fit"):
            spring.count("ten")


async def test_streams_nest(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        assert [n async for n in spring.relay(50)] == [n * 10 for n in range(50)]


async def test_breaking_off_a_nested_stream_closes_it_to_the_bottom(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        async for n in spring.relay(1000):
            if n == 30:
                break

        await probe.seen("source closed")


async def test_two_streams_at_once_do_not_mix(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        first, second = spring.count(30), spring.count(30)
        pairs = [(await anext(first), await anext(second)) for _ in range(30)]

        assert pairs == [(n, n) for n in range(30)]
        assert await spring.interleaved() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


async def test_calls_are_served_while_a_stream_is_open(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        stream = spring.forever()
        await anext(stream)

        assert await spring.ping() == "pong"
        probe.go.set()
        assert await anext(stream) == "second"


async def test_what_was_written_before_an_item_survives_a_crash_after_it(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        stream = spring.drops(1000)
        for _ in range(3):
            last = await anext(stream)

        await world.crash()

        spring = await world.get_agent(Spring, "s")
        assert await spring.dropped() > last


async def test_an_agent_that_streams_does_not_sleep(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        stream = spring.forever()
        await anext(stream)

        world.sleep()
        probe.go.set()

        assert await anext(stream) == "second"


async def test_a_deadline_ends_a_stream(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")

        with pytest.raises(TimedOut, match="forever"), deadline(0.1):
            await read(spring.forever())

        await probe.seen("unwound")


async def test_an_error_in_a_stream_is_the_agent_s_last_error(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world:
        spring = await world.get_agent(Spring, "s")
        await read(spring.relay(1))
        source = await world.get_agent(Spring, "s", sub=[(Spring, "source")])

        with pytest.raises(ValueError, match="broken"):
            await read(source.break_at(1))

        assert "broken at 1" in str(await spring.last_error())


async def test_a_stream_is_read_by_one_task_at_a_time(run: Run, probe: Probe) -> None:
    async with run(Spring, deps=probe) as world, asyncio.timeout(patience()):
        spring = await world.get_agent(Spring, "s")
        stream = spring.forever()
        await anext(stream)

        first = asyncio.create_task(cast(Any, anext(stream)))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="one task at a time"):
            await anext(stream)

        probe.go.set()
        assert await first == "second"
