"""Requests wait for a provider in turn: by user, or by tree where no user is known."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from tests.conformance.chats import done, say
from tests.conformance.drivers import running
from tests.conformance.served import served
from tests.machine import patience

from sapwood import Agent, App, Branch, ChatAgent, Run, Turn, agent_tool, tool
from sapwood.auth import User
from sapwood.chat.models.providers import Providers
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.turn.request_owner import RequestOwner, owner_of
from sapwood.testing import ScriptedModel, World, call, text

MANY = 10


class FairWorker(ChatAgent):
    """Answers."""


class FairFlood(Agent):
    """Has many work at once."""

    async def flood(self) -> list[Run]:
        return await self.runs.gather(*(Branch(FairWorker, f"flood {at}") for at in range(MANY)))


class FairQuiet(ChatAgent):
    """Answers too."""


def prompts(model: Any) -> list[str]:
    """Return what the model was asked, in order."""
    return [str(messages[-1].parts[-1].content).split()[0] for messages in model.asked]


def waiting(world: World) -> int:
    return sum(world.node.shared(Providers).waiting().values())


async def test_a_tree_that_floods_a_provider_does_not_delay_another() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("well", gate=gate))
    FairWorker.model = FairQuiet.model = model
    app = App(agents=[FairFlood, FairQuiet])
    async with asyncio.timeout(patience()), running(app, model_requests_at_once=1) as world:
        flooding = asyncio.create_task((await world.get_agent(FairFlood, "f")).flood())
        await world.until(lambda: waiting(world) == MANY - 1)
        quiet = await world.get_agent(FairQuiet, "q")
        sending = asyncio.create_task(quiet.send("quiet"))
        await world.until(lambda: waiting(world) == MANY)
        gate.set()

        assert (await sending).status == "completed"
        assert all(run.ok for run in await flooding)
        assert prompts(model)[:3] == ["flood", "flood", "quiet"]


class FairHelper(ChatAgent):
    """Helps."""

    owners: ClassVar[list[RequestOwner]]

    async def before_step(self, turn: Turn, step: int) -> None:
        row = self._actor.of(ConversationRecord).turns.running()
        assert row is not None
        self.owners.append(owner_of(self._actor, row))


class FairDesk(ChatAgent):
    """Asks a helper."""

    tools = (agent_tool(FairHelper, name="help"),)


async def test_one_user_is_served_once_in_each_round_however_many_trees_and_helpers_work_for_them() -> None:
    gate = asyncio.Event()
    desk = ScriptedModel(call("help", message="ann helped"), text("done"), each=True)
    slow, helper = ScriptedModel(text("well", gate=gate)), ScriptedModel(text("well"))
    desk.asked = helper.asked = slow.asked  # one list: the order over all of them
    FairDesk.model, FairHelper.model, FairQuiet.model = desk, helper, slow
    FairHelper.owners = []

    def who(request: Any) -> User | None:
        return User(request.headers["who"]) if "who" in request.headers else None

    app = App(agents=[FairDesk, FairQuiet], authenticate=who)
    async with asyncio.timeout(patience()), served(app, model_requests_at_once=1) as one:
        first = await one.join("/agents/fair-quiet/first", additional_headers={"who": "cid"})
        await say(first, "r", "cid")
        await one.world.until(lambda: len(slow.asked) == 1)
        anns = [await one.join(f"/agents/fair-desk/d{at}", additional_headers={"who": "ann"}) for at in range(5)]
        for client in anns:
            await say(client, "r", "ann")
        bob = await one.join("/agents/fair-quiet/bob", additional_headers={"who": "bob"})
        await say(bob, "r", "bob")
        await one.world.until(lambda: waiting(one.world) == 6)
        gate.set()

        assert (await done(bob, "r"))["outcome"] == "completed"
        assert prompts(slow)[:3] == ["cid", "ann", "bob"]
        for client in anns:
            assert (await done(client, "r"))["outcome"] == "completed"
        assert FairHelper.owners == [RequestOwner("user", "ann")] * 5


class FairBehind(FairHelper):
    """Works in the background."""

    go: ClassVar[asyncio.Event]

    @tool
    async def wait(self) -> str:
        """Wait."""
        await self.go.wait()
        return "waited"


class FairShared(ChatAgent):
    """Is used by several people, and lets another agent work in the background."""

    @tool
    async def begin(self) -> str:
        """Begin."""
        return (await self.start_run(FairBehind, "work", run_id="behind")).id

    async def finish(self) -> None:
        run = self.runs.get("behind")
        assert run is not None
        await run.result()


async def test_a_run_in_the_background_counts_for_the_user_whose_turn_started_it() -> None:
    FairBehind.owners, FairBehind.go = [], asyncio.Event()
    FairBehind.model = ScriptedModel(call("wait"), text("done"))
    FairShared.model = model = ScriptedModel(call("begin"), text("begun"), text("for bob", gate=asyncio.Event()))

    app = App(agents=[FairShared, FairBehind], authenticate=lambda request: User(request.headers["who"]))
    async with asyncio.timeout(patience()), served(app) as one:
        ann = await one.join("/agents/fair-shared/s", additional_headers={"who": "ann"})
        await say(ann, "r1", "begin")
        await done(ann, "r1")
        bob = await one.join("/agents/fair-shared/s", additional_headers={"who": "bob"})
        await say(bob, "r2", "something else")
        await one.world.until(lambda: len(model.asked) == 3)
        FairBehind.go.set()
        await (await one.world.get_agent(FairShared, "s")).finish()

        assert FairBehind.owners == [RequestOwner("user", "ann")] * 2
