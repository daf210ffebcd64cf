"""Parents and ancestors: typed stubs of those above, from the recorded path."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.worlds import Run

from sapwood import Agent
from sapwood.errors import UsageError
from sapwood.types import PathSegment

pytestmark = pytest.mark.core("workers", "cluster")


class Member(Agent):
    """What all agents here can do."""

    async def make(self, *kinds: str) -> None:
        """Make a child of the first kind, below it one of the second, and so on; each is named like its kind."""
        first, *below = kinds
        child = await self.sub_agent(KINDS[first], first.lower())
        if below:
            await child.make(*below)

    async def who(self) -> str:
        return f"{type(self).__name__} {self.name}"

    async def parent(self, kind: str) -> str:
        return await (await self.parent_agent(KINDS[kind])).who()

    async def above(self, kind: str) -> str:
        return await (await self.ancestor(KINDS[kind])).who()

    async def root(self, kind: str) -> str:
        return await (await self.root_agent(KINDS[kind])).who()


class Tenant(Member): ...


class Inbox(Member): ...


class Chat(Member): ...


KINDS: dict[str, type[Member]] = {"Tenant": Tenant, "Inbox": Inbox, "Chat": Chat}


async def family(world: Any) -> tuple[Tenant, Inbox, Chat]:
    tenant = await world.get_agent(Tenant, "t")
    await tenant.make("Inbox", "Chat")
    inbox = await world.get_agent(Tenant, "t", sub=[(Inbox, "inbox")])
    chat = await world.get_agent(Tenant, "t", sub=[(Inbox, "inbox"), (Chat, "chat")])
    return tenant, inbox, chat


@pytest.mark.promise("A-11", "CF-36", "CF-38")
async def test_parent_agent_is_the_direct_parent_at_any_depth(run: Run) -> None:
    async with run(Tenant) as world:
        _, inbox, chat = await family(world)

        assert await inbox.parent("Tenant") == "Tenant t"
        assert await chat.parent("Inbox") == "Inbox inbox"


@pytest.mark.promise("CF-37")
@pytest.mark.core
async def test_a_root_has_no_parent(run: Run) -> None:
    async with run(Tenant) as world:
        tenant, _, _ = await family(world)

        with pytest.raises(UsageError, match="Tenant:t is a root and has no parent"):
            await tenant.parent("Tenant")


@pytest.mark.promise("A-11", "CF-37")
async def test_asking_for_the_parent_by_another_class_is_refused_naming_both(run: Run) -> None:
    async with run(Tenant) as world:
        _, _, chat = await family(world)

        with pytest.raises(UsageError, match=r"is a Inbox, not a Tenant\. Ask for Inbox, or use ancestor\(Tenant\)"):
            await chat.parent("Tenant")


@pytest.mark.promise("A-12", "B-9")
async def test_ancestor_is_the_nearest_one_of_a_class(run: Run) -> None:
    async with run(Tenant) as world:
        tenant, _, chat = await family(world)
        await chat.make("Inbox", "Chat")
        steps: list[tuple[type[Member], str]] = [(Inbox, "inbox"), (Chat, "chat"), (Inbox, "inbox"), (Chat, "chat")]
        deep = await world.get_agent(Tenant, "t", sub=steps)

        assert await deep.above("Tenant") == "Tenant t"
        assert await deep.above("Chat") == "Chat chat"
        assert await chat.above("Inbox") == "Inbox inbox"
        with pytest.raises(UsageError, match=r"has no ancestor of class Chat\. Its ancestors are Tenant → Inbox"):
            await chat.above("Chat")
        with pytest.raises(UsageError, match="Its ancestors are none"):
            await tenant.above("Tenant")


@pytest.mark.promise("A-12", "B-9")
async def test_root_agent_is_the_top_of_the_tree_also_for_the_root_itself(run: Run) -> None:
    async with run(Tenant) as world:
        tenant, inbox, chat = await family(world)

        for agent in (tenant, inbox, chat):
            assert await agent.root("Tenant") == "Tenant t"
        with pytest.raises(UsageError, match="is a Tenant, not a Chat"):
            await chat.root("Chat")


@pytest.mark.promise("A-12")
async def test_those_above_can_be_reached_after_a_crash(run: Run) -> None:
    async with run(Tenant) as world:
        await family(world)

        await world.crash()

        chat = await world.get_agent(Tenant, "t", sub=[(Inbox, "inbox"), (Chat, "chat")])
        assert await chat.parent("Inbox") == "Inbox inbox"
        assert await chat.root("Tenant") == "Tenant t"


@pytest.mark.promise("A-8")
async def test_the_last_step_of_parent_path_is_the_direct_parent(run: Run) -> None:
    class Low(Agent):
        async def paths(self) -> tuple[tuple[PathSegment, ...], tuple[PathSegment, ...]]:
            return self.address.segments[:-1], self.address.segments

    class High(Agent):
        async def make(self) -> tuple[tuple[PathSegment, ...], tuple[PathSegment, ...]]:
            return await (await self.sub_agent(Low, "l")).paths()

    async with run(High) as world:
        above, whole = await (await world.get_agent(High, "h")).make()

        assert above[-1] == PathSegment("High", "h") == ("High", "h")
        assert whole == (*above, PathSegment("Low", "l"))
        assert above[-1].type == "High"
        assert above[-1].name == "h"
