"""What an A2A server sends, as values: agent cards, tasks, the events of streams, and errors."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sapwood.errors import RemoteRefused, Unavailable
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_wire import A2aMessage, A2aPart, Wire
from sapwood.wire.frames import read_json

T = TypeVar("T")
ANY: Any = Any
OVER = frozenset({*wire.OVER, "TASK_STATE_AUTH_REQUIRED"})
"""States in which a task is over for its caller: it can sign in nowhere on behalf of the task."""
INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
JSON_RPC = "JSONRPC"
SHOWN = 500
"""Characters of a server's error that are repeated."""


class Status(Wire):
    """How a task stands."""

    state: str
    message: A2aMessage | None = None
    timestamp: str | None = None


class Artifact(Wire):
    """A part of the result of a task."""

    artifact_id: str
    parts: list[A2aPart] = msgspec.field(default_factory=list[A2aPart])


class Task(Wire):
    """A task of a server."""

    id: str
    status: Status
    context_id: str | None = None
    artifacts: list[Artifact] | None = None
    history: list[A2aMessage] | None = None

    @property
    def is_over(self) -> bool:
        """Whether its caller has nothing to wait for."""
        return self.status.state in OVER


class StatusUpdate(Wire):
    """A task has another state."""

    task_id: str
    status: Status


class ArtifactUpdate(Wire):
    """A task has more of a result."""

    task_id: str
    artifact: Artifact
    append: bool = False


class Reply(Wire):
    """A result of `SendMessage`, or an event of a stream: one of these."""

    task: Task | None = None
    message: A2aMessage | None = None
    status_update: StatusUpdate | None = None
    artifact_update: ArtifactUpdate | None = None

    @property
    def task_id(self) -> str | None:
        """The task that it is about."""
        if self.task is not None:
            return self.task.id
        update = self.status_update or self.artifact_update
        return None if update is None else update.task_id


class TaskList(Wire):
    """A result of `ListTasks`."""

    tasks: list[Task] = msgspec.field(default_factory=list[Task])


class Interface(Wire):
    """Where and how an agent is called."""

    url: str
    protocol_binding: str = ""
    protocol_version: str = ""
    tenant: str | None = None


class Capabilities(Wire):
    """What an agent can do."""

    streaming: bool | None = None


class Card(Wire):
    """What an agent says of itself."""

    name: str = ""
    supported_interfaces: list[Interface] = msgspec.field(default_factory=list[Interface])
    capabilities: Capabilities = msgspec.field(default_factory=Capabilities)
    security_schemes: dict[str, Any] | None = None


class Failure(Wire):
    """The error of a JSON-RPC answer."""

    code: int
    message: str = ""


class Answer(Wire):
    """A JSON-RPC answer."""

    result: Any = None
    error: Failure | None = None


class RpcError(RemoteRefused):
    """A server has answered with an error of JSON-RPC."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.rpc_code = code


def read(body: bytes, kind: type[T], server: str) -> T:
    """Return JSON of a server as a value. Raises `RemoteRefused` if it is none."""
    try:
        told = read_json(body, ANY)
    except msgspec.MsgspecError as error:
        raise RemoteRefused(f"{server} sent an invalid response: {error}.") from None
    return _converted(told, kind, server, "response")


def _converted(told: Any, kind: type[T], server: str, what: str) -> T:
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise RemoteRefused(f"{server} sent an invalid {what}: {error}.") from None


def result_of(body: bytes, kind: type[T], server: str) -> T:
    """Return the result in a JSON-RPC answer. Raises `RpcError` if it is an error.

    Raises `Unavailable` if it is no JSON: then a proxy has answered, or the server was cut off.
    """
    try:
        told = read_json(body, ANY)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"{server} sent a response that is no JSON: {error}.") from None
    answer = _converted(told, Answer, server, "response")
    if answer.error is not None:
        text = f"{server} responded with error {answer.error.code}: {answer.error.message[:SHOWN]}"
        raise RpcError(text, answer.error.code)
    return _converted(answer.result, kind, server, "result")
