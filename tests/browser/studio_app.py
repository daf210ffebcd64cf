"""The agents that the tests of the studio look at: a plant with branches, and a desk that has much to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from sapwood import After, Agent, App, ChatAgent, Every, Retry, Turn, agent_tool, expose, tool
from sapwood.auth import ANY_CLIENT
from sapwood.testing import ScriptedModel, call, calls, text

SLOWLY = float(os.environ.get("PAUSE", "0.02"))
ONCE = Retry(max_attempts=1)
SAID = """Here is what I found.

| river | length |
|---|---|
| Nile | 6,650 km |
| Amazon | 6,400 km |

The **Nile** is the longest, by `250 km`."""


class Branch(Agent[dict[str, Any]]):
    """Is below a plant."""

    initial_state: ClassVar = {
        "leaves": 3,
        "colors": ["green", "red"],
        "secret": "sap",
        "healthy": True,
        "parent": None,
    }

    async def on_run(self, number: int) -> AsyncGenerator[str, None]:
        """Count the leaves."""
        for leaf in range(number):
            yield f"leaf {leaf}. "


class Grafter(Agent):
    """Is below a plant, and works in steps."""

    async def on_run(self, twig: str) -> str:
        """Graft a twig."""
        length = await self.step("cut", len, twig)
        self.report_progress(milestone="cut off", data={"length": length})
        return await self.step("bind", twig.upper)


class Plant(Agent):
    """Has branches, schedules, queued calls and letters that nobody could deliver."""

    migrations = ("CREATE TABLE leaves (id INTEGER PRIMARY KEY, color TEXT NOT NULL, size REAL) STRICT",)

    @expose
    async def grow(self, names: list[str]) -> int:
        """Make branches."""
        for name in names:
            await self.sub_agent(Branch, name)
        self.sql("INSERT INTO leaves (color, size) VALUES ('green', 2.5), ('<b>red</b>', NULL)")
        return len(names)

    @expose
    async def plan(self) -> None:
        """Schedule calls, one of which fails for good."""
        self.schedule(timedelta(days=2), self.water, 5)
        self.schedule(Every(timedelta(hours=1)), self.water, 1)
        self.schedule(After(timedelta(0), retry=ONCE), self.fall, "an apple")

    @expose
    async def hang(self) -> None:
        """Hang up a net: nothing falls on a head from now on."""
        self.sql("INSERT INTO leaves (color) VALUES ('net')")

    @expose
    async def survey(self, leaves: int) -> str:
        """Let a branch count its leaves."""
        return (await self.run_agent(Branch, leaves)).status

    @expose
    async def graft(self, twig: str) -> str:
        """Let a twig be grafted."""
        return (await self.run_agent(Grafter, twig)).status

    @expose
    async def press(self, name: str, text: str) -> None:
        """Store a file."""
        await self.files.put(text.encode(), name=name, media_type="text/plain")

    @expose
    async def count(self, to: int) -> int:
        """Return a number after a while."""
        await asyncio.sleep(SLOWLY)
        return to

    async def water(self, liters: int) -> None:
        self.sql("UPDATE leaves SET size = size + ?", liters)

    async def fall(self, what: str) -> None:
        if not self.sql("SELECT 1 FROM leaves WHERE color = 'net'"):
            raise ValueError(f"{what} fell on a head")


class Researcher(ChatAgent):
    """Looks things up for a desk."""

    model = ScriptedModel(call("look", about="rivers", id="r1"), text("The Nile: 6,650 km.", delay=SLOWLY), each=True)
    instructions = "You look things up."

    @tool(idempotent=True)
    async def look(self, about: str) -> dict[str, Any]:
        """Look something up."""
        await asyncio.sleep(5 * SLOWLY)
        return {"about": about, "km": 6650}


class Desk(ChatAgent):
    """Answers with the help of researchers, and asks before it publishes."""

    model = ScriptedModel(
        calls(call("researcher", message="The Nile?", id="d1"), call("researcher", message="The Amazon?", id="d2")),
        call("publish", title="Rivers", id="d3"),
        text(SAID, delay=SLOWLY / 4),
        each=True,
    )
    instructions = "You answer questions about rivers."
    tools = (agent_tool(Researcher),)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def publish(self, title: str) -> str:
        """Publish an article."""
        return f"published {title}"

    @expose
    async def ask(self, what: str) -> str:
        """Send a message, and return the status of the turn."""
        return (await self.send(what)).status

    @expose
    async def inquire(self) -> None:
        """Ask a person several things."""
        self.start_fiber("inquire", self.inquiry)

    async def inquiry(self) -> None:
        await self.questions.ask("Which river next?", options=["Rhine", "Danube"])
        await self.questions.ask("Why that one?")


class Miner(ChatAgent):
    """Calls thousands of tools in one turn."""

    model = ScriptedModel(
        *(calls(*(call("strike", id=f"{step}-{number}") for number in range(200))) for step in range(10)), text("Gold.")
    )

    @tool(idempotent=True)
    async def strike(self) -> int:
        """Strike a rock."""
        return 1

    @expose
    async def dig(self) -> None:
        """Dig for as long as it takes."""
        await self.send("Dig.")


class Talker(ChatAgent):
    """Talks for as long as it is not stopped."""

    model = ScriptedModel(text("One two three. " * 200, delay=2 * SLOWLY), each=True)

    @expose
    async def wake(self) -> None:
        """Do nothing."""


def append(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line)


class Walker(ChatAgent[str, dict[str, Any]]):
    """Counts what it was asked, has a note below it, and a schedule that rings outside."""

    initial_state: ClassVar = {"asked": 0}
    migrations = ("CREATE TABLE walks (number INTEGER PRIMARY KEY, place TEXT NOT NULL) STRICT",)
    model = ScriptedModel(text("Take the path along the river."), each=True)
    alternative_models: ClassVar = {"mountaineer": ScriptedModel(text("Climb the **hill** instead."), each=True)}

    async def after_turn(self, turn: Turn) -> None:
        number = self.state["asked"] + 1
        self.set_state({"asked": number, "advice": turn.text})
        self.sql("INSERT INTO walks VALUES (?, ?)", number, turn.text)

    @expose
    async def prepare(self, bell: str, questions: list[str]) -> None:
        """Schedule a call, and answer questions."""
        await self.sub_agent(Branch, "map")
        self.schedule(After(timedelta(hours=1), key="bell"), self.ring, bell)
        for question in questions:
            await self.send(question)

    async def ring(self, bell: str) -> None:
        await self.in_thread(append, bell, "rang\n")


class Guide(ChatAgent):
    """Plans trips."""

    model = ScriptedModel(text("Day 1: the old town. Day 2: the sea."))


app = App(agents=[Plant, Desk, Miner, Talker, Guide, Walker])
