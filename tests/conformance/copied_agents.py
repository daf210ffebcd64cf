"""Agents whose turns are copied as tests. The copies import them from here."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel
from pydantic_ai import ModelRetry

from sapwood import Agent, ChatAgent, agent_tool, persistent_agent, tool
from sapwood.testing import ScriptedModel, call, text


class CopyScout(ChatAgent):
    """Scouts rivers."""

    model = ScriptedModel(text("6650 km, says the scout"), each=True)


class CopyGuide(ChatAgent):
    """Asks a scout."""

    tools = (agent_tool(CopyScout),)
    model = ScriptedModel(call("copy_scout", message="Nile", id="g1"), text("Ask about 6650 km"), each=True)


class CopyPupil(ChatAgent):
    """Studies, and receives messages."""


class CopyPlain(Agent):
    """Returns what it was given."""

    async def on_run(self, place: str) -> dict[str, Any]:
        if place == "nowhere":
            raise ValueError("There is no such place.")
        return {"place": place, "is_far": True, "guide": None}


class CopyDesk(ChatAgent):
    """Answers questions about rivers."""

    tools = (
        agent_tool(CopyScout),
        agent_tool(CopyGuide),
        agent_tool(CopyPlain),
        persistent_agent(CopyPupil, mode="non-blocking", name="pupil"),
    )
    held: asyncio.Event
    """Set by the test."""
    begun = 0

    @tool
    async def look(self, about: str) -> dict[str, Any]:
        """Look something up."""
        return {"about": about, "km": 6650}

    @tool
    async def fail(self, why: str) -> str:
        """Fail."""
        raise ValueError(why)

    @tool
    async def doubt(self, river: str) -> str:
        """Ask the model to correct itself."""
        if river == "Nil":
            raise ModelRetry("Did you mean the Nile?")
        return f"{river} is long"

    @tool(requires_approval=True)
    async def pay(self, amount: int, to: str = "the ferryman") -> str:
        """Pay."""
        return f"paid {amount} to {to}"

    @tool
    async def choose(self) -> str:
        """Let a person choose."""
        return await self.questions.ask("Which river?", options=["Nile", "Rhine"])

    @tool
    async def sign_in(self, user: str, password: str) -> dict[str, str]:
        """Sign in."""
        return {"user": user, "token": password[::-1]}

    @tool(idempotent=True)
    async def wait(self) -> str:
        """Wait for the test, the first time."""
        type(self).begun += 1
        if type(self).begun == 1:
            await self.held.wait()
        return "waited"

    @tool
    async def odd(self, **given: str) -> list[str]:
        """Take arguments of any name."""
        return sorted(given)


class CopyChief(ChatAgent):
    """Asks the desk, and keeps guides."""

    tools = (agent_tool(CopyDesk), persistent_agent(CopyGuide, mode="blocking", name="guide"))


class CopyRecipe(BaseModel):
    """A dish."""

    dish: str
    minutes: int
    steps: list[str] = []


class CopyHasty(CopyDesk):
    """Gives up soon."""

    max_steps = 2
    max_retries = 1


class CopyCook(ChatAgent[CopyRecipe]):
    """Answers with a recipe."""


class CopyCounter(ChatAgent[int]):
    """Answers with the output of a function."""

    def _count(self, word: str) -> int:
        if word == "empty":
            raise ModelRetry("Another word.")
        return len(word)

    output_type = _count


class CopyShort(ChatAgent):
    """Compacts its conversation soon."""

    compact_above = 60

    async def compact(self, messages: list[object]) -> str:
        return f"{len(messages)} messages were here."


class CopyWarehouse:
    """What agents of an app may need."""

    async def stock(self) -> int:
        raise AssertionError("A recorded tool does not run.")


class CopyKeeper(ChatAgent):
    """Needs what the app has, and waits for further messages."""

    deps: CopyWarehouse
    concurrency = "debounce"


class CopyResponder(ChatAgent):
    """Has no model."""

    async def respond(self, turn: Any) -> Any:
        yield "no model"
