"""The agents that use each other while the unmodified npm clients watch, on a real server.

    sapwood serve runs_server.py:site --data DATA

What is said to a lead says whom it asks for what: `ask say a 20 5` has a scholar say twenty words, a0 to
a19, one every 5 ms; `ask … | …` has two of them work at once; `compare … | …` has one tool do so;
`manage ask …` has a manager ask a scholar. Words wait for a test as those of `chat_server` do: everything
that waits anywhere below a lead is let go by the lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from chat_server import LIFE, Watched, held, in_pages, pause, prompt_of
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models.function import DeltaThinkingPart
from starlette.applications import Starlette

from sapwood import Agent, App, Refused, agent_tool, expose, tool
from sapwood.testing import ScriptedModel, call, calls, fails, text
from sapwood.testing.script_lines import Line

THOUGHTS = ("first", " this,", " then", " that")


def words(word: str, count: str, delay: str) -> Line:
    said = [LIFE, *(f"{word}{number}" for number in range(int(count)))]
    return text(" ".join(said), delay=int(delay) / 1000)


def script(prompt: str) -> list[Line]:
    """Return what an agent says, and whom it asks, when it is told this."""
    what, _, rest = prompt.partition(" ")
    tasks = [one.strip() for one in rest.split("|")]
    arguments = [one for one in rest.split() if not one.startswith("@")]
    if what == "ask":
        return [calls(*(call("scholar", message=task) for task in tasks)), words("z", "3", "0")]
    if what == "manage":
        return [calls(*(call("manager", message=task) for task in tasks)), words("z", "3", "0")]
    if what == "compare":
        return [call("compare", left=tasks[0], right=tasks[1]), words("z", "3", "0")]
    if what == "look":
        asking = Line(text="Let me see.", calls=(("look", {"what": "it"}, None),))
        return [asking, words(arguments[0], arguments[1], arguments[2])]
    if what == "steps":
        return [call("steps"), words(arguments[0], arguments[1], arguments[2])]
    if what == "fail":
        return [fails(Refused("The library is closed."))]
    return [words(arguments[0], arguments[1], arguments[2])]


def thinking(model: Any) -> Any:
    """Have a model think aloud before it speaks."""
    say = model.stream_function

    async def aloud(messages: Any, info: Any) -> AsyncIterator[Any]:
        for thought in THOUGHTS:
            yield {0: DeltaThinkingPart(content=thought)}
        async for said in say(messages, info):
            yield said

    model.stream_function = aloud
    return model


class Told(Watched):
    """Does as it is told."""

    @property
    def lead(self) -> str:
        """The name of the root, by which everything below it is let go."""
        return self.address.segments[0].name

    def get_model(self) -> Any:
        history = self.conversation.history()
        asked = [at for at, message in enumerate(history) if isinstance(message, ModelRequest) and prompt_of(message)]
        done = sum(isinstance(message, ModelResponse) for message in history[asked[-1] :])
        prompt = prompt_of(history[asked[-1]])
        lines = script(prompt)
        model = held(ScriptedModel(*lines[done:] or lines[-1:]), self.lead, waits(prompt))
        return thinking(model) if prompt.startswith("think ") else model


def waits(prompt: str) -> set[str]:
    """Return the marks of words after which whoever is told this waits; what it passes on is not its own."""
    return set() if prompt.startswith(("ask ", "manage ")) else {one for one in prompt.split() if one[0] == "@"}


class Scholar(Told):
    """Knows something."""

    @tool
    async def look(self, what: str) -> str:
        """Look at something."""
        return f"{what} is fine"

    @tool
    async def steps(self) -> str:
        """Do something that takes a while."""
        self.report_progress(0.25, "looking", phase="search")
        await pause(self.lead, "looked")
        self.report_progress(0.5, milestone="found", data={"books": 2})
        await pause(self.lead, "found")
        self.report_progress(1.0, "read", phase="reading")
        await pause(self.lead, "read")
        self.report_progress(milestone="read")
        return "two books"


class Manager(Told):
    """Has scholars look things up."""

    tools = (agent_tool(Scholar),)


class Clerk(Agent):
    """Does something by a method, and says so as it goes."""

    async def on_run(self, input: str) -> AsyncIterator[str]:
        for number in range(10):
            yield f" {input}{number}"
            if number == 4:
                self.report_progress(0.5, milestone="half")
                await pause(self.address.segments[0].name, f"{input}4")


class Lead(Told):
    """Has others do it."""

    tools = (agent_tool(Scholar, display={"name": "The scholar"}), agent_tool(Manager))

    @tool(idempotent=True)
    async def compare(self, left: str, right: str) -> list[str]:
        """Have two scholars look at the same thing."""
        runs = await asyncio.gather(*(self.run_agent(Scholar, one) for one in (left, right)))
        return [run.summary or run.failure()["error"] for run in runs]

    @expose
    async def errand(self, what: str) -> None:
        """Have something done that no model asked for."""
        self.enqueue(self.do_errand, what)

    async def do_errand(self, what: str) -> None:
        await self.run_agent(Clerk, what)

    @expose
    async def helpers(self) -> list[str]:
        return [child.name for child in self.children.list()]


app = App(agents=[Lead, Manager, Scholar, Clerk])
site = Starlette(routes=in_pages(app), lifespan=app.lifespan)
