"""An assistant that has helpers, and one of them has a helper of its own."""

import asyncio
import os
from dataclasses import dataclass
from typing import Any

from sapwood import ChatAgent, Connection, agent_tool, tool

import crew_sources
from crew_script import Offline, as_assistant, as_planner, as_researcher

MODEL = os.environ.get("MODEL")


# --8<-- [start:researcher]
@dataclass(frozen=True)
class Question:
    query: str


class Researcher(ChatAgent):
    """Finds out about one thing on the web, and writes a summary with its sources."""

    model = MODEL or Offline(as_researcher)
    instructions = (
        "You research what you are asked to. Search two or three times: once for the "
        "thing itself, once for its drawbacks, once for how it is used in practice. "
        "Then write a summary in Markdown: one bullet for each of these, and a line "
        "that names your sources. Later questions are about what you have found."
    )

    @tool(idempotent=True)
    async def web_search(self, query: str) -> list[dict[str, str]]:
        """Search the web (a simulated one): a title, an address and a text each."""
        return await crew_sources.search(query)


# --8<-- [end:researcher]
# --8<-- [start:planner]
@dataclass(frozen=True)
class Goal:
    goal: str


class Planner(ChatAgent):
    """Plans how to build something in this repository, step by step."""

    model = MODEL or Offline(as_planner)
    instructions = (
        "You plan changes of a small repository. Inspect README.md first, then the "
        "file that matters most. Have somebody research what you do not know. Then "
        "write a plan in Markdown with four headings: Overview, Affected files, "
        "Step-by-step, Open questions. If the research failed, say so in the last."
    )
    tools = (agent_tool(Researcher, name="research", input=Question),)

    @tool(idempotent=True)
    async def inspect_file(self, path: str) -> str:
        """Read a file of the repository (a simulated one)."""
        return await crew_sources.read(path)


# --8<-- [end:planner]
# --8<-- [start:assistant]
class Assistant(ChatAgent):
    model = MODEL or Offline(as_assistant)
    instructions = (
        "You are an assistant with helpers. Use `compare` for everything that asks to "
        "compare or contrast two things, `plan` for everything like 'how do I "
        "implement…', and `research` for other questions about the world; call it "
        "several times at once for several things. The user sees what the helpers "
        "write: do not repeat it, say what follows from it, in a few sentences or a "
        "short list. If one half of a comparison has an error instead of a summary, "
        "say what is missing, and answer from the other half only."
    )
    # --8<-- [start:tools]
    tools = (
        agent_tool(Researcher, name="research", input=Question),
        agent_tool(Planner, name="plan", input=Goal),
    )

    @tool(idempotent=True)
    async def compare(self, a: str, b: str) -> dict[str, Any]:
        """Research two things at once, to compare or contrast them."""
        in_a, in_b = await asyncio.gather(self._find(a), self._find(b))
        return {"a": in_a, "b": in_b}

    async def _find(self, query: str) -> dict[str, Any]:
        run = await self.run_agent(Researcher, Question(query))
        if run.ok:
            return {"query": query, "summary": run.output}
        return {"query": query, "error": run.error or run.reason}

    # --8<-- [end:tools]
    async def on_start(self) -> None:
        self.set_state({"model": MODEL or "offline script"})  # for the page to show

    def is_readonly(self, connection: Connection) -> bool:
        return True


# --8<-- [end:assistant]
