"""What two servers say to each other of a run that one does for the other: requests, and a stream of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import msgspec

from sapwood.wire import frames
from sapwood.wire.events import SSE as SSE  # noqa: PLC0414 - part of this protocol too

VERSION = 1
"""The version of all of this. One that knows another version is refused with 426."""
HEADER = "sapwood-protocol"
"""The header that says the version, of every request and of every answer."""
PATH = "/run"
"""POST starts the run of an agent, GET tells how it stands."""
STREAM = f"{PATH}/stream"
"""GET tells what happens in it, from the event with the number `from_seq` on. POST does too, after a `StreamFrom`."""
CANCEL = f"{PATH}/cancel"
"""POST stops it, also one that has not begun: then it never will."""
ANSWER = f"{PATH}/answer"
"""POST answers a question of the run, or of one below it."""
LONGEST = 64 * 1024 * 1024
"""Bytes of one event; who sends more is not listened to any further."""

MAX_QUESTIONS = 200
"""Maximum number of questions of one run that are told."""
MAX_QUESTION_BYTES = 256 * 1024
"""Maximum size of one question that is told, as JSON."""
MAX_NAME = 200
"""Maximum length of the name of the user on whose behalf a question is answered, in characters."""

MAX_NESTED_EVENTS = 100
"""Maximum number of events of nested runs that are told at once."""
MAX_NESTED_BODY_BYTES = 8 * 1024
"""Maximum size of the body of one of these events, as JSON."""
MAX_NESTED_BATCH_BYTES = 2 * 1024 * 1024
"""Maximum size of all that is told at once of nested runs; more is not read."""
MAX_NESTED_PATH = 32
"""Maximum number of steps from the agent that executes a run to one that executes a nested run."""
MAX_NESTED_PATH_BYTES = 4 * 1024
"""Maximum size of this path, as an address."""
MAX_CURSOR = 64 * 1024
"""Maximum length of a cursor of nested runs, in characters."""
MAX_NUMBER = 10**18

Kind = Literal["chunk", "milestone", "progress", "questions", "nested", "quiet", "end"]

_text = msgspec.json.Encoder().encode
_NOTHING = msgspec.Raw(b"null")


class Start(msgspec.Struct):
    """What a run is given."""

    input: msgspec.Raw


_Count = Annotated[int, msgspec.Meta(ge=0, lt=MAX_NUMBER)]


class StreamFrom(msgspec.Struct, omit_defaults=True):
    """How much of a run the caller has stored."""

    from_seq: _Count = 1
    milestones: _Count = 0
    nested: Annotated[str, msgspec.Meta(max_length=MAX_CURSOR)] | None = None
    """The cursor of the last events of nested runs. `None` means none."""


class CancelRequest(msgspec.Struct):
    """Why a run is to stop."""

    reason: str = "cancelled"


class RemoteRunState(msgspec.Struct, omit_defaults=True):
    """How a run stands."""

    status: str
    """`running`, `completed`, `failed` or `cancelled`."""
    seq: int
    """How many chunks it has said."""
    waits: bool = False
    """Whether it waits for a person."""
    output: msgspec.Raw = _NOTHING
    summary: str | None = None
    error: str | None = None
    reason: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"{}")
    nested: bool = False
    """Whether there may be runs below it."""

    @property
    def is_over(self) -> bool:
        return self.status != "running"


class PathStep(msgspec.Struct):
    """One step of a path."""

    type: str
    name: str


class AskedQuestion(msgspec.Struct, omit_defaults=True):
    """A question of the run, or of an agent below it."""

    id: str
    tool: str
    arguments: Any
    path: list[PathStep] = []
    """The path to the agent that asks, from the one that executes the run. Part of it may be on a third server."""


class AnswerRequest(msgspec.Struct, omit_defaults=True):
    """The answer to a question."""

    id: str
    digest: str
    """SHA-256 of tool and arguments, as they were shown."""
    approved: bool
    arguments: Any = None
    reason: str | None = None
    on_behalf_of: str | None = None
    """The user who answered, as the calling server claims. It is recorded, and decides nothing."""


class AnswerReceipt(msgspec.Struct, omit_defaults=True):
    """Whether an answer was taken."""

    answered: bool
    refused: str | None = None
    """Why it was refused; the question stays open."""


class NestedEvent(msgspec.Struct, omit_defaults=True):
    """An event of a run below the run."""

    path: list[PathStep]
    """The path to the agent that executes the nested run, from the one that executes the run."""
    run: str
    kind: str
    at: float
    seq: int = 0
    body: Any = None
    parent: str | None = None
    """The run that started the nested run. `None` for an agent directly below means the run itself."""


class NestedBatch(msgspec.Struct, omit_defaults=True):
    """Events of runs below the run."""

    events: list[NestedEvent]
    cursor: str | None = None
    """Where a stream resumes after them."""


class Trouble(msgspec.Struct):
    """Why a request is refused."""

    code: str
    error: str


class Quiet(msgspec.Struct):
    """That nothing happens."""

    waits: bool = False
    idle: float | None = None
    """Seconds since something last happened in the run or below it. `None` means that nothing was said."""


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One event of a run."""

    kind: Kind
    body: bytes
    """JSON."""
    seq: int | None = None
    """The number of a chunk; the first has 1."""

    def encoded(self) -> bytes:
        """Return it as a server-sent event."""
        head = b"" if self.seq is None else b"id: %d\n" % self.seq
        return head + b"event: " + self.kind.encode() + b"\ndata: " + self.body + b"\n\n"


class EventStreamReader:
    """Makes events of the bytes of a stream, however they arrive, in time linear in their number."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        """The event that is not whole yet."""
        self._bytes = 0

    def read(self, data: bytes) -> list[RunEvent]:
        """Return the events that are whole now; `ValueError` if this is no such stream."""
        data = data.replace(b"\r", b"")  # lines may end with CR LF, and JSON has no CR that means anything
        ends_here = data.startswith(b"\n") and bool(self._parts) and self._parts[-1].endswith(b"\n")
        if data:
            self._parts.append(data)
            self._bytes += len(data)
        blocks: list[bytes] = []
        if ends_here or b"\n\n" in data:  # else it is copied later, once the event is whole
            *blocks, rest = b"".join(self._parts).split(b"\n\n")
            self._parts, self._bytes = ([rest] if rest else []), len(rest)
        if self._bytes > self._longest:
            raise ValueError(f"an event has more than {self._longest} bytes")
        return [_told(block) for block in blocks]


def _told(block: bytes) -> RunEvent:
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
    if b"event" not in fields or b"data" not in fields:
        raise ValueError(f"expected a server-sent event, got {block[:80]!r}")
    if frames.is_deep(fields[b"data"]):
        raise ValueError(f"an event is nested deeper than {frames.DEPTH} levels")
    kind = cast("Kind", fields[b"event"].decode())
    return RunEvent(kind, fields[b"data"], int(fields[b"id"]) if b"id" in fields else None)


def encoded(what: msgspec.Struct) -> bytes:
    """Return something as JSON."""
    return _text(what)
