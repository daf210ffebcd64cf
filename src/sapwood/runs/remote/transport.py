"""How a run reaches a remote agent: start, status, stream and cancel, over HTTP or over whatever a user writes.

A transport carries requests and events. What is stored, retried, resumed and given up is decided by `RemoteRuns`,
which uses every transport in the same way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from sapwood.address import PathSegment
from sapwood.errors import UsageError
from sapwood.runs.execution.contract import Progress

Status: TypeAlias = Literal["running", "completed", "failed", "cancelled"]
STATUSES = frozenset(get_args(Status))


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """The status of a remote run."""

    status: Status
    """`running`, `completed`, `failed` or `cancelled`."""
    seq: int = 0
    """How many chunks the run has produced. 0 if the transport streams none."""
    waits: bool = False
    """Whether the run waits for a person, and may do so for days."""
    output: Any = None
    """The result of a completed run: anything that fits into JSON."""
    summary: str | None = None
    """The result in one text, for clients."""
    error: str | None = None
    """Why the run failed. The first 2,000 characters are stored."""
    reason: str | None = None
    """Why the run was cancelled. The first 500 characters are stored."""
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Tokens and cost by model, as sapwood servers report them."""
    nested: bool = False
    """Whether there may be runs below it. Their events are then read from the stream of a run that has ended, too."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise UsageError(f"status must be one of {', '.join(sorted(STATUSES))}, got {self.status!r}.")

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.status != "running"


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a run the caller has stored: a stream resumes after it."""

    seq: int = 0
    """The number of the last chunk that is stored; 0 if none is. The stream begins with the one after it."""
    milestones: int = 0
    """How many milestones are stored. The stream leaves out as many."""
    nested: str | None = None
    """The last `cursor` of `NestedEvents` that is stored. The stream has the events of nested runs after it. `None`
    means all of them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a run's output for clients: a chunk of an AI SDK message."""

    seq: int
    """Its number. Numbers start at 1 and have no gaps. A number always means the same chunk."""
    body: Any
    """The chunk: `{"type": "text-delta", …}`, `{"type": "data-…", "data": …}`."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """A milestone that a run has reached. Of one run, about 256 KiB of them are stored; later ones are left out."""

    name: str
    """The name of the milestone."""
    progress: Progress = field(default_factory=Progress)
    """The progress of the run at that time."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign that the run is alive when nothing else happens."""

    waits: bool = False
    """Whether the run waits for a person."""
    idle: float | None = None
    """Seconds since the last activity in the run or below it. `None` means unknown."""


@dataclass(frozen=True, slots=True)
class RemoteQuestion:
    """What a remote run, or an agent below it, asks a person: by default, whether a tool call may be made."""

    id: str
    """Its id, unique among the questions of the run."""
    tool: str = ""
    """The name of the tool."""
    arguments: Any = None
    """The arguments of the call."""
    path: tuple[PathSegment, ...] = ()
    """The path to the agent that asks, from the one that executes the run."""
    prompt: str | None = None
    """The text of a question that is not about a tool call. `None` means that it is about one."""
    options: tuple[str, ...] | None = None
    """With a prompt: what to choose from."""
    schema: dict[str, Any] | None = None
    """With a prompt: the JSON schema of the answer. Without options and schema, the answer is a text.
    A question whose schema has keywords that `questions.ask` refuses is left out. Patterns are not checked here."""


@dataclass(frozen=True, slots=True)
class OpenQuestions:
    """All questions of a run that are open now. It replaces the last one; the end of the run withdraws them."""

    questions: Sequence[RemoteQuestion]
    """The open questions; at most 200, each of at most 256 KiB. Others are left out."""


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """The answer to a question of a remote run. The hooks of the calling server have allowed it."""

    id: str
    """The id of the question."""
    digest: str
    """SHA-256 of what was shown: the remote side refuses any other."""
    approved: bool
    """Whether the call may be made; of a question with a prompt, whether it is answered."""
    arguments: Any = None
    """Other arguments for the call. `None` means those that were shown."""
    reason: str | None = None
    """Why the call may not be made, or the question is not answered."""
    value: Any = None
    """The answer to a question with a prompt."""
    on_behalf_of: str | None = None
    """The user who answered. The remote side cannot verify it."""


NestedKind: TypeAlias = Literal["started", "progress", "milestone", "completed", "failed", "cancelled", "interrupted"]
NESTED_KINDS = frozenset(get_args(NestedKind))


@dataclass(frozen=True, slots=True)
class NestedEvent:
    """Something that happened to a run below a remote run. It is shown at the caller, below the remote agent."""

    path: tuple[PathSegment, ...]
    """The path to the agent that executes the nested run, from the one that executes the run: 1 to 32 steps."""
    run_id: str
    """The id of the nested run."""
    kind: NestedKind
    """What happened. A nested run has one `started`, and ends `completed`, `failed`, `cancelled` or `interrupted`."""
    at: float
    """When it happened, in seconds since the epoch, UTC."""
    seq: int = 0
    """Its number in the nested run. The start has 0."""
    body: Any = None
    """As in the `Event` of a local run. More than 8 KiB of JSON is cut."""
    parent_run_id: str | None = None
    """The run that started the nested run. `None` for an agent directly below the remote one means the remote run."""


@dataclass(frozen=True, slots=True)
class NestedEvents:
    """Events of runs below a run, in order. A transport that cannot see them yields none."""

    events: Sequence[NestedEvent]
    """The events; at most 100. Others, and those that are not valid, are left out."""
    cursor: str | None = None
    """Where a stream resumes after them: any text of at most 64 KiB. It is stored with the events."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run: the last event of a stream. Its status counts all chunks."""

    status: RemoteStatus
    """How the run ended."""


RemoteEvent: TypeAlias = Chunk | Milestone | Progress | OpenQuestions | NestedEvents | Heartbeat | End
"""What a stream yields."""


class RunTransport(Protocol):
    """Carries the runs of one remote agent. Return one from `RemoteSubAgent.transport`.

    A session names one run. It is the same after a crash of the caller, so all methods have to find the
    run by it. Every method may raise `Unavailable`, `ConnectionError` or `TimeoutError`: the call is retried with
    backoff. `RemoteLost` means that the remote side lost the run, or chunks that were already streamed.
    `RemoteRefused`, or its subclass `RemoteUnauthorized`, means that a retry would fail too. Both end the run, as
    does any other exception.

    A transport that is an async context manager is entered before its first use and left after its last.
    """

    async def start(self, session: str, input: Any) -> RemoteStatus:
        """Start the run of a session. Idempotent: a known session is not started again, and its status is returned."""
        ...

    async def status(self, session: str) -> RemoteStatus:
        """Return the status of a run that was started. Raises `RemoteLost` if the session is not known."""
        ...

    def stream(self, session: str, after: Position) -> AsyncIterator[Sequence[RemoteEvent]]:
        """Yield the events of a run after a position, in order, until its `End`.

        The events of one yield are stored in one commit. A stream that ends without `End` is reopened later, at the
        stored position. It must yield at least once a minute: a `Heartbeat` if nothing happens.
        """
        ...

    async def cancel(self, session: str, reason: str) -> RemoteStatus:
        """Cancel a run, and everything below it. A session that is not known yet is never started."""
        ...


@runtime_checkable
class QuestionTransport(Protocol):
    """A transport whose runs can ask questions: `RunTransport` with one more method."""

    async def answer(self, session: str, answer: RemoteAnswer) -> bool:
        """Answer a question. Returns `False` if it is not open any more.

        Raises `Refused` if the remote side does not allow the answer, and `Unavailable` if it cannot be reached: the
        question stays open.
        """
        ...


class Memo(Protocol):
    """What is stored for the transport of one run, such as an id that the remote side chose."""

    @property
    def text(self) -> str | None:
        """The text that was stored last; `None` if none was."""
        ...

    async def store(self, text: str) -> None:
        """Store a text instead of the last one. It is durable when this returns."""
        ...

    def chunks(self) -> Sequence[Any]:
        """Return the bodies of the chunks that are stored: those of `Position.seq`."""
        ...


@runtime_checkable
class MemoTransport(Protocol):
    """A transport that has to store something: `RunTransport` with one more method."""

    def recall(self, memo: Memo) -> None:
        """Take the memo of the run. Called once, before all other methods.

        After the agent was deleted, its memo is still there to cancel the run, but cannot be changed.
        """
        ...
