"""A node begins nothing that acts outside after its lease: the work waits, and is dropped if another node takes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from tests.conformance.served import served
from tests.conformance.worlds import until

from sapwood import Agent, App, ChatAgent, Limits, RemoteSubAgent, Retry, StepOptions, Turn, Unavailable, expose, tool
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.marshal.call import Call, current
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.log import OutOfTouch
from sapwood.kernel.rpc.remote import Peers
from sapwood.remote import End, Position, RemoteEvent, RemoteStatus, RunTransport
from sapwood.sandbox import run_code
from sapwood.storage.database import Database
from sapwood.testing import ScriptedModel, call, running, text
from sapwood.types import Address

POLLS = 5
"""Looks at a lease that is over after which something waits for it."""


@dataclass
class Lease:
    """The lease of the node, and what acted outside: agents see it as their deps."""

    is_held: bool = True
    looks: int = 0
    """How often it was looked at since it ended."""
    acts: list[str] = field(default_factory=list[str])

    def end(self) -> None:
        self.is_held, self.looks = False, 0

    def holds(self) -> bool:
        self.looks += not self.is_held
        return self.is_held

    def pay(self) -> str:
        """Act outside."""
        self.acts.append("paid")
        return "paid"

    def govern(self, node: Node) -> None:
        """Have a node act by this lease, and its gate as that of a cluster."""
        wait = node.gate.wait

        def checked(database: Database) -> Any:
            if not self.holds():
                raise OutOfTouch
            return wait(database)

        node.holds_lease = self.holds
        node.gate.wait = checked  # type: ignore[method-assign]


class LeasePayer(Agent):
    """A child that acts, in each of the ways in which it may be asked to."""

    deps: Lease

    async def pay(self) -> str:
        return self.deps.pay()

    async def payments(self) -> AsyncGenerator[str, None]:
        yield self.deps.pay()

    async def below(self, depth: int) -> str:
        """Have the last of a line of children act."""
        if depth:
            return await (await self.sub_agent(LeasePayer, f"{depth}")).below(depth - 1)
        self.deps.end()
        return await (await self.sub_agent(LeasePayer, "last")).pay()

    async def on_run(self, input: Any) -> Any:
        return self.deps.pay()


class LeaseStarter(Agent):
    deps: Lease

    async def on_start(self) -> None:
        self.deps.pay()

    async def ping(self) -> None:
        """Do nothing but start."""


class PayingModel(ScriptedModel):
    """A model that acts when it is asked."""

    async def _say(self, messages: list[Any], info: Any) -> AsyncIterator[Any]:
        if "pay" in str(messages[-1]):
            DEPS[-1].pay()
        async for said in super()._say(messages, info):
            yield said


DEPS: list[Lease] = []
"""The lease of the test that runs: a model has no deps."""


class LeaseTalker(ChatAgent):
    deps: Lease
    model = PayingModel(text("thanks"), each=True)

    async def before_step(self, turn: Turn, step: int) -> None:
        self.deps.end()


class LeaseToolTalker(ChatAgent):
    deps: Lease
    model = ScriptedModel(call("spend", id="c1"), text("thanks"), each=True)

    async def before_tool_call(self, name: str, arguments: dict[str, Any]) -> None:
        self.deps.end()

    @tool
    async def spend(self) -> str:
        """Spend money."""
        return self.deps.pay()


class LeaseResponder(ChatAgent):
    deps: Lease

    async def before_turn(self, turn: Turn) -> None:
        self.deps.end()

    async def respond(self, turn: Turn) -> AsyncGenerator[str, None]:
        yield self.deps.pay()


class LeaseTransport:
    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def start(self, session: str, input: Any) -> RemoteStatus:
        self._lease.pay()
        return await self.status(session)

    async def status(self, session: str) -> RemoteStatus:
        return RemoteStatus("completed", output="paid")

    async def stream(self, session: str, after: Position) -> AsyncGenerator[Sequence[RemoteEvent], None]:
        yield [End(await self.status(session))]

    async def cancel(self, session: str, reason: str) -> RemoteStatus:
        return await self.status(session)


class LeaseRemote(RemoteSubAgent):
    url = "https://far.example/agents/payer"
    deps: Lease

    def transport(self) -> RunTransport:
        self.deps.end()
        return LeaseTransport(self.deps)


class LeaseBoss(Agent):
    """Whose work is written in the test."""

    deps: Lease
    create_from_url = True

    async def work(self, scene: str) -> None:
        self.start_fiber(scene, self.do, scene)

    async def do(self, scene: str) -> None:
        await SCENES[scene](self)

    async def statuses(self) -> list[str]:
        return [str(fiber.status) for fiber in self.fibers.list()]

    async def pay(self) -> str:
        return self.deps.pay()

    @expose
    async def pay_now(self) -> str:
        return self.deps.pay()


async def second_attempt(me: LeaseBoss) -> None:
    async def fail_first() -> str:
        if me.deps.is_held and not me.deps.looks:
            me.deps.end()
            raise ConnectionError("try again")
        return me.deps.pay()

    await me.step(StepOptions("pay", retry=Retry(max_attempts=2)), fail_first)


async def step(me: LeaseBoss) -> None:
    me.deps.end()
    await me.step("pay", me.pay)


async def step_without_await(me: LeaseBoss) -> None:
    me.deps.end()
    await me.step("pay", me.deps.pay)


async def thread(me: LeaseBoss) -> None:
    me.deps.end()
    await me.in_thread(me.deps.pay)


async def schedule(me: LeaseBoss) -> None:
    me.schedule(timedelta(0), me.pay)
    me.deps.end()
    await me.flush()


async def queue(me: LeaseBoss) -> None:
    me.enqueue(me.pay)
    me.deps.end()
    await me.flush()


async def fiber(me: LeaseBoss) -> None:
    other = me.start_fiber("other", me.pay)
    me.deps.end()
    await other.result()


async def child(me: LeaseBoss) -> None:
    payer = await me.sub_agent(LeasePayer, "p")
    me.deps.end()
    await payer.pay()


async def three_levels(me: LeaseBoss) -> None:
    await (await me.sub_agent(LeasePayer, "p")).below(2)


async def stream(me: LeaseBoss) -> None:
    payer = await me.sub_agent(LeasePayer, "p")
    me.deps.end()
    async for _ in payer.payments():
        pass


async def start(me: LeaseBoss) -> None:
    me.deps.end()
    await (await me.sub_agent(LeaseStarter, "s")).ping()


async def run(me: LeaseBoss) -> None:
    await me.sub_agent(LeasePayer, "p")
    me.deps.end()
    await me.run_agent(LeasePayer, 1)


async def model_request(me: LeaseBoss) -> None:
    assert (await me.run_agent(LeaseTalker, "pay")).ok


async def tool_call(me: LeaseBoss) -> None:
    assert (await me.run_agent(LeaseToolTalker, "go")).ok


async def response(me: LeaseBoss) -> None:
    assert (await me.run_agent(LeaseResponder, "go")).ok


async def remote_run(me: LeaseBoss) -> None:
    assert (await me.run_agent(LeaseRemote, 1)).ok


async def host_function(me: LeaseBoss) -> None:
    async def spend() -> str:
        return me.deps.pay()

    async def leave() -> None:
        me.deps.end()

    await run_code("leave()\nspend()", {"leave": leave, "spend": spend})


SCENES: dict[str, Callable[[LeaseBoss], Awaitable[None]]] = {
    scene.__name__: scene
    for scene in (
        step,
        step_without_await,
        second_attempt,
        thread,
        schedule,
        queue,
        fiber,
        child,
        three_levels,
        stream,
        start,
        run,
        model_request,
        tool_call,
        response,
        remote_run,
        host_function,
    )
}
"""Each ends the lease right before sapwood would begin something that acts outside."""


@pytest.fixture
def lease() -> Lease:
    found = Lease()
    DEPS.append(found)
    return found


def app(lease: Lease) -> App:
    return App(agents=[LeaseBoss], deps=lease)


async def until_it_waits(lease: Lease) -> None:
    await until(lambda: lease.looks > POLLS)


def actors(node: Node) -> list[Actor]:
    return [actor for tree in node.trees.values() for actor in tree.actors.values()]


@pytest.mark.promise("B-7")
@pytest.mark.parametrize("scene", SCENES)
async def test_what_would_act_after_the_lease_waits_for_it_and_then_acts_once(scene: str, lease: Lease) -> None:
    async with running(app(lease)) as world:
        lease.govern(world.node)
        boss = await world.get_agent(LeaseBoss, "b")
        await boss.work(scene)
        await until_it_waits(lease)
        assert lease.acts == []

        lease.is_held = True
        await until(lambda: lease.acts == ["paid"])
        while "running" in await boss.statuses():
            lease.is_held = True
        assert set(await boss.statuses()) == {"completed"}
        assert lease.acts == ["paid"]


@pytest.mark.promise("B-7")
@pytest.mark.parametrize("scene", SCENES)
async def test_what_would_act_after_the_lease_is_dropped_with_a_tree_that_another_node_took(
    scene: str, lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(app(lease)) as world:
        lease.govern(world.node)
        boss = await world.get_agent(LeaseBoss, "b")
        await boss.work(scene)
        await until_it_waits(lease)
        before = actors(world.node)

        for tree in list(world.node.trees.values()):
            world.node.removal.lose(tree)
        lease.is_held = True

        await until(lambda: not any(actor.calls for actor in before))
        assert lease.acts == []
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_client_is_refused_before_anything_begins_if_the_node_holds_no_lease(lease: Lease) -> None:
    async with served(app(lease)) as near:
        lease.govern(near.world.node)
        client = await near.join("/agents/lease-boss/b")
        lease.end()
        await client.send({"type": "rpc", "id": "1", "method": "pay_now", "args": []})
        await until(lambda: lease.looks > 0)
        lease.is_held = True

        again = await near.join("/agents/lease-boss/b")
        await again.send({"type": "rpc", "id": "2", "method": "pay_now", "args": []})
        await again.until(lambda frame: frame.get("id") == "2")
        assert lease.acts == ["paid"]


async def test_a_job_that_waited_for_a_thread_begins_only_if_the_lease_is_still_held(lease: Lease) -> None:
    async with running(app(lease), threads=1) as world:
        lease.govern(world.node)
        boss = await world.get_agent(LeaseBoss, "b")
        await boss.statuses()
        (actor,) = actors(world.node)

        async def end_in_thread() -> None:
            await world.node.offload.in_thread(actor, lease.end, (), {})

        first = asyncio.create_task(end_in_thread())
        second = asyncio.create_task(world.node.offload.in_thread(actor, lease.pay, (), {}))
        await first
        await until_it_waits(lease)
        assert lease.acts == []
        lease.is_held = True
        assert await second == "paid"


class LateDirectory:
    """Knows who runs another agent only when the lease is over."""

    here = "here"

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def fixed_owner(self, root: Address) -> None:
        return None

    async def owner(self, root: Address) -> str:
        self._lease.end()
        return "there"


class PaidTransport:
    """Acts when something is sent, and gets no answer."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def open(self, node: str, verb: str, message: bytes, *, items: int = 0) -> Any:
        self._lease.pay()
        raise Unavailable(f"{node} does not answer.")


async def test_a_call_to_another_node_looks_at_the_lease_after_it_has_found_the_node(lease: Lease) -> None:
    async with running(app(lease)) as world:
        lease.govern(world.node)
        boss = await world.get_agent(LeaseBoss, "b")
        await boss.statuses()
        (actor,) = actors(world.node)
        other: Any = LateDirectory(lease)
        transport: Any = PaidTransport(lease)
        far = Peers(other, transport, asyncio.get_running_loop(), Limits())
        line = far.line([(known(LeasePayer), "p")], Address.root_of("LeasePayer", "p"))
        token = current.set(Call(actor, "do", None))
        calling = asyncio.create_task(line.call(known(LeasePayer).method("pay"), None))
        current.reset(token)

        await until_it_waits(lease)
        assert lease.acts == []
        lease.is_held = True
        with pytest.raises(Unavailable, match="there does not answer"):
            await calling
        assert lease.acts == ["paid"]
