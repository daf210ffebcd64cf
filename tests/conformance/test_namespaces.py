"""Namespaces: what an agent manages is under a name of its own, so that the flat names stay few and free."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest
from tests.conformance.worlds import Run

from sapwood import Agent, ChatAgent
from sapwood.agent_checks import RESERVED
from sapwood.errors import NoSuchMethod, UsageError
from sapwood.kernel.marshal.namespace import Namespace


def names_of(cls: type[Agent[Any]]) -> tuple[set[str], set[str]]:
    """Return the flat names and the namespaces of a class, without hooks and settings."""
    own = vars(cls)["_hooks"] | vars(cls)["_settings"]
    names = {name for name in dir(cls) if not name.startswith("_")} - own
    namespaces = {name for name in names if isinstance(inspect.getattr_static(cls, name), Namespace)}
    return names - namespaces, namespaces


@pytest.mark.parametrize("cls", [Agent, ChatAgent])
def test_an_agent_has_at_most_30_flat_names_and_14_namespaces(cls: type[Agent[Any]]) -> None:
    flat, namespaces = names_of(cls)

    assert len(flat) <= 30, sorted(flat)
    assert len(namespaces) <= 14, sorted(namespaces)


def test_each_name_that_became_free_can_be_a_method_of_a_subclass() -> None:
    class Free(ChatAgent):
        async def map(self) -> str:
            return "a map of the town"

        async def queue(self) -> None: ...
        async def search(self) -> None: ...
        async def export(self) -> None: ...
        async def clear(self) -> None: ...
        async def turn(self) -> None: ...
        async def approve(self) -> None: ...
        async def usage(self) -> None: ...

    assert Free.__name__ == "Free"


@pytest.mark.parametrize("name", [*sorted(RESERVED), "_sapwood_anything"])
def test_a_reserved_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"Taken.{name} is a name reserved for sapwood"):
        type("Taken", (Agent,), {name: None, "__module__": __name__})


@pytest.mark.parametrize("name", ["schedules", "queues", "fibers", "children", "runs", "questions", "connections"])
def test_a_namespace_can_be_neither_replaced_nor_set(name: str) -> None:
    with pytest.raises(UsageError, match=f"Hidden.{name} would hide"):
        type("Hidden", (Agent,), {name: None, "__module__": __name__})


class Settler(Agent):
    async def take_over(self) -> None:
        self.runs = []  # pyright: ignore[reportAttributeAccessIssue]

    async def ask(self) -> int:
        return len(await self.questions.list())


async def test_setting_a_namespace_names_it(run: Run) -> None:
    async with run(Settler) as world:
        settler = await world.get_agent(Settler, "s")

        with pytest.raises(UsageError, match=r"Settler.runs belongs to Agent and cannot be set"):
            await settler.take_over()


@pytest.mark.core("cluster")
async def test_a_stub_offers_the_methods_of_namespaces_that_cross(run: Run) -> None:
    async with run(Settler) as world:
        settler = await world.get_agent(Settler, "s")

        assert dir(settler) == ["ask", "questions", "spending", "subscribe", "take_over"]
        assert dir(settler.questions) == ["answer", "approve", "deny", "list"]
        assert await settler.questions.list() == []
        assert not await settler.questions.approve("no such call")
        assert await settler.spending.total() == {}
        assert await settler.ask() == 0


async def test_a_stub_refuses_what_does_not_cross_and_says_what_does(run: Run) -> None:
    async with run(Settler) as world:
        settler = cast(Any, await world.get_agent(Settler, "s"))

        with pytest.raises(NoSuchMethod, match=r"Settler.schedules is private to the agent"):
            await settler.schedules.list()
        with pytest.raises(NoSuchMethod, match=r"cannot be called through a stub. These can: questions.answer"):
            await settler.questions.forget()
