"""An editor with persistent children: reporters and a proofreader."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from sapwood import (
    Agent,
    App,
    ChatAgent,
    Run,
    Settings,
    on_child_state,
    persistent_agent,
    tool,
)
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import PathSegment


# --8<-- [start:children]
@dataclass(frozen=True)
class Desk:
    books: int = 0


class Reporter(ChatAgent[str, Desk]):
    """Writes an article, slowly."""

    model = ScriptedModel(
        call("read", id="r1", books=3), text("Bridges, with numbers."), each=True
    )
    initial_state = Desk()

    @tool(idempotent=True)
    async def read(self, books: int) -> str:
        """Read books."""
        for _ in range(books):
            await asyncio.sleep(0.1)
            self.set_state(Desk(books=self.state.books + 1))
        return "There are many bridges."


class Proofreader(ChatAgent):
    """Corrects texts, and remembers your preferences."""

    model = ScriptedModel(text("No mistakes."), text("One mistake."), each=True)


# --8<-- [end:children]
# --8<-- [start:editor]
class Editor(ChatAgent):
    tools = (
        persistent_agent(Reporter, mode="non-blocking", notify=True),
        persistent_agent(Proofreader),
    )
    # --8<-- [end:editor]
    model = ScriptedModel(
        call("spawn_agent", id="c1", agent="reporter", name="ann", message="Bridges."),
        call("send_message", id="c2", name="ann", message="Add numbers, please."),
        text("Ann is on it."),
        call(
            "spawn_agent",
            id="c3",
            agent="proofreader",
            name="bob",
            message="Bridges, with numbers.",
        ),
        call("send_message", id="c4", name="bob", message="And the title: Brigdes."),
        call("wait_for_result", id="c5", name="bob"),
        call("list_children", id="c6"),
        call("terminate_child", id="c7", name="ann"),
        text("It can be printed."),
        each=True,
    )
    migrations = ("CREATE TABLE printed (article TEXT NOT NULL) STRICT",)

    # --8<-- [start:finish]
    async def on_run_finish(self, run: Run) -> None:
        if run.ok and run.agent.type == "Reporter":
            self.sql("INSERT INTO printed VALUES (?)", run.output)

    # --8<-- [end:finish]
    # --8<-- [start:state]
    @on_child_state(Reporter)
    async def reads(self, child: PathSegment, desk: Desk) -> None:
        print(f"  {child.name} has read {desk.books} books")

    # --8<-- [end:state]
    async def printed(self) -> list[str]:
        return [str(row["article"]) for row in self.sql("SELECT article FROM printed")]


class Paper(Agent[int]):
    initial_state = 0

    async def next_edition(self) -> str:
        self.set_state(self.state + 1)
        return f"edition-{self.state}"


def describe(part: dict[str, Any]) -> str:
    if part["type"] == "text":
        return part["text"]
    return f"{part['type'].removeprefix('tool-')} → {part.get('output')}"


async def main(data: str) -> None:
    async with App(agents=[Paper, Editor], settings=Settings(data=data)) as app:
        paper = await app.get_agent(Paper, "main")
        editor = await app.get_agent(Editor, await paper.next_edition())
        await editor.send("An article about bridges, please.")
        # The second turn starts by itself when the article is finished.
        while len(await editor.conversation.messages()) < 4:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.05)
        print("printed:", await editor.printed())
        for message in await editor.conversation.messages():
            for part in message["parts"]:
                if part["type"] != "step-start":
                    print(f"{message['role']}: {describe(part)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "editors-data"))
