"""A bulletin: an editor, reporters, and a printer that a person has to agree to."""

import os

from sapwood import ChatAgent, agent_tool, tool
from sapwood.testing import ScriptedModel, call, calls, text

PAUSE = float(os.environ.get("PAUSE", "0.1"))


class Reporter(ChatAgent):
    """Looks into one thing."""

    model = ScriptedModel(text("Nothing new, and nothing bad.", delay=PAUSE), each=True)


class Editor(ChatAgent):
    """Has two reporters look around, and prints what they found."""

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
