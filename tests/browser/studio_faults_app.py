"""An app with five faults, for an operator who has only the studio."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any, ClassVar

from pydantic_ai import ModelSettings

from sapwood import After, Agent, App, ChatAgent, Every, Limits, Per, Retry, Settings, agent_tool, expose, tool
from sapwood.auth import ANY_CLIENT
from sapwood.testing import ScriptedModel, call, text

STORM = Retry(max_attempts=100_000, initial_delay=timedelta(milliseconds=50), max_delay=timedelta(milliseconds=100))
IS_RENAMED = "RENAMED" in os.environ


class ClaimsDesk(ChatAgent):
    """Waits for an approval that nobody has seen."""

    model = ScriptedModel(call("refund", euros=90, id="r1"), text("The claim is paid."), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def refund(self, euros: int) -> str:
        """Pay a claim."""
        return f"{euros} euros"

    @expose
    async def prepare(self) -> None:
        await self.turns.start("My parcel is broken.")


class Courier(Agent):
    """Calls a service that is gone, again and again."""

    @expose
    async def prepare(self) -> None:
        self.queues["parcels"].with_retry(STORM).add(self.deliver, "parcel 7")

    async def deliver(self, what: str) -> None:
        raise ConnectionError(f"depot-3 does not answer: {what} stays here")


class Archive(Agent):
    """Computes for a long time, every second."""

    @expose
    async def prepare(self) -> None:
        self.schedule(Every(timedelta(seconds=1)), self.index)

    async def index(self) -> None:
        end = time.thread_time() + 0.5  # of the CPU: the watchdog measures that, too
        while time.thread_time() < end:
            sum(range(10_000))


class Postman(Agent[dict[str, Any]]):
    """Has a method that a later version of the program calls otherwise."""

    initial_state: ClassVar = {"sent": []}

    @expose
    async def prepare(self) -> None:
        self.schedule(After(timedelta(hours=1), key="letter"), getattr(self, "send_mail"), "ann")  # noqa: B009

    if IS_RENAMED:

        async def send_letter(self, to: str) -> None:
            self.set_state({"sent": [*self.state["sent"], to]})

    else:

        async def send_mail(self, to: str) -> None:
            self.set_state({"sent": [*self.state["sent"], to]})


class Digger(ChatAgent):
    """Has a budget that one answer uses up."""

    limits = Limits(tokens=Per("day", 150, extend_by=10_000, approvers=ANY_CLIENT))
    model_settings = ModelSettings(max_tokens=100)
    model = ScriptedModel(call("dig", id="g1"), text("There is clay."), each=True)

    @tool
    async def dig(self) -> str:
        """Dig a hole."""
        return "clay " * 20


class Survey(ChatAgent):
    """Waits for a sub-agent that is over its budget."""

    tools = (agent_tool(Digger),)
    model = ScriptedModel(call("digger", message="What is below?", id="s1"), text("Clay, says the digger."), each=True)

    @expose
    async def prepare(self) -> None:
        await self.turns.start("Can we build here?")


app = App(agents=[ClaimsDesk, Courier, Archive, Postman, Survey], settings=Settings(slow_after=0.2))
