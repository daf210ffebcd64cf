"""What a team sees in Temporal of its agents' turns and runs, and what it can do to them there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, ParentClosePolicy
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError
from tests.conformance.chats import Talking, approval, cancel, chunks, done, over, say, user
from tests.conformance.served import Client
from tests.machine import patience
from tests.temporal.cluster import Driven, Temporal, driven, until_ended

from sapwood import Agent, ChatAgent, Run, agent_tool, tool
from sapwood.drivers.temporal import TemporalDriver
from sapwood.errors import OverLimit
from sapwood.testing import ScriptedModel, call, calls, fails, text

gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@pytest.fixture(autouse=True)
def no_gates() -> None:
    gates.clear()


class FlowDigger(Agent):
    """Digs until its gate opens."""

    async def on_run(self, input: str) -> str:
        gate(f"begun {input}").set()
        await gate(input).wait()
        return f"dug {input}"


class FlowForeman(ChatAgent):
    """Has two dig."""

    model = ScriptedModel(
        calls(call("flow_digger", id="d1", message="left"), call("flow_digger", id="d2", message="right")),
        text("both are dug"),
        each=True,
    )
    tools = (agent_tool(FlowDigger),)

    async def all_runs(self) -> list[Run]:
        return self.runs.list()


class FlowChief(Talking):
    """Uses a foreman."""

    model = ScriptedModel(call("flow_foreman", id="f1", message="go"), text("it is done"), each=True)
    tools = (agent_tool(FlowForeman),)

    async def all_runs(self) -> list[Run]:
        return self.runs.list()


@dataclass(frozen=True)
class Ids:
    """The addresses and workflows of a chief and all below it."""

    chief: str

    @property
    def top(self) -> str:
        return f"{self.chief} r1"

    @property
    def foreman(self) -> str:
        return f"{self.chief}/FlowForeman:agent-tool%3Af1"

    @property
    def middle(self) -> str:
        return f"{self.foreman} agent-tool:f1"

    @property
    def diggers(self) -> list[str]:
        return [f"{self.foreman}/FlowDigger:agent-tool%3A{id} agent-tool:{id}" for id in ("d1", "d2")]

    @property
    def all(self) -> list[str]:
        return [self.top, self.middle, *self.diggers]


def ids_of(one: Driven) -> Ids:
    return Ids(f"FlowChief:{one.name}")


async def dig(one: Driven) -> Client:
    """Have two dig, two levels below."""
    client = await one.one.join(f"/agents/flow-chief/{one.name}")
    await say(client, "r1", user("hi"))
    for side in ("left", "right"):
        await asyncio.wait_for(gate(f"begun {side}").wait(), patience())
    return client


async def test_a_turn_and_each_run_below_it_is_a_workflow_that_can_be_found(temporal: Temporal, tmp_path: Path) -> None:
    async with driven(temporal, tmp_path, FlowChief) as one:
        client = await dig(one)
        gate("left").set()
        gate("right").set()
        assert (await done(client, "r1"))["outcome"] == "completed"

        ends = await one.closed(4)

        assert ends == dict.fromkeys(ids_of(one).all, "COMPLETED")
        assert await found(one, "SapwoodType = 'FlowDigger'") == ids_of(one).diggers
        assert len(await found(one, f"SapwoodRoot = '{ids_of(one).chief}'")) == 4
        assert await found(one, f"SapwoodPath = '{ids_of(one).foreman}'") == [ids_of(one).middle]


async def found(one: Driven, query: str) -> list[str]:
    async with asyncio.timeout(patience()):
        while True:  # what can be searched is a little late
            ids = [flow.id async for flow in one.client.list_workflows(f"TaskQueue = '{one.driver.queue}' AND {query}")]
            if ids:
                return sorted(ids)
            await asyncio.sleep(0.05)


class FlowGiver(Talking):
    """Begins a run that nobody waits for."""

    model = ScriptedModel(call("begin", id="b1"), text("it is begun"), each=True)

    @tool
    async def begin(self) -> str:
        """Begin."""
        run = await self.start_run(FlowDigger, "deep", run_id="deep", timeout=300)
        return run.status

    async def all_runs(self) -> list[Run]:
        return self.runs.list()


@pytest.mark.promise("A-183")
async def test_a_run_is_a_child_workflow_that_outlives_its_parent_and_has_its_time(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with driven(temporal, tmp_path, FlowGiver) as one:
        client = await one.one.join(f"/agents/flow-giver/{one.name}")
        await say(client, "r1", user("hi"))
        await done(client, "r1")
        await asyncio.wait_for(gate("begun deep").wait(), patience())
        above, below = (
            one.workflow(f"FlowGiver:{one.name}", "r1"),
            one.workflow(f"FlowGiver:{one.name}/FlowDigger:deep", "deep"),
        )

        assert await until_ended(above) == "COMPLETED"
        child = await below.describe()
        assert child.status is not None
        assert child.status.name == "RUNNING"
        assert child.parent_id == above.id
        assert (await policies(above)) == [ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON]
        timeout = child.raw_description.execution_config.workflow_execution_timeout.ToTimedelta().total_seconds()
        assert 350 < timeout <= 360

        gate("deep").set()
        assert await until_ended(below) == "COMPLETED"
        agent = await one.world.get_agent(FlowGiver, one.name)
        assert [run.output for run in await agent.all_runs()] == ["dug deep"]


async def policies(handle: Any) -> list[int]:
    """Return what is to become of the children of a workflow when it ends."""
    return [
        event.start_child_workflow_execution_initiated_event_attributes.parent_close_policy
        async for event in handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
    ]


@pytest.mark.promise("A-198")
async def test_an_interrupt_by_signal_stops_everything_below(temporal: Temporal, tmp_path: Path) -> None:
    async with driven(temporal, tmp_path, FlowChief) as one:
        client = await dig(one)

        await one.workflow(ids_of(one).chief, "r1").signal("interrupt", "enough")

        assert (await done(client, "r1"))["outcome"] == "aborted"
        assert set((await one.closed(4)).values()) == {"COMPLETED"}
        assert [await one.client.get_workflow_handle(id).result() for id in ids_of(one).diggers] == [
            "cancelled",
            "cancelled",
        ]
        chief = await one.world.get_agent(FlowChief, one.name)
        foreman = await one.world.get_agent(FlowChief, one.name, sub=[(FlowForeman, "agent-tool:f1")])
        assert (await chief.turns.wait("r1")).reason == "enough"
        assert [run.reason for run in (*await chief.all_runs(), *await foreman.all_runs())] == ["enough"] * 3


async def test_a_workflow_that_is_cancelled_in_temporal_is_cancelled_and_so_is_its_turn(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with driven(temporal, tmp_path, FlowChief) as one:
        client = await dig(one)

        await one.workflow(ids_of(one).chief, "r1").cancel()

        assert (await done(client, "r1"))["outcome"] == "aborted"
        ends = await one.closed(4)
        assert ends.pop(ids_of(one).top) == "CANCELED"
        assert set(ends.values()) == {"COMPLETED"}


async def test_who_ends_a_workflow_by_force_stops_the_turn_that_waits_and_all_below_it(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with driven(temporal, tmp_path, FlowChief) as one:
        client = await dig(one)

        await one.workflow(ids_of(one).chief, "r1").terminate("it costs too much")

        assert (await done(client, "r1"))["outcome"] == "aborted"
        ends = await one.closed(4)
        assert ends.pop(ids_of(one).top) == "TERMINATED"
        assert set(ends.values()) == {"COMPLETED"}
        assert [await one.client.get_workflow_handle(id).result() for id in ids_of(one).diggers] == ["cancelled"] * 2


async def test_who_ends_a_workflow_by_force_stops_the_step_that_is_done_and_whoever_wanted_it_is_told(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with driven(temporal, tmp_path, FlowChief) as one:
        client = await dig(one)
        left, _ = ids_of(one).diggers

        await one.client.get_workflow_handle(left).terminate()
        gate("right").set()

        assert (await done(client, "r1"))["outcome"] == "completed"
        ends = await one.closed(4)
        assert ends.pop(left) == "TERMINATED"
        assert set(ends.values()) == {"COMPLETED"}
        foreman = await one.world.get_agent(FlowChief, one.name, sub=[(FlowForeman, "agent-tool:f1")])
        stands = [(run.status, run.reason) for run in await foreman.all_runs()]
        assert stands == [("cancelled", "workflow-terminated"), ("completed", None)]


class FlowFailing(Talking):
    model = ScriptedModel(fails(OverLimit("the secret is 42")), each=True)


async def test_a_turn_that_fails_is_a_failed_workflow_with_its_code_and_no_word_of_it(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with driven(temporal, tmp_path, FlowFailing) as one:
        client = await one.one.join(f"/agents/flow-failing/{one.name}")
        await say(client, "r1", user("tell me"))
        await done(client, "r1")

        with pytest.raises(WorkflowFailureError) as failed:
            await one.workflow(f"FlowFailing:{one.name}", "r1").result()

        assert isinstance(failed.value.cause, ApplicationError)
        assert failed.value.cause.non_retryable
        (history,) = (await one.histories()).values()
        assert "secret" not in history
        assert failed.value.cause.type == OverLimit.code


class FlowPayer(Talking):
    """Pays, if somebody lets it."""

    model = ScriptedModel(call("pay", id="p1"), text("paid"), each=True)

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay."""
        return "paid"


async def asked_to_pay(one: Driven) -> Client:
    client = await one.one.join(f"/agents/flow-payer/{one.name}")
    await say(client, "r1", user("hi"))
    await client.until(lambda _: any(chunk["type"] == "tool-approval-request" for chunk in chunks(client, "r1")))
    await done(client, "r1")
    return client


async def test_a_turn_that_waits_for_somebody_can_be_cancelled_in_temporal(temporal: Temporal, tmp_path: Path) -> None:
    async with driven(temporal, tmp_path, FlowPayer) as one:
        await asked_to_pay(one)
        handle = one.workflow(f"FlowPayer:{one.name}", "r1")

        await handle.cancel()

        assert await until_ended(handle) == "CANCELED"
        agent = await one.world.get_agent(FlowPayer, one.name)
        assert await over(agent) == [("r1", "cancelled")]


async def test_a_turn_whose_workflow_was_ended_while_it_waited_for_somebody_ends_when_it_would_go_on(
    temporal: Temporal, tmp_path: Path
) -> None:
    async with driven(temporal, tmp_path, FlowPayer) as one:
        client = await asked_to_pay(one)
        await one.workflow(f"FlowPayer:{one.name}", "r1").terminate()

        await approval(client, "p1", approved=True)

        agent = await one.world.get_agent(FlowPayer, one.name)
        assert await over(agent) == [("r1", "failed")]
        assert "terminated" in str(await agent.conversation.export())


class FlowCounting(ChatAgent):
    """Takes many steps."""

    model = ScriptedModel(*(call("count", id=f"c{at}") for at in range(6)), text("counted"), each=True)
    migrations = ("CREATE TABLE counted (id INTEGER PRIMARY KEY) STRICT",)

    @tool
    async def count(self) -> str:
        """Count."""
        self.sql("INSERT INTO counted DEFAULT VALUES")
        return "one more"

    async def counted(self) -> int:
        return len(list(self.sql("SELECT * FROM counted")))


async def test_a_long_turn_goes_on_in_a_new_history(
    temporal: Temporal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = TemporalDriver.driven
    monkeypatch.setattr(TemporalDriver, "driven", lambda self, part: replace(told(self, part), most_steps=2))
    async with driven(temporal, tmp_path, FlowCounting) as one:
        client = await one.one.join(f"/agents/flow-counting/{one.name}")
        await say(client, "r1", user("hi"))

        assert (await done(client, "r1"))["outcome"] == "completed"

        assert await one.closed(1) == {f"FlowCounting:{one.name} r1": "COMPLETED"}
        agent = await one.world.get_agent(FlowCounting, one.name)
        assert await agent.counted() == 6
        all_of_it = [flow async for flow in one.client.list_workflows(f"TaskQueue = '{one.driver.queue}'")]
        assert sorted(str(flow.status and flow.status.name) for flow in all_of_it) == [
            "COMPLETED",
            "CONTINUED_AS_NEW",
            "CONTINUED_AS_NEW",
            "CONTINUED_AS_NEW",
        ]


async def test_workflows_below_report_back_after_a_restart_at_every_level(temporal: Temporal, tmp_path: Path) -> None:
    async with driven(temporal, tmp_path, FlowChief) as one:
        await dig(one)
        gates["begun left"].clear()

        await one.world.crash()
        await asyncio.wait_for(gate("begun left").wait(), patience())
        gate("left").set()
        gate("right").set()

        agent = await one.world.get_agent(FlowChief, one.name)
        assert await over(agent) == [("r1", "completed")]
        assert await one.closed(4) == dict.fromkeys(ids_of(one).all, "COMPLETED")
        assert "both are dug" in str(await agent.conversation.export())


async def test_a_stop_does_not_wait_for_temporal(temporal: Temporal, tmp_path: Path) -> None:
    async with driven(temporal, tmp_path, FlowChief) as one:
        client = await dig(one)

        async with asyncio.timeout(patience(5)):
            await cancel(client, "r1")
            assert (await done(client, "r1"))["outcome"] == "aborted"

        assert set((await one.closed(4)).values()) == {"COMPLETED"}
