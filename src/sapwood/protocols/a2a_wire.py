"""What A2A 1.0 says, as values: requests of clients, and the JSON of tasks, events, cards and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

import msgspec

from sapwood.errors import InvalidArguments, OverLimit, Refused, SapwoodError
from sapwood.kernel.marshal.disclosure import told_of
from sapwood.wire.frames import read_json

ANY: Any = Any
VERSION = "1.0"
VERSION_HEADER = "a2a-version"
LONGEST_ID = 512
"""Bytes of an id that a client chooses: a context is the name of an agent."""
TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105 - the name of a header

State = Literal[
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_REJECTED",
    "TASK_STATE_AUTH_REQUIRED",
]
STATES: frozenset[str] = frozenset(get_args(State))
OVER = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")
RESTING = (*OVER, "TASK_STATE_INPUT_REQUIRED")
"""Where a client that waits is answered, and a stream ends."""


class Wire(msgspec.Struct, rename="camel", omit_defaults=True):
    """A message of the protocol. Fields that a newer version has are ignored, as the protocol demands."""


class A2aPart(Wire):
    """One part of a message or an artifact: a text, bytes, a URL, or data."""

    text: str | None = None
    raw: str | None = None
    url: str | None = None
    data: Any = msgspec.UNSET
    filename: str | None = None
    media_type: str | None = None
    metadata: dict[str, Any] | None = None

    def problem(self) -> str | None:
        """Return in a sentence why it is no part; `None` if it is one."""
        given = [one is not None for one in (self.text, self.raw, self.url)] + [self.data is not msgspec.UNSET]
        return None if sum(given) == 1 else "A part has exactly one of text, raw, url and data."


class A2aMessage(Wire):
    """A message of a client or of an agent."""

    message_id: str
    role: Literal["ROLE_USER", "ROLE_AGENT"]
    parts: list[A2aPart]
    context_id: str = ""
    task_id: str = ""
    metadata: dict[str, Any] | None = None
    extensions: list[str] = []
    reference_task_ids: list[str] = []


class Authentication(Wire):
    """How a client wants to be notified: the scheme and credentials of the header `Authorization`."""

    scheme: str
    credentials: str = ""


class PushConfig(Wire):
    """Where a client wants to be notified of a task."""

    url: str = ""
    id: str = ""
    task_id: str = ""
    token: str = ""
    authentication: Authentication | None = None
    tenant: str = ""


class SendConfiguration(Wire):
    """How a client wants to be answered."""

    accepted_output_modes: list[str] = []
    task_push_notification_config: PushConfig | None = None
    history_length: int | None = None
    return_immediately: bool = False


class SendMessage(Wire):
    """Parameters of `SendMessage` and `SendStreamingMessage`."""

    message: A2aMessage
    configuration: SendConfiguration = msgspec.field(default_factory=SendConfiguration)
    metadata: dict[str, Any] | None = None
    tenant: str = ""


class OfTask(Wire):
    """Parameters of `GetTask`, `CancelTask` and `SubscribeToTask`."""

    id: str
    history_length: int | None = None
    metadata: dict[str, Any] | None = None
    tenant: str = ""


class ListTasks(Wire):
    """Parameters of `ListTasks`."""

    context_id: str = ""
    status: str = ""
    page_size: int | None = None
    page_token: str = ""
    history_length: int | None = None
    status_timestamp_after: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    include_artifacts: bool = False
    tenant: str = ""


class OfPushConfig(Wire):
    """Parameters of the methods that get, list and delete push notification configurations."""

    task_id: str
    id: str = ""
    page_size: int | None = None
    page_token: str = ""
    tenant: str = ""


class Call(Wire):
    """A JSON-RPC request."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | float | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Kind(NamedTuple):
    """A kind of error: its JSON-RPC code, and its name in the details of the error."""

    code: int
    reason: str


PARSE = Kind(-32700, "PARSE_ERROR")
INVALID_REQUEST = Kind(-32600, "INVALID_REQUEST")
NO_METHOD = Kind(-32601, "METHOD_NOT_FOUND")
INVALID_PARAMS = Kind(-32602, "INVALID_PARAMS")
INTERNAL = Kind(-32603, "INTERNAL_ERROR")
NO_TASK = Kind(-32001, "TASK_NOT_FOUND")
NOT_CANCELABLE = Kind(-32002, "TASK_NOT_CANCELABLE")
UNSUPPORTED = Kind(-32004, "UNSUPPORTED_OPERATION")
CONTENT_TYPE = Kind(-32005, "CONTENT_TYPE_NOT_SUPPORTED")
NO_EXTENDED_CARD = Kind(-32007, "EXTENDED_AGENT_CARD_NOT_CONFIGURED")
NO_VERSION = Kind(-32009, "VERSION_NOT_SUPPORTED")


class A2aError(Exception):
    """A request cannot be answered."""

    def __init__(self, kind: Kind, text: str, **metadata: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.metadata = metadata

    def told(self) -> dict[str, Any]:
        """Return the error as JSON-RPC has it."""
        details = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": self.kind.reason}
        details |= {"domain": "a2a-protocol.org", **({"metadata": self.metadata} if self.metadata else {})}
        return {"code": self.kind.code, "message": str(self), "data": [details]}


def read_call(body: bytes) -> Call:
    """Return the request in a body; raise `A2aError` if it is none."""
    try:
        found: Any = read_json(body, ANY)
    except msgspec.DecodeError:
        raise A2aError(PARSE, "The body is not valid JSON.") from None
    if isinstance(found, list):
        raise A2aError(INVALID_REQUEST, "Batches are not supported: send one request.")
    try:
        return read_json(body, Call)
    except msgspec.DecodeError as error:
        raise A2aError(INVALID_REQUEST, f"The body is not a JSON-RPC request: {error}.") from None


def id_in(body: bytes) -> str | int | float | None:
    """Return the id of a request that is not valid otherwise, for its answer."""
    try:
        found: Any = read_json(body, ANY)
    except msgspec.DecodeError:
        return None
    id: Any = cast("dict[str, Any]", found).get("id") if isinstance(found, dict) else None
    return id if isinstance(id, str | int | float) and not isinstance(id, bool) else None


def params_of(call: Call, kind: type[Any]) -> Any:
    """Return the parameters of a request; raise `A2aError` if they are not valid."""
    try:
        found = msgspec.convert(_camel(msgspec.json.decode(call.params)), kind)
    except msgspec.DecodeError as error:
        hint = " A role is ROLE_USER or ROLE_AGENT." if "role" in str(error) else ""
        raise A2aError(INVALID_PARAMS, f"The parameters of {call.method} are invalid: {error}.{hint}") from None
    if found.tenant:
        raise A2aError(INVALID_PARAMS, "This agent has no tenants: leave `tenant` out.")
    return found


def _camel(value: Any) -> Any:
    """Return JSON with the names of fields in one form: the protocol allows `taskId` and `task_id`."""
    if isinstance(value, list):
        return [_camel(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {_camel_name(name): one if name in FREE else _camel(one) for name, one in fields.items()}


def _camel_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


FREE = frozenset({"data", "metadata"})
"""Fields with JSON of the client's own."""


def check_message(message: A2aMessage) -> None:
    """Raise `A2aError` if a message of a client is not valid."""
    if not message.message_id:
        raise A2aError(INVALID_PARAMS, "The message has no messageId.")
    for name, id in (("messageId", message.message_id), ("contextId", message.context_id)):
        if len(id.encode()) > LONGEST_ID or "\0" in id:
            raise A2aError(INVALID_PARAMS, f"The {name} must have at most {LONGEST_ID} bytes, and no null character.")
    if message.role != "ROLE_USER":
        raise A2aError(INVALID_PARAMS, "The role of a message to an agent is ROLE_USER.")
    if not message.parts:
        raise A2aError(INVALID_PARAMS, "The message has no parts.")
    for part in message.parts:
        if (problem := part.problem()) is not None:
            raise A2aError(INVALID_PARAMS, problem)


def check_type(text: str) -> None:
    """Raise `A2aError` if a body has another type than JSON."""
    kind = text.partition(";")[0].strip().lower()
    if kind not in ("application/json", "application/a2a+json"):
        raise A2aError(CONTENT_TYPE, f"The body must be application/json, got {kind[:80]}.")


def check_version(spoken: str | None) -> None:
    """Raise `A2aError` if a client speaks another version of the protocol. One that does not say it speaks 0.3."""
    if not spoken:
        text = f"The request has no header A2A-Version, which means 0.3. This agent speaks {VERSION}: send it."
        raise A2aError(NO_VERSION, text)
    if spoken.partition(".")[0] != VERSION.partition(".")[0]:
        raise A2aError(NO_VERSION, f"This agent speaks A2A {VERSION}, the request A2A {spoken[:20]}.")


def check_modes(accepted: Sequence[str]) -> None:
    """Raise `A2aError` if a client takes nothing that agents answer with."""
    if accepted and not any(mode in ("text/plain", "application/json", "*/*", "text/*") for mode in accepted):
        raise A2aError(CONTENT_TYPE, "This agent answers with text/plain or application/json.")


def response(id: str | float | None, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def failure(id: str | float | None, error: A2aError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": error.told()}


def timestamp(at: datetime) -> str:
    """Return a time as the protocol writes it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def agent_message(id: str, task: str, context: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a message of the agent."""
    return {"messageId": id, "role": "ROLE_AGENT", "taskId": task, "contextId": context, "parts": list(parts)}


def error_of(error: SapwoodError) -> A2aError:
    """Return how a client is told of one of our errors."""
    if isinstance(error, InvalidArguments):
        return A2aError(INVALID_PARAMS, str(error))
    text = told_of(error)
    if text is None or not isinstance(error, Refused | OverLimit):
        raise error
    return A2aError(UNSUPPORTED, text)
