# The API sapwood aims at, as signatures only.
#
# What is built lives in src/sapwood and is checked there; this file keeps the parts
# that are still to come (chat, schedules, runs) honest until they are.

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Concatenate, Generic, ParamSpec, Protocol
from typing import TypeVar as _TypeVar

from typing_extensions import Self, TypeVar

P = ParamSpec("P")
R = _TypeVar("R")
A = _TypeVar("A", bound=Agent[Any])
S = TypeVar("S", default=None)
O = TypeVar("O", default=str)

@dataclass(frozen=True)
class After:
    delay: timedelta
    key: str | None = ...
    def __init__(self, delay: timedelta, *, key: str | None = ...) -> None: ...

@dataclass(frozen=True)
class Cron:
    expression: str
    tz: str
    key: str | None = ...
    def __init__(self, expression: str, *, tz: str = ..., key: str | None = ...) -> None: ...

class Schedule:
    id: str
    due_at: datetime

When = timedelta | datetime | After | Cron

class Agent(Generic[S]):
    deps: Any
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> S: ...
    def set_state(self, state: S) -> None: ...
    async def on_start(self) -> None: ...
    async def sub_agent(self, cls: type[A], name: str) -> A: ...
    def schedule(self, when: When, method: Callable[P, Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs) -> Schedule: ...
    def queue(self, method: Callable[P, Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs) -> str: ...
    async def run_agent(self, cls: type[ChatAgent[O]], input: object, *, run_id: str | None = ...) -> Run[O]: ...

class Run(Generic[O]):
    id: str
    status: str
    output: O

class Turn:
    id: str
    status: str

class Approval:
    id: str
    tool: str

class Message:
    text: str

class AgentTool: ...

def agent_tool(cls: type[ChatAgent[Any]], *, description: str, input: type[Any] = ...) -> AgentTool: ...

class ChatAgent(Agent[None], Generic[O]):
    model: Any
    instructions: str
    output_type: type[O]
    children: Sequence[AgentTool]
    async def send(self, text: str) -> Turn: ...
    async def approvals(self) -> list[Approval]: ...
    async def approve(self, id: str, /) -> None: ...
    async def cancel_turn(self) -> None: ...
    async def last_message(self) -> Message: ...

class Decorator(Protocol):
    def __call__(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]: ...

def tool(*, requires_approval: bool = ..., idempotent: bool = ...) -> Decorator: ...

class App:
    def __init__(
        self,
        *,
        agents: Sequence[type[Agent[Any]]],
        deps: object | Callable[[], AbstractAsyncContextManager[object]] = ...,
        model: object = ...,
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...
    async def get_agent(self, cls: type[A], name: str) -> A: ...
