"""Calls: any public method, awaited, interleaved with others at its awaits."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, cast

import pytest
from tests.conformance.worlds import Branch, Probe, Run
from tests.machine import patience

from sapwood import Agent, Refused, current_agent
from sapwood.errors import CallTooDeep, Crashed, NoSuchMethod

pytestmark = pytest.mark.core("workers", "cluster")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its plain method is meant

    class Machine(Agent):
        """Every shape a method may have."""

        motto = "no method"

        async def on_start(self) -> None:
            self.secret = 1

        async def async_method(self, x: int) -> int:
            await asyncio.sleep(0)
            return x + 1

        def plain_method(self, x: int) -> int:
            return x + 2

        async def defaults(self, a: int, b: int = 20, *, c: int = 300) -> int:
            return a + b + c

        async def many(self, *numbers: int, **named: int) -> tuple[int, dict[str, int]]:
            return sum(numbers), named

        async def positional_only(self, a: int, /, b: int) -> int:
            return a * 10 + b

        async def nothing(self) -> None:
            return None

        async def _private(self) -> str:
            return "private"

        @property
        def size(self) -> int:
            return 3

        @staticmethod
        async def loose(x: int) -> int:
            return x

    class Heir(Machine):
        async def defaults(self, a: int, b: int = 2, *, c: int = 3) -> int:
            return -(await super().defaults(a, b, c=c))


@pytest.mark.promise("A-41", "A-47", "A-225", "CF-1")
async def test_methods_are_called_with_arguments_in_every_way_python_has(run: Run) -> None:
    async with run(Machine) as world:
        machine = await world.get_agent(Machine, "m")

        assert await machine.async_method(1) == 2
        assert await machine.async_method(x=1) == 2
        assert await machine.defaults(1) == 321
        assert await machine.defaults(1, 2) == 303
        assert await machine.defaults(1, b=2, c=3) == 6
        assert await machine.many(1, 2, 3, x=4, y=5) == (6, {"x": 4, "y": 5})
        assert await machine.many() == (0, {})
        assert await machine.positional_only(1, 2) == 12
        assert await machine.positional_only(1, b=2) == 12
        assert await machine.nothing() is None


@pytest.mark.promise("A-41", "CF-1")
async def test_a_plain_method_is_awaited_like_any_other(run: Run) -> None:
    async with run(Machine) as world:
        machine = await world.get_agent(Machine, "m")

        assert await cast(Any, machine).plain_method(1) == 3


@pytest.mark.promise("A-41")
async def test_inherited_and_overridden_methods_are_called_as_in_python(run: Run) -> None:
    async with run(Heir) as world:
        heir = await world.get_agent(Heir, "h")

        assert await heir.async_method(1) == 2
        assert await heir.defaults(1) == -6


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"d": 4}, "unexpected keyword argument 'd'"),
        ((1,), {"a": 2}, "multiple values for argument 'a'"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_naming_the_method(
    run: Run, args: tuple[int, ...], kwargs: dict[str, int], said: str
) -> None:
    async with run(Machine) as world:
        machine = cast(Any, await world.get_agent(Machine, "m"))

        with pytest.raises(Refused, match=rf"Machine\.defaults\(\): .*{said}") as refused:
            await machine.defaults(*args, **kwargs)
        assert refused.value.code == "invalid_arguments"


HIDDEN = ["_private", "__init__", "_actor", "motto", "size", "secret", "loose", "nowhere"]


@pytest.mark.parametrize("name", HIDDEN)
async def test_what_is_no_public_method_cannot_be_reached(run: Run, name: str) -> None:
    async with run(Machine) as world:
        machine = await world.get_agent(Machine, "m")

        if name != "__init__":
            assert not hasattr(machine, name)
        with pytest.raises(NoSuchMethod, match=rf"Machine\.{name} "):
            type(machine).__getattr__(machine, name)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.promise("A-56")
async def test_of_what_agent_itself_defines_others_reach_what_watches_counts_and_answers(run: Run) -> None:
    shown = {"subscribe", "questions", "spending"}
    names = [name for name in dir(Agent) if not name.startswith("__") and name not in shown]
    assert {"sql", "set_state", "state", "destroy", "on_start", "sub_agent", "deps"} - set(names) <= {"deps"}
    async with run(Machine) as world:
        machine = await world.get_agent(Machine, "m")

        for name in [*names, "deps"]:
            assert not hasattr(machine, name), name


async def test_an_unknown_method_is_refused_with_those_there_are(run: Run) -> None:
    async with run(Machine) as world:
        machine = cast(Any, await world.get_agent(Machine, "m"))

        with pytest.raises(NoSuchMethod, match=r"does not exist. Public methods: async_method, defaults"):
            await machine.asnyc_method(1)
        with pytest.raises(NoSuchMethod, match="is private to the agent"):
            await machine.sql("SELECT 1")
        with pytest.raises(NoSuchMethod, match="is not a method; define an async method that returns it"):
            await machine.size


class Meeting(Agent):
    deps: Probe

    async def wait(self) -> str:
        self.deps.log.append(f"{self.name} waits")
        await self.deps.go.wait()
        return self.name

    async def release(self) -> None:
        self.deps.go.set()

    async def all_wait(self, names: list[str]) -> list[str]:
        children = [await self.sub_agent(Meeting, name) for name in names]
        return await asyncio.gather(*(child.wait() for child in children))

    async def call_back(self) -> str:
        parent = await self.parent_agent(Meeting)
        return await parent.greeting()

    async def greeting(self) -> str:
        return f"hello from {self.name}"

    async def ask_child_that_calls_back(self) -> str:
        return await (await self.sub_agent(Meeting, "child")).call_back()

    async def call_self(self) -> str:
        me = await self.get_agent(Meeting, self.name)
        return await me.greeting()

    async def down(self, left: int) -> int:
        if left == 0:
            return 0
        child = await self.sub_agent(Meeting, "child")
        return 1 + await child.up(left - 1)

    async def up(self, left: int) -> int:
        if left == 0:
            return 0
        return 1 + await (await self.parent_agent(Meeting)).down(left - 1)

    async def note(self, text: str) -> None:
        for _ in range(3):
            self.deps.log.append(text)
            await asyncio.sleep(0)

    async def add(self) -> int:
        value = getattr(self, "value", 0)
        self.value = value + 1
        return self.value

    async def who(self) -> str:
        assert current_agent() is self
        return self.name

    async def who_below(self) -> list[str]:
        below = await (await self.sub_agent(Meeting, "child")).who()
        return [below, await self.who()]


@pytest.mark.promise("A-40", "A-225", "CF-5")
async def test_several_children_work_at_the_same_time_and_answer_each_for_itself(run: Run, probe: Probe) -> None:
    names = [f"c{n}" for n in range(10)]
    async with run(Meeting, deps=probe) as world:
        root = await world.get_agent(Meeting, "r")
        call = asyncio.create_task(root.all_wait(names))
        for name in names:
            await probe.seen(f"{name} waits")

        await root.release()

        assert await call == names


async def test_calls_into_one_agent_interleave_at_awaits_and_only_there(run: Run, probe: Probe) -> None:
    async with run(Meeting, deps=probe) as world:
        root = await world.get_agent(Meeting, "r")

        await asyncio.gather(root.note("a"), root.note("b"))
        sums = await asyncio.gather(*(root.add() for _ in range(50)))

        assert probe.log == ["a", "b", "a", "b", "a", "b"]
        assert sorted(sums) == list(range(1, 51))


async def test_a_child_may_call_the_parent_that_waits_for_it(run: Run, probe: Probe) -> None:
    async with run(Meeting, deps=probe) as world, asyncio.timeout(patience()):
        root = await world.get_agent(Meeting, "r")

        assert await root.ask_child_that_calls_back() == "hello from r"
        assert await root.down(40) == 40


async def test_an_agent_may_call_itself_through_a_stub(run: Run, probe: Probe) -> None:
    async with run(Meeting, deps=probe) as world, asyncio.timeout(patience()):
        root = await world.get_agent(Meeting, "r")

        assert await root.call_self() == "hello from r"


async def test_a_chain_of_calls_that_is_too_long_is_refused_with_its_end(run: Run, probe: Probe) -> None:
    async with run(Meeting, deps=probe) as world:
        root = await world.get_agent(Meeting, "r")

        assert await root.down(127) == 127
        with pytest.raises(CallTooDeep, match=r"limit of 128.*Meeting:r\.down → Meeting:r/Meeting:child\.up") as deep:
            await root.down(128)
        assert deep.value.code == "call_too_deep"
        assert await root.greeting() == "hello from r"


async def test_current_agent_is_the_one_whose_code_is_running(run: Run, probe: Probe) -> None:
    async with run(Meeting, deps=probe) as world:
        root = await world.get_agent(Meeting, "r")

        assert await root.who_below() == ["child", "r"]
        assert current_agent() is None


async def test_an_attribute_of_memory_lives_as_long_as_the_agent(run: Run, probe: Probe) -> None:
    async with run(Meeting, deps=probe) as world:
        root = await world.get_agent(Meeting, "r")
        await root.add()
        assert await root.add() == 2

        world.sleep()

        assert await root.add() == 1


async def test_what_a_method_cancels_in_itself_is_an_error_of_the_agent_not_of_the_caller(run: Run) -> None:
    class Clumsy(Agent):
        async def cancel_inside(self) -> None:
            task = asyncio.ensure_future(asyncio.sleep(1000))
            task.cancel()
            await task

    async with run(Clumsy) as world:
        clumsy = await world.get_agent(Clumsy, "c")

        with pytest.raises(Crashed, match="cancelled"):
            await clumsy.cancel_inside()


async def test_a_method_that_ends_with_no_ordinary_exception_leaves_no_caller_waiting(run: Run) -> None:
    class Odd(BaseException):
        pass

    class Oddity(Agent):
        async def odd(self) -> None:
            raise Odd("not an Exception")

        async def fine(self) -> str:
            return "fine"

    async with run(Oddity) as world, asyncio.timeout(patience()):
        oddity = await world.get_agent(Oddity, "o")

        with pytest.raises(Crashed, match="not an Exception"):
            await oddity.odd()
        assert await oddity.fine() == "fine"


async def test_a_call_is_sent_when_it_is_awaited_with_what_its_arguments_were_when_it_was_made(run: Run) -> None:
    class Keep(Agent):
        async def take(self, items: list[int]) -> list[int]:
            return items

    async with run(Keep) as world:
        keep = await world.get_agent(Keep, "k")
        items = [1]

        call = keep.take(items)
        items.append(2)

        assert await call == [1]


async def test_a_reply_never_overtakes_what_was_written_before_it(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")

        for n in range(5):
            await root.note(str(n))
            await world.crash()
            root = await world.get_agent(Branch, "r")
            assert len(await root.notes()) == n + 1
