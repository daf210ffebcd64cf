"""An assistant with helper agents. One of them has its own helper."""

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
    """Researches one topic on the web, and writes a summary with its sources."""

    model = MODEL or Offline(as_researcher)
    instructions = (
        "You research one topic. Search two or three times: once for the topic "
        "itself, once for its drawbacks, once for its use in practice. Then write a "
        "summary in Markdown: one bullet for each search, and a line with your "
        "sources. Later questions are about your results."
    )

    @tool(idempotent=True)
    async def web_search(self, query: str) -> list[dict[str, str]]:
        """Search the web (simulated). Returns a title, a URL and a text each."""
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
        "You plan changes to a small repository. Inspect README.md first, then the "
        "most important file. Use `research` for facts that you do not know. Then "
        "write a plan in Markdown with four headings: Overview, Affected files, "
        "Step-by-step, Open questions. If the research fails, say so under the last."
    )
    tools = (agent_tool(Researcher, name="research", input=Question),)

    @tool(idempotent=True)
    async def inspect_file(self, path: str) -> str:
        """Read a file of the repository (simulated)."""
        return await crew_sources.read(path)


# --8<-- [end:planner]
# --8<-- [start:assistant]
class Assistant(ChatAgent):
    model = MODEL or Offline(as_assistant)
    instructions = (
        "You are an assistant with helpers. Use `compare` for requests to compare or "
        "contrast two things, `plan` for questions like 'how do I implement…', and "
        "`research` for other questions about the world. For several topics, call "
        "`research` several times at once. The user sees the texts of the helpers: do "
        "not repeat them, but draw the conclusion, in a few sentences or a short "
        "list. If one half of a comparison has an error instead of a summary, name "
        "the missing half, and answer only from the other."
    )
    # --8<-- [start:tools]
    tools = (
        agent_tool(Researcher, name="research", input=Question),
        agent_tool(Planner, name="plan", input=Goal),
    )

    @tool(idempotent=True)
    async def compare(self, a: str, b: str) -> dict[str, Any]:
        """Research two topics in parallel, to compare or contrast them."""
        first, second = await asyncio.gather(self._research(a), self._research(b))
        return {"a": first, "b": second}

    async def _research(self, query: str) -> dict[str, Any]:
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
