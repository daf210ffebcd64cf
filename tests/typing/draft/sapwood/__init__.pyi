# The API sapwood aims at, as signatures only.
#
# What is built lives in src/sapwood and is checked there; this file keeps the part
# that is still to come (runs) honest until it is.

from collections.abc import Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

O = TypeVar("O", default=str)
F = TypeVar("F")

class Run(Generic[O]):
    id: str
    status: str
    output: O

class AgentTool: ...

def agent_tool(cls: type[ChatAgent[Any]], *, description: str, input: type[Any] = ...) -> AgentTool: ...

class ChatAgent(Generic[O]):
    model: Any
    instructions: str
    output_type: type[O]
    children: Sequence[AgentTool]
    async def run_agent(self, cls: type[ChatAgent[F]], input: object, *, run_id: str | None = ...) -> Run[F]: ...
