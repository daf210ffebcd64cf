"""Callbacks: functions and objects that another agent may call while it works for you, and not a moment longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from tests.conformance.worlds import Probe, Run, until
from tests.machine import patience

from sapwood import Agent, Callback, Refused, current_agent
from sapwood.errors import Aborted, Crashed, UsageError

pytestmark = pytest.mark.core("workers", "cluster")

color: ContextVar[str] = ContextVar("callback_color", default="none")

OnChunk = Callable[[str], Awaitable[Any]]


@dataclass
class Chunk:
    text: str


class Listener(Callback):
    """Hears what a streamer says."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ended: list[int] = []

    async def on_chunk(self, text: str) -> int:
        await asyncio.sleep(0)
        self.heard.append(text)
        return len(self.heard)

    def on_end(self, total: int) -> None:
        self.ended.append(total)

    async def _private(self) -> None: ...


class Streamer(Agent):
    migrations = ("CREATE TABLE chunks (text TEXT NOT NULL) STRICT",)

    async def on_start(self) -> None:
        self.kept: Any = None

    async def say(self, text: str, on_chunk: OnChunk) -> None:
        for word in text.split():
            await on_chunk(word)

    async def say_and_write(self, text: str, on_chunk: OnChunk) -> int:
        for word in text.split():
            self.sql("INSERT INTO chunks VALUES (?)", word)
            await on_chunk(word)
        return self.sql("SELECT count(*) FROM chunks").scalar(int)

    async def written(self) -> int:
        return self.sql("SELECT count(*) FROM chunks").scalar(int)

    async def talk_to(self, text: str, listener: Listener) -> list[int]:
        counts = [await listener.on_chunk(word) for word in text.split()]
        await cast(Any, listener).on_end(len(counts))
        return counts

    async def misuse(self, listener: Listener, name: str) -> None:
        await getattr(listener, name)()

    async def keep(self, on_chunk: OnChunk) -> None:
        self.kept = on_chunk

    async def use_kept(self) -> None:
        await self.kept("late")

    async def give(self, chunk: Chunk, on_chunk: Callable[[Chunk], Awaitable[None]]) -> str:
        await on_chunk(chunk)
        return chunk.text

    async def pass_on(self, on_chunk: OnChunk) -> None:
        await (await self.sub_agent(Streamer, "below")).say("passed on", on_chunk)

    async def pass_on_object(self, listener: Listener) -> list[int]:
        return await (await self.sub_agent(Streamer, "below")).talk_to("passed on", listener)

    async def kinds(self, question: Callable[[], Awaitable[Any]]) -> str:
        return repr(await question())

    async def ask(self, question: Callable[[], Awaitable[str]]) -> str:
        return await question()

    async def callback_to_callback(self, on_chunk: Callable[[Any], Awaitable[None]]) -> None:
        async def mine(text: str) -> None: ...

        await on_chunk(mine)

    async def hang_with(self, on_chunk: OnChunk) -> None:
        await on_chunk("hanging")
        await asyncio.get_running_loop().create_future()


class Host(Agent):
    """Passes callbacks of its own to its children."""

    deps: Probe

    async def on_start(self) -> None:
        self.heard: list[str] = []

    async def hear(self, name: str, text: str) -> list[str]:
        child = await self.sub_agent(Streamer, name)
        heard: list[str] = []

        async def on_chunk(word: str) -> None:
            assert current_agent() is self
            heard.append(f"{name}: {word}")

        await child.say(text, on_chunk)
        return heard

    async def hear_all(self, names: list[str]) -> list[list[str]]:
        return await asyncio.gather(*(self.hear(name, f"this is {name}") for name in names))

    async def hear_by_method(self) -> list[str]:
        await (await self.sub_agent(Streamer, "s")).say("by method", self.on_word)
        return self.heard

    async def on_word(self, word: str) -> None:
        self.heard.append(word)
        self.sql("CREATE TABLE IF NOT EXISTS heard (word TEXT)")
        self.sql("INSERT INTO heard VALUES (?)", word)

    async def stop(self, name: str) -> None:
        self.children.abort(Streamer, name, "enough")

    async def make(self, name: str) -> None:
        await self.sub_agent(Streamer, name)


@pytest.mark.promise("A-48", "A-225", "CF-14")
async def test_a_function_receives_one_or_many_chunks_in_order(run: Run) -> None:
    heard: list[str] = []

    async def on_chunk(text: str) -> None:
        await asyncio.sleep(0)
        heard.append(text)

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        await streamer.say("one", on_chunk)
        assert heard == ["one"]
        words = [str(n) for n in range(200)]
        await streamer.say(" ".join(words), on_chunk)
        assert heard[1:] == words


async def test_a_plain_function_is_called_too(run: Run) -> None:
    heard: list[str] = []
    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        await streamer.say("a b", cast(Any, heard.append))
        await streamer.say("c", cast(Any, lambda text: heard.append(text.upper())))

        assert heard == ["a", "b", "C"]


@pytest.mark.promise("A-48", "CF-14")
async def test_an_object_s_public_methods_are_called_and_return_values(run: Run) -> None:
    listener = Listener()
    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        assert await streamer.talk_to("a b c", listener) == [1, 2, 3]

        assert listener.heard == ["a", "b", "c"]
        assert listener.ended == [3]
        for name in ("_private", "nothing", "heard"):
            with pytest.raises(Refused, match=f"Listener has no public method '{name}'"):
                await streamer.misuse(listener, name)


@pytest.mark.promise("CF-15")
async def test_what_is_written_while_streaming_is_kept(run: Run) -> None:
    async def on_chunk(text: str) -> None: ...

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        assert await streamer.say_and_write("a b c", on_chunk) == 3

        await world.crash()
        streamer = await world.get_agent(Streamer, "s")
        assert await streamer.written() == 3


async def test_a_callback_sees_only_what_is_already_kept(run: Run) -> None:
    heard: list[str] = []
    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        async def crash_at_two(text: str) -> None:
            heard.append(text)
            if len(heard) == 2:
                crashed.set()
                await asyncio.get_running_loop().create_future()

        crashed = asyncio.Event()
        call = asyncio.create_task(streamer.say_and_write("a b c", crash_at_two))
        await crashed.wait()
        await world.crash()

        await asyncio.gather(call, return_exceptions=True)
        streamer = await world.get_agent(Streamer, "s")
        assert await streamer.written() == len(heard) == 2


@pytest.mark.promise("CF-16")
async def test_callbacks_of_several_children_at_once_do_not_mix(run: Run, probe: Probe) -> None:
    names = [f"c{n}" for n in range(5)]
    async with run(Host, deps=probe) as world:
        host = await world.get_agent(Host, "h")

        heard = await host.hear_all(names)

        assert heard == [[f"{name}: this", f"{name}: is", f"{name}: {name}"] for name in names]


@pytest.mark.promise("CF-16")
async def test_callbacks_of_several_calls_to_one_child_do_not_mix(run: Run, probe: Probe) -> None:
    async with run(Host, deps=probe) as world:
        host = await world.get_agent(Host, "h")

        heard = await asyncio.gather(*(host.hear("same", f"call {n}") for n in range(5)))

        assert heard == [["same: call", f"same: {n}"] for n in range(5)]


async def test_a_method_of_an_agent_can_be_a_callback_and_runs_in_that_agent(run: Run, probe: Probe) -> None:
    async with run(Host, deps=probe) as world:
        host = await world.get_agent(Host, "h")

        assert await host.hear_by_method() == ["by", "method"]


async def test_a_callback_can_be_passed_on_to_a_child(run: Run) -> None:
    heard: list[str] = []
    listener = Listener()

    async def on_chunk(text: str) -> None:
        heard.append(text)

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        await streamer.pass_on(on_chunk)
        assert await streamer.pass_on_object(listener) == [1, 2]

        assert heard == listener.heard == ["passed", "on"]


async def test_a_callback_is_refused_once_its_call_has_ended(run: Run) -> None:
    heard: list[str] = []

    async def on_chunk(text: str) -> None:
        heard.append(text)

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")
        await streamer.keep(on_chunk)

        with pytest.raises(UsageError, match="'on_chunk' was called after the call that it was passed to had finished"):
            await streamer.use_kept()

        assert heard == []


async def test_what_a_callback_is_given_is_a_copy(run: Run) -> None:
    async def on_chunk(chunk: Chunk) -> None:
        chunk.text = "changed"

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        assert await streamer.give(Chunk("mine"), on_chunk) == "mine"


async def test_what_a_callback_returns_is_what_it_is_annotated_with_also_inside_of_others(run: Run) -> None:
    async def named() -> dict[str, list[Chunk | UUID]]:
        return {"all": [Chunk("a"), UUID(int=1)]}

    async def pairs() -> list[tuple[Chunk, set[Decimal]]]:
        return [(Chunk("b"), {Decimal("0.10")})]

    async def unnamed() -> Any:
        return [Chunk("c")]

    async with run(Streamer) as world:
        agent = await world.get_agent(Streamer, "s")

        assert await agent.kinds(named) == repr(await named())
        assert await agent.kinds(pairs) == repr(await pairs())
        assert await agent.kinds(unnamed) == repr([{"text": "c"}])


async def test_a_callback_s_arguments_are_checked_by_its_annotations(run: Run) -> None:
    async def on_chunk(number: int) -> None: ...

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        with pytest.raises(Refused, match=r"on_chunk\(\) argument 'number' does not fit: Expected `int`, got `str`"):
            await streamer.say("one", cast(Any, on_chunk))


async def test_an_error_in_a_callback_goes_through_the_agent_back_to_the_caller(run: Run) -> None:
    heard: list[str] = []

    async def on_chunk(text: str) -> None:
        heard.append(text)
        if text == "b":
            raise LookupError("I do not like b")

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        with pytest.raises(LookupError, match="I do not like b") as raised:
            await streamer.say("a b c", on_chunk)

        assert isinstance(raised.value, Crashed)
        assert heard == ["a", "b"]


async def test_a_callback_runs_in_the_context_of_the_one_who_passed_it(run: Run) -> None:
    seen: list[object] = []

    async def on_chunk(text: str) -> None:
        seen.append((color.get(), current_agent()))

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")
        color.set("mine")

        await streamer.say("a", on_chunk)

        assert seen == [("mine", None)]


async def test_a_callback_may_call_the_agent_that_called_it(run: Run) -> None:
    async with run(Streamer) as world, asyncio.timeout(patience()):
        streamer = await world.get_agent(Streamer, "s")

        async def question() -> str:
            return f"{await streamer.written()} written"

        assert await streamer.ask(question) == "0 written"


async def test_a_callback_cannot_be_given_to_a_callback(run: Run) -> None:
    async def on_chunk(given: Any) -> None: ...

    async with run(Streamer) as world:
        streamer = await world.get_agent(Streamer, "s")

        with pytest.raises(UsageError, match="cannot be passed to a callback"):
            await streamer.callback_to_callback(on_chunk)


async def test_a_callback_inside_a_value_is_refused(run: Run) -> None:
    class Taker(Agent):
        async def take(self, value: Any) -> None: ...

    async def on_chunk(text: str) -> None: ...

    async with run(Taker) as world:
        taker = await world.get_agent(Taker, "t")

        with pytest.raises(UsageError, match=r"Taker\.take\(\) argument 'value' cannot be copied"):
            await taker.take({"on_chunk": on_chunk})


async def test_an_aborted_agent_calls_no_callback_any_more(run: Run, probe: Probe) -> None:
    heard: list[str] = []

    async def on_chunk(text: str) -> None:
        heard.append(text)

    async with run(Host, deps=probe) as world:
        host = await world.get_agent(Host, "h")
        await host.make("s")
        streamer = await world.get_agent(Host, "h", sub=[(Streamer, "s")])
        call = asyncio.create_task(streamer.hang_with(on_chunk))
        await until(lambda: bool(heard))

        await host.stop("s")

        with pytest.raises(Aborted, match="enough"):
            await call
        assert heard == ["hanging"]
