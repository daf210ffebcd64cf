"""What is played to have histories of: each scene does one thing that a workflow has to be able to do.

A scene that was recorded for a release stays: workflows like it may run when the next version comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError
from tests.conformance.serving import serving
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Refused, agent_tool, tool
from sapwood.drivers.temporal import TemporalDriver
from sapwood.drivers.temporal.driver import workflow_id
from sapwood.drivers.temporal.messages import INTERRUPT, LOOK, STEP, Driven
from sapwood.drivers.temporal.worker import work
from sapwood.runs.execution.driver import DrivenWork
from sapwood.testing import ScriptedModel, call, calls, fails, text
from sapwood.testing.script_lines import Line
from sapwood.types import Address


class ShortDriver(TemporalDriver):
    """Has workflows begin a new history after two steps."""

    def driven(self, part: DrivenWork) -> Driven:
        return replace(super().driven(part), most_steps=2)


class SceneHelper(ChatAgent):
    """Helps."""

    model = ScriptedModel(text("It is done."), each=True)


class SceneDigger(Agent):
    """Digs."""

    async def on_run(self, what: str) -> str:
        return f"{what} is dug up"


class SceneClumsy(Agent):
    """Digs where nothing is."""

    async def on_run(self, what: str) -> str:
        raise Refused("nothing here")


class SceneSlow(ChatAgent):
    """Takes its time."""

    model = ScriptedModel(text("a long story that nobody waits for", delay=30.0), each=True)


class SceneDesk(ChatAgent):
    """A desk whose scenes are told apart by its name."""

    @tool
    async def weigh(self, what: str) -> str:
        """Weigh something."""
        return "3 kg"

    @tool(requires_approval=True)
    async def sell(self, what: str) -> str:
        """Sell something."""
        return "sold"

    @tool
    async def send_off(self, what: str) -> str:
        """Have something done that nobody waits for."""
        await self.start_run(SceneSlow, what, run_id="sent-off")
        return "on its way"

    async def leave(self) -> None:
        await self.destroy()

    tools = tuple(agent_tool(cls) for cls in (SceneHelper, SceneDigger, SceneClumsy, SceneSlow))

    def get_model(self) -> Any:
        return ScriptedModel(*SCENES[self.name][1], each=True)


WEIGH = call("weigh", what="a stone")
HELP = [call("scene_helper", message=what) for what in ("tea", "milk")]
DIG, FAIL = call("scene_digger", message="a root"), call("scene_clumsy", message="a stone")
SELL = call("sell", what="a chair")
LONG = [call("scene_slow", message=what) for what in ("one", "two")]
SEND_OFF = call("send_off", what="a letter")
SLOW = text("a long story that nobody waits for", delay=30.0)


class Stage:
    """Where one scene is played: a desk of its own, driven by Temporal."""

    def __init__(self, app: App, client: Client, name: str) -> None:
        assert isinstance(app.driver, TemporalDriver)
        self.app = app
        self.driver = app.driver
        self.client = client
        self.name = name
        self.turn = ""
        """The id of the turn that is played."""

    @property
    def workflow(self) -> WorkflowHandle[Any, str]:
        return self.client.get_workflow_handle(workflow_id(Address.root_of("SceneDesk", self.name), self.turn))

    async def desk(self) -> SceneDesk:
        return await self.app.get_agent(SceneDesk, self.name)

    async def ask(self) -> None:
        """Say something; return when it is answered, or somebody has to be asked."""
        self.turn = (await (await self.desk()).send("Please.")).id

    async def begin(self) -> asyncio.Task[Any]:
        """Say something; return when the model is asked for the last step of its lines."""
        sending = asyncio.ensure_future((await self.desk()).send("Please."))
        await until(lambda: any(address == f"SceneDesk:{self.name}" for address, _ in self.driver.paces))
        (self.turn,) = (id for address, id in self.driver.paces if address == f"SceneDesk:{self.name}")
        await self.until_event(started_steps, len(SCENES[self.name][1]))
        return sending

    async def end(self) -> None:
        """Return when the turn is over, and its workflow."""
        await (await self.desk()).turns.wait(self.turn)
        await until_async(self.is_closed)

    async def is_closed(self) -> bool:
        return (await self.workflow.describe()).close_time is not None

    async def until_event(self, count: Callable[[Any], int], wanted: int) -> None:
        """Return when the history of the workflow has so many of something."""

        async def has() -> bool:
            try:
                return count(await self.workflow.fetch_history()) >= wanted
            except RPCError:  # it is not there yet
                return False

        await until_async(has)


def started_steps(history: WorkflowHistory) -> int:
    return sum(event.activity_task_scheduled_event_attributes.activity_type.name == STEP for event in history.events)


def finished_looks(history: WorkflowHistory) -> int:
    scheduled = {
        event.event_id
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name == LOOK
    }
    return sum(
        event.activity_task_completed_event_attributes.scheduled_event_id in scheduled for event in history.events
    )


@asynccontextmanager
async def worked(app: App) -> AsyncGenerator[None, None]:
    """Serve an app, and work for its driver, in this process."""
    assert isinstance(app.driver, TemporalDriver)
    until = asyncio.Event()
    async with app, serving(app) as site:
        working = asyncio.create_task(work(app.driver, f"http://127.0.0.1:{site.port}", until))
        try:
            yield
        finally:
            until.set()
            await working


async def until(is_so: Callable[[], bool]) -> None:
    async def looked() -> bool:
        return is_so()

    await until_async(looked)


async def until_async(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(patience()):
        while not await is_so():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(0.02)


async def histories(client: Client, workflow: str) -> list[WorkflowHistory]:
    """Return the history of a workflow, those it continues, and those of its children."""
    found: list[WorkflowHistory] = []
    runs: list[tuple[str, str | None]] = [(workflow, None)]
    for id, run in runs:
        history = await client.get_workflow_handle(id, run_id=run).fetch_history()
        found.append(history)
        for event in history.events:
            begun = event.child_workflow_execution_started_event_attributes.workflow_execution
            before = event.workflow_execution_started_event_attributes.continued_execution_run_id
            runs += [(begun.workflow_id, begun.run_id)] if begun.workflow_id else []
            runs += [(id, before)] if before else []
    return found


async def begun_below(stage: Stage, count: int) -> list[WorkflowHandle[Any, str]]:
    """Return the workflows of so many runs below, once each has asked for its first step."""
    found: list[WorkflowHandle[Any, str]] = []
    async with asyncio.timeout(patience()):
        while len(found) < count:
            all_of_them = await histories(stage.client, stage.workflow.id)
            below = [one for one in all_of_them if one.workflow_id != stage.workflow.id and started_steps(one)]
            found = [stage.client.get_workflow_handle(one.workflow_id) for one in below]
    return found


async def to_its_end(stage: Stage) -> None:
    await stage.ask()
    await stage.end()


async def approved(stage: Stage) -> None:
    await stage.ask()
    await stage.until_event(finished_looks, 1)
    desk = await stage.desk()
    (question,) = await desk.questions.list()
    await desk.questions.approve(question.id)
    await stage.end()


async def waiting(stage: Stage) -> None:
    await stage.ask()
    await stage.until_event(finished_looks, 2)


async def under_way(stage: Stage) -> None:
    await stage.begin()


async def stopped(stage: Stage) -> None:
    sending = await stage.begin()
    await (await stage.desk()).turns.cancel()
    await sending
    await stage.end()


async def interrupted(stage: Stage) -> None:
    sending = await stage.begin()
    await stage.workflow.signal(INTERRUPT, "enough")
    await sending
    await stage.end()


async def cancelled(stage: Stage) -> None:
    sending = await stage.begin()
    await stage.workflow.cancel()
    await sending
    await stage.end()


async def stopped_waiting(stage: Stage) -> None:
    await stage.ask()
    await (await stage.desk()).turns.cancel(stage.turn)
    await stage.end()


async def interrupted_above(stage: Stage) -> None:
    sending = await stage.begin()
    below = await begun_below(stage, 2)
    await stage.workflow.signal(INTERRUPT, "enough")
    await sending
    await stage.end()
    for one in below:
        await one.result()


async def sent_off(stage: Stage) -> None:
    await to_its_end(stage)
    await begun_below(stage, 1)


async def destroyed(stage: Stage) -> None:
    await stage.ask()
    await (await stage.desk()).leave()
    await until_async(stage.is_closed)


async def interrupted_waiting(stage: Stage) -> None:
    await stage.ask()
    await stage.workflow.signal(INTERRUPT, "enough")
    await stage.end()


async def cancelled_waiting(stage: Stage) -> None:
    await stage.ask()
    await stage.workflow.cancel()
    await stage.end()


async def cleared(stage: Stage) -> None:
    await stage.ask()
    await (await stage.desk()).conversation.clear()
    await until_async(stage.is_closed)


SCENES: dict[str, tuple[Callable[[Stage], Awaitable[None]], list[Line]]] = {
    "one-step": (to_its_end, [text("Good morning.")]),
    "tools": (to_its_end, [WEIGH, text("It weighs 3 kg.")]),
    "children": (to_its_end, [calls(*HELP, DIG), text("All is done.")]),
    "a-child-fails": (to_its_end, [calls(HELP[0], FAIL), text("Not all is done.")]),
    "failed": (to_its_end, [fails(Refused("out of order"))]),
    "continued": (to_its_end, [WEIGH, WEIGH, WEIGH, text("It weighs 3 kg.")]),
    "approved": (approved, [SELL, text("It is sold.")]),
    "waiting": (waiting, [SELL]),
    "under-way": (under_way, [WEIGH, SLOW]),
    "stopped": (stopped, [WEIGH, SLOW]),
    "stopped-waiting": (stopped_waiting, [SELL]),
    "interrupted": (interrupted, [SLOW]),
    "interrupted-above": (interrupted_above, [calls(*LONG)]),
    "sent-off": (sent_off, [SEND_OFF, text("It is on its way.")]),
    "destroyed": (destroyed, [SELL]),
    "interrupted-waiting": (interrupted_waiting, [SELL]),
    "cancelled": (cancelled, [SLOW]),
    "cancelled-waiting": (cancelled_waiting, [SELL]),
    "cleared": (cleared, [SELL]),
}
"""How each is played, and what the model says in it."""
