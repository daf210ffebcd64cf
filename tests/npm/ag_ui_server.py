"""The chat agents that the unmodified clients of AG-UI talk to, on a real server.

    sapwood serve ag_ui_server.py:app --data DATA

What is said to them says what they do. What their tools do is a line in the file `AG_UI_COUNTS`, so that a test sees
what was done twice, also by another process. With `hangs`, a model or a tool stops in the middle in the first process
that gets there, and is quick in the next. What is in the folder `AG_UI_PAGES` is served as pages.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic_ai.messages import ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel

from sapwood import App, ChatAgent, agent_tool, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import AgUi

COUNTS = Path(os.environ["AG_UI_COUNTS"])
WORDS = [f"w{number}" for number in range(40)]
HANGING = ("story hangs", "time hangs")
"""Prompts whose answer stops in the middle of its words."""


def note(what: str) -> None:
    """Write down what was done."""
    with COUNTS.open("a") as file:
        file.write(f"{what}\n")


def is_first(what: str) -> bool:
    """Return whether nothing got here before, in this process or another."""
    is_new = not COUNTS.exists() or f"reached {what}" not in COUNTS.read_text().split("\n")
    if is_new:
        note(f"reached {what}")
    return is_new


class Scripted(ChatAgent):
    """Says and does what the last message of the user says, step by step."""

    def get_model(self) -> Any:
        return FunctionModel(stream_function=self._say)

    def _script(self, prompt: str) -> list[Any]:
        """Return what each request to the model gives: words, or a tool with its arguments. Override it."""
        raise NotImplementedError

    async def _say(self, messages: Any, info: Any) -> AsyncIterator[Any]:
        asked = [at for at, one in enumerate(messages) if isinstance(one, ModelRequest) and prompt_of(one)]
        done = sum(isinstance(one, ModelResponse) for one in messages[asked[-1] :])
        prompt = prompt_of(messages[asked[-1]])
        steps = self._script(prompt)
        step = steps[min(done, len(steps) - 1)]
        if "think" in prompt:
            yield {0: DeltaThinkingPart(content="let me ")}
            yield {0: DeltaThinkingPart(content="think")}
        if isinstance(step, tuple):
            name, arguments = step
            yield {1: DeltaToolCall(name=name, json_args=arguments, tool_call_id=f"{self.name}-{prompt}-{done}")}
            return
        hangs = prompt in HANGING and is_first(f"{self.name} {prompt}")
        for at, word in enumerate(step):
            yield f"{word} "
            if hangs and at == len(step) // 2:
                await asyncio.Event().wait()


def prompt_of(message: Any) -> str:
    texts = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    return str(texts[-1]) if texts else ""


class Writer(Scripted):
    """Writes, looks things up, and has a state."""

    initial_state: ClassVar[dict[str, Any]] = {"looked": [], "title": "none"}

    def _script(self, prompt: str) -> list[Any]:
        if prompt.startswith("look"):
            return [("look", '{"what": "tree"}'), ("linger", "{}"), ["seen"]]
        if prompt.startswith("time"):
            return [("get_time", '{"zone": "UTC"}'), ["it", "is", "noon"]]
        if prompt.startswith("choose"):
            return [("choose", "{}"), ["chosen"]]
        return [WORDS]

    @tool
    async def look(self, what: str) -> str:
        """Look at something."""
        note(f"{self.name} looked")
        self.set_state({**self.state, "looked": [*self.state["looked"], what]})
        return f"{what} seen"

    @tool(idempotent=True)
    async def linger(self) -> str:
        """Take long, the first time."""
        if "hangs" in str(self.conversation.history()) and is_first(f"{self.name} linger"):
            await asyncio.Event().wait()
        note(f"{self.name} lingered")
        return "done"

    @tool(idempotent=True)
    async def choose(self) -> str:
        """Have a person choose."""
        chosen = await self.questions.ask("Which color?", options=("red", "blue"), approvers=ANY_CLIENT)
        note(f"{self.name} chose {chosen}")
        return str(chosen)


class Clerk(Scripted):
    """Pays when a person allows it."""

    def _script(self, prompt: str) -> list[Any]:
        return [("pay", '{"euros": 3}'), ["it", "is", "paid"]]

    @tool(requires_approval=True)
    async def pay(self, euros: int) -> str:
        """Pay."""
        note(f"paid {euros}")
        return f"{euros} paid"


class Buyer(Scripted):
    """Has a clerk pay."""

    tools = (agent_tool(Clerk, name="clerk"),)

    def _script(self, prompt: str) -> list[Any]:
        return [("clerk", '{"message": "pay 3"}'), ["the", "clerk", "paid"]]


class Office(Scripted):
    """Has a buyer buy."""

    tools = (agent_tool(Buyer, name="buyer"),)

    def _script(self, prompt: str) -> list[Any]:
        return [("buyer", '{"message": "buy bread"}'), ["bought"]]


app = App(agents=[Writer, Office], protocols=[AgUi()], pages=os.environ.get("AG_UI_PAGES"))
