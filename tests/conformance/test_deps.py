"""Dependencies: given to the app once, read by every agent, checked where a class says what it wants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from tests.conformance.runtimes import running
from tests.conformance.worlds import Probe, Run

from sapwood import Agent, App
from sapwood.errors import UsageError


@pytest.fixture
def level() -> str:
    """Return one level of durability; nothing here depends on it."""
    return "process"


@dataclass
class Tools:
    greeting: str


class Greets(Protocol):
    greeting: str


class Greeter(Agent):
    deps: Tools

    async def greet(self) -> str:
        return self.deps.greeting

    async def greet_below(self) -> str:
        return await (await self.sub_agent(Greeter, "below")).greet()


class Wrong(Agent):
    deps: Probe

    async def ping(self) -> None: ...


class Careless(Agent):
    async def make(self) -> None:
        await self.sub_agent(Wrong, "w")

    async def child_names(self) -> int:
        return len(self.children.list())


async def test_a_value_is_handed_to_every_agent_as_it_is(run: Run) -> None:
    tools = Tools("hello")
    async with run(Greeter, deps=tools) as world:
        greeter = await world.get_agent(Greeter, "g")

        assert await greeter.greet() == "hello"
        assert await greeter.greet_below() == "hello"
        tools.greeting = "changed"
        assert await greeter.greet() == "changed"


async def test_an_async_context_manager_is_opened_at_the_start_and_closed_at_the_end(run: Run) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def open_tools() -> AsyncIterator[Tools]:
        log.append("open")
        yield Tools("opened")
        log.append("close")

    async with run(Greeter, deps=open_tools) as world:
        assert await (await world.get_agent(Greeter, "g")).greet() == "opened"
        assert log == ["open"]

    assert log == ["open", "close"]


async def test_a_root_that_wants_other_deps_is_refused_when_the_app_starts(run: Run) -> None:
    with pytest.raises(UsageError, match="Wrong expects deps of type Probe, got Tools"):
        async with run(Wrong, deps=Tools("hello")):
            raise AssertionError("It should not start.")


async def test_a_child_that_wants_other_deps_is_refused_when_it_starts(run: Run) -> None:
    async with run(Careless, deps=Tools("hello")) as world:
        careless = await world.get_agent(Careless, "c")

        with pytest.raises(UsageError, match="Wrong expects deps of type Probe"):
            await careless.make()

        assert await careless.child_names() == 0


async def test_an_app_without_deps_has_none(run: Run) -> None:
    class Plain(Agent):
        async def has_none(self) -> bool:
            return self.deps is None

    async with run(Plain) as world:
        assert await (await world.get_agent(Plain, "p")).has_none()


@pytest.mark.parametrize("annotation", [Any, "Any", "Tools | None", "Probe | Tools", object, "Greets"])
async def test_an_annotation_that_fits_in_part_is_enough(run: Run, annotation: Any) -> None:
    plain = type("Plain", (Agent,), {"__annotations__": {"deps": annotation}, "__module__": __name__})

    async with run(plain, deps=Tools("hello")) as world:
        assert await world.get_agent(plain, "p")


async def test_a_function_that_opens_nothing_is_refused() -> None:
    app = App(agents=[Greeter], deps=lambda: Tools("hello"))

    with pytest.raises(UsageError, match="a function that returns an async context manager"):
        async with running(app):
            raise AssertionError("It should not start.")
