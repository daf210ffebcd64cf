"""What agents do while Temporal drives them, and everything that does is killed.

A planner has four work for it side by side: one talks, one fails, one has a helper of its own, and one
is no conversation at all. It weighs something itself, and asks a person before it publishes. A second
conversation is cancelled in the middle of it. All of it is scripted: what is stored at the end does not depend on
what was killed, nor when.

Whoever does something writes it down outside, in a line that survives its process:

    asked    agent, turn, how many answers came before    a model begins to answer
    called   agent, tool call, tool                       a tool begins, or a step of a method
    returned agent, tool call, tool                       it is about to return
    ended    agent, turn, status                          a turn is over, and that is kept
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.faults import chat_rules

from sapwood import Agent, ChatAgent, Turn, agent_tool, tool
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.turn.intake import Intake
from sapwood.runs.execution.contract import doing

TURN = "t1"
FOR_EVER = 3600.0
SLOWEST = 0.06
"""Seconds between two words, at most."""
DEEP = "deep"
"""The word that has a helper far down ask a person, too."""

Said = str | list[tuple[str, str, dict[str, Any]]]
"""What a model says: words, or the tools that it calls, each with the call's id and arguments."""


class World:
    """Where the lines go that a process writes."""

    journals: Path

    def note(self, kind: str, agent: Agent[Any], *line: object) -> None:
        address = agent.address
        text = json.dumps([kind, os.getpid(), str(address), *line]).encode() + b"\n"
        descriptor = os.open(self.journals / f"{address.root.name}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, text)
        os.fsync(descriptor)
        os.close(descriptor)


WORLD = World()


async def takes_time() -> None:
    await asyncio.sleep(random.random() * SLOWEST)


def first_said(messages: list[ModelMessage]) -> str:
    """Return what the user said."""
    return str(getattr(messages[0].parts[-1], "content", ""))


class Driven(ChatAgent[str]):
    """A conversation whose model says one thing after the other."""

    script: ClassVar[tuple[Said, ...]] = ("done",)
    max_steps = 10

    def get_model(self) -> Any:
        return FunctionModel(stream_function=self._say, model_name="scripted")

    def _next(self, at: int, messages: list[ModelMessage]) -> Said:
        return self.script[min(at, len(self.script) - 1)]

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        at = sum(message.kind == "response" for message in messages)
        found = doing.get()
        WORLD.note("asked", self, found[1] if found is not None else None, at)
        for problem in chat_rules.broken(messages, is_asked=True):
            WORLD.note("wrong", self, f"the model was asked what no provider takes: {problem}")
        said = self._next(at, messages)
        await takes_time()
        if isinstance(said, str):
            for word in said.split(" "):
                yield f"{word} "
                await takes_time()
            return
        for number, (name, id, arguments) in enumerate(said):
            yield {number: DeltaToolCall(name=name, json_args=json.dumps(arguments), tool_call_id=id)}
            await takes_time()

    async def after_turn(self, turn: Turn) -> None:
        await self.flush()
        WORLD.note("ended", self, turn.id, turn.status)

    async def _do(self, name: str, call: str) -> str:
        WORLD.note("called", self, call, name)
        await takes_time()
        WORLD.note("returned", self, call, name)
        return f"did {call}"


class DrivenScout(Driven):
    """Looks around."""

    script = ("I have looked around",)


class DrivenLoser(Driven):
    """Fails."""

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        async for word in super()._say(messages, info):
            yield word
            raise ValueError("it cannot be done")


class DrivenDigger(Agent):
    """Digs, in two steps."""

    async def on_run(self, input: str) -> str:
        first = await self.step("first", self._dig, "first")
        return f"{first} and {await self.step('second', self._dig, 'second')}"

    async def _dig(self, what: str) -> str:
        WORLD.note("called", self, what, "dig")
        await takes_time()
        WORLD.note("returned", self, what, "dig")
        return f"dug {what}"


class DrivenGuide(Driven):
    """Has another look around, and perhaps asks whether it may go further."""

    tools = (agent_tool(DrivenScout),)
    script = ([("driven_scout", "g1", {"message": "look"})], "I know the way")

    def _next(self, at: int, messages: list[ModelMessage]) -> Said:
        if at == 1 and DEEP in first_said(messages):
            return [("go_further", "g2", {})]
        return super()._next(at, messages)

    @tool(requires_approval=True, idempotent=True)
    async def go_further(self) -> str:
        """Go where nobody was."""
        return await self._do("go_further", "g2")


class Rooted(Driven):
    """One that people talk to, by HTTP."""

    async def on_request(self, request: Request) -> Response:
        return JSONResponse(await self.do(**await request.json()))

    async def do(self, what: str, say: str = "") -> dict[str, Any]:
        """Begin, approve, cancel, or only look; return how the turn stands, and who waits for a person."""
        if what == "begin":
            message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": say}]}
            self._actor.of(Intake).ask([message], id=TURN)
        elif what == "approve":
            for question in await self.questions.list():
                await self.questions.approve(question)
        elif what == "cancel":
            await self.turns.cancel(TURN)
        row = self._actor.of(ConversationRecord).turns.get(TURN)
        waits = [one.id for one in await self.questions.list()]
        return {"status": None if row is None else row.status, "waits": waits}


class DrivenPlanner(Rooted):
    """Plans."""

    tools = (agent_tool(DrivenScout), agent_tool(DrivenLoser), agent_tool(DrivenGuide), agent_tool(DrivenDigger))

    def _next(self, at: int, messages: list[ModelMessage]) -> Said:
        asked = first_said(messages)
        return (
            [
                ("driven_scout", "p1", {"message": asked}),
                ("driven_loser", "p2", {"message": asked}),
                ("driven_guide", "p3", {"message": asked}),
                ("driven_digger", "p4", {"message": asked}),
                ("weigh", "p5", {}),
                ("journal", "p6", {}),
            ],
            [("publish", "p7", {})],
            "all is done",
        )[at]

    @tool(idempotent=True)
    async def weigh(self) -> str:
        """Weigh it."""
        return await self._do("weigh", "p5")

    @tool
    async def journal(self) -> str:
        """Write it down, which must not happen twice."""
        return await self._do("journal", "p6")

    @tool(requires_approval=True, idempotent=True)
    async def publish(self) -> str:
        """Publish it."""
        return await self._do("publish", "p7")


class DrivenSleeper(Driven):
    """Thinks, and never comes to an end."""

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        async for word in super()._say(messages, info):
            yield word
            await asyncio.sleep(FOR_EVER)


class DrivenHolder(Driven):
    """Waits for one that never comes to an end."""

    tools = (agent_tool(DrivenSleeper),)
    script = ([("driven_sleeper", "h1", {"message": "think"})], "never said")


class DrivenWanderer(Rooted):
    """Is cancelled."""

    tools = (agent_tool(DrivenScout), agent_tool(DrivenHolder), agent_tool(DrivenSleeper))
    script = (
        [
            ("driven_scout", "w1", {"message": "look"}),
            ("driven_holder", "w2", {"message": "hold"}),
            ("driven_sleeper", "w3", {"message": "think"}),
        ],
        "never said",
    )


ROOTS = (DrivenPlanner, DrivenWanderer)
ONCE = ("journal",)
"""Tools that are not called again, also if nobody knows whether they were."""
