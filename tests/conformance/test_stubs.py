"""Stubs: addresses with methods. Looking at one sends nothing."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from typing import Any, cast

import pytest
from tests.conformance.worlds import Branch, Probe, Run

from sapwood import Agent, NotFound
from sapwood.errors import UsageError
from sapwood.kernel.rpc.stub import StubNamespace

pytestmark = pytest.mark.core("workers")


@pytest.fixture
def level() -> str:
    """Return one level of durability; nothing here depends on it."""
    return "process"


class Watched(Agent):
    deps: Probe

    async def ping(self) -> str:
        """Answer."""
        self.deps.log.append("ping")
        return "pong"

    async def take(self, what: Any) -> None:
        self.deps.log.append("taken")


async def test_looking_at_a_stub_sends_no_call(run: Run, probe: Probe) -> None:
    async with run(Watched, deps=probe) as world:
        stub = cast(Any, await world.get_agent(Watched, "w"))

        assert repr(stub) == "<stub Watched:w>"
        assert str(stub) == "<stub Watched:w>"
        for name in ["__await__", "__aiter__", "__iter__", "__len__", "__fspath__", "then", "model_dump", "keys"]:
            assert not hasattr(stub, name), name
        assert not inspect.isawaitable(stub)
        assert not callable(stub)
        assert bool(stub)
        assert stub == stub
        assert stub != "Watched:w"
        assert len({stub, stub}) == 1
        assert copy.copy(stub) == copy.deepcopy(stub) == stub
        with pytest.raises(TypeError, match="get the stub there"):
            pickle.dumps(stub)
        with pytest.raises(TypeError):
            json.dumps(stub)
        with pytest.raises(AttributeError, match="Call a method of the agent"):
            stub.color = "red"
        assert stub.ping.__name__ == "ping"
        assert stub.ping.__doc__ == "Answer."

        assert probe.log == []


async def test_a_stub_cannot_be_passed_to_an_agent(run: Run, probe: Probe) -> None:
    async with run(Watched, deps=probe) as world:
        stub = await world.get_agent(Watched, "w")

        with pytest.raises(UsageError, match=r"Watched\.take\(\) argument 'what' cannot be copied"):
            await stub.take(stub)
        assert probe.log == []


@pytest.mark.core  # two values in one process
async def test_two_stubs_of_one_agent_are_equal_and_of_two_agents_are_not(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "a")
        again = await world.get_agent(Branch, "r")
        child = await world.get_agent(Branch, "r", sub=[(Branch, "a")])
        leaf = await world.get_agent(Branch, "r", sub=[(Branch, "a"), (Branch, "a")])

        assert root == again
        assert hash(root) == hash(again)
        assert len({root, again, child, leaf}) == 3


@pytest.mark.promise("A-46")
async def test_an_agent_below_a_root_can_be_had_from_outside_if_it_exists(run: Run) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")

        leaf = await world.get_agent(Branch, "r", sub=[(Branch, "a"), (Branch, "b")])

        assert (await leaf.where())[0] == "b"


@pytest.mark.promise("A-40", "A-56")
@pytest.mark.parametrize("guess", [["x"], ["a", "x"], ["x", "b"], ["a", "b", "c"]])
async def test_guessing_a_name_from_outside_never_makes_a_child(run: Run, guess: list[str]) -> None:
    async with run(Branch) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")
        files = sorted(world.data.rglob("*.db"))

        with pytest.raises(NotFound, match=r"has no Branch named '[xc]'.*Only Branch can create it") as missing:
            await world.get_agent(Branch, "r", sub=[(Branch, name) for name in guess])

        assert missing.value.code == "not_found"
        assert missing.value.path[-1][1] in "xc"
        assert await root.child_names() == ["a"]
        assert sorted(world.data.rglob("*.db")) == files


async def test_agents_reach_others_of_their_own_and_of_other_trees_but_create_none(run: Run) -> None:
    class Visitor(Agent):
        async def visit(self, tree: str, names: list[str]) -> list[str]:
            agent = await self.get_agent(Branch, tree, sub=[(Branch, name) for name in names])
            await agent.note(f"from {self.name}")
            return await agent.notes()

    async with run(Branch, Visitor) as world:
        root = await world.get_agent(Branch, "r")
        await root.grow("a", "b")
        visitor = await world.get_agent(Visitor, "v")

        assert await visitor.visit("r", ["a", "b"]) == ["from v"]
        assert await visitor.visit("new root", []) == ["from v"]
        with pytest.raises(NotFound):
            await visitor.visit("r", ["a", "nobody"])


async def test_a_namespace_of_a_stub_is_as_closed_as_the_stub(run: Run, probe: Probe) -> None:
    async with run(Watched, deps=probe) as world:
        questions = cast(Any, (await world.get_agent(Watched, "w")).questions)

        assert copy.copy(questions) is copy.deepcopy(questions) is questions
        with pytest.raises(TypeError, match="get it there"):
            pickle.dumps(questions)
        with pytest.raises(AttributeError, match="call a method of the agent"):
            questions.approve = "yes"
        with pytest.raises(AttributeError):
            _ = cast(Any, object.__new__(StubNamespace)).approve
        for name in ["__await__", "__wrapped__", "_actor", "_answer", "", "approve.__func__"]:
            assert not hasattr(questions, name), name
