"""A bulletin: an editor, two reporters, and a print tool that requires approval."""

import os

from sapwood import ChatAgent, agent_tool, tool
from sapwood.testing import ScriptedModel, call, calls, text

PAUSE = float(os.environ.get("PAUSE", "0.1"))


class Reporter(ChatAgent):
    """Reports on one topic."""

    model = ScriptedModel(text("Nothing new, and nothing bad.", delay=PAUSE), each=True)


class Editor(ChatAgent):
    """Starts two reporters, and prints their reports."""

    model = ScriptedModel(
        calls(
            call("reporter", message="the weather"),
            call("reporter", message="the harbour"),
        ),
        call("print_it", copies=300),
        text("The bulletin is out.", delay=PAUSE),
        each=True,
    )
    tools = (agent_tool(Reporter),)

    @tool(requires_approval=True)
    async def print_it(self, copies: int) -> str:
        """Print the bulletin."""
        return f"{copies} copies printed"
