"""What operators read of agents that may be asleep. Each package reads its own tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from sapwood.kernel.ports.compared_parts import ComparedPart
from sapwood.storage.database import Database


class DeadLetterRow(NamedTuple):
    """A stored call that failed and is not retried any more."""

    number: int
    method: str
    arguments: bytes
    code: str
    error: str
    attempts: int
    occurrences: int
    failed_at: float


class ListedRun(NamedTuple):
    """A run, as an operator sees it in a list."""

    number: int
    id: str
    type: str
    name: str
    status: str
    started_at: float
    ended_at: float | None
    bytes: int
    pinned: int


class UnfinishedRun(NamedTuple):
    """A run that is not over."""

    id: str
    type: str
    name: str


class OpenTurn(NamedTuple):
    """A turn of a conversation that is not over."""

    id: str
    status: str
    """`queued`, `running` or `waiting`."""


class UnfinishedWork(NamedTuple):
    """A stored call or a fiber that is not over."""

    kind: str
    """`schedule`, `queued` or `fiber`."""
    number: int
    name: str
    arguments: bytes | None
    due_at: float | None
    """`None` if it waits behind others in its queue, or until it is resumed."""
    queue: str | None
    repeats: bool
    failures: int
    error: str | None
    created_at: float
    status: str | None
    """Of a fiber."""


class StoredMessage(NamedTuple):
    """A message of a conversation."""

    position: int
    id: str
    role: str
    body: str
    """The whole message, as JSON."""
    created_at: float
    turn: str | None
    """The id of the turn that wrote it or that it began; `None` if that is not known."""


class StoredSegment(NamedTuple):
    """Chunks that were stored together."""

    first: int
    """The number of its first chunk."""
    at: float
    body: str
    """A JSON array."""


class ChunkRange(NamedTuple):
    """Which chunks of a turn or run are meant."""

    work: str
    begins_at: float | None = None
    ends_at: float | None = None


class StoredFile(NamedTuple):
    """A file of an agent."""

    number: int
    digest: str
    name: str | None
    media_type: str
    size: int
    created_at: float
    place: str
    """`database`, `folder` or `archive`."""
    used_by: str
    """Who needs it, separated by spaces: `code`, `upload`, `messages`."""


QuestionReader: TypeAlias = Callable[[Database, int], list[dict[str, Any]]]
"""Reads at most so many open questions of an agent."""

InputReader: TypeAlias = Callable[[Database, Sequence[str]], dict[str, Any]]
"""Returns what some of these turns, runs and calls were given, as JSON values by the ids of the work."""
LONGEST_INPUT = 4000
"""Characters or bytes of an input; a longer one is not read, or only its beginning if it is a text."""


def _none(*_: object) -> Any:
    return None


class Incarnation(NamedTuple):
    """A time that an agent was in memory and recorded anything."""

    number: int
    began_at: float
    version: str
    """The version of sapwood."""
    crashed_at: float | None
    """When a process took over from one that had been killed, since the incarnation before. `None`: none did."""


class Timespan(NamedTuple):
    """Which spans of an agent are meant."""

    work: str | None = None
    """The id of one piece of work. `None` means all."""
    begins_at: float | None = None
    ends_at: float | None = None
    only_failed: bool = False


def _zero(*_: object) -> int:
    return 0


def _no_files(*_: object) -> tuple[int, int, int]:
    return 0, 0, 0


def _empty(*_: object) -> str:
    return ""


def _nothing(*_: object) -> list[Any]:
    return []


@dataclass(frozen=True, slots=True)
class ReadModels:
    """Reads the database of an agent. Without an app there are no packages, and nothing is found."""

    state: Callable[[Database], str | None] = _none
    """Returns the stored state as JSON; `None` if the agent has not set one."""
    dead_letters: Callable[[Database, int], list[DeadLetterRow]] = _nothing
    """Returns a limited number of dead letters, in order."""
    waiting_calls: Callable[[Database, float, int], int | None] = _none
    """Counts the stored calls that are due at this time or wait in a queue, up to a maximum; `None` if it has none."""
    unfinished_work: Callable[[Database, str, int, int], list[UnfinishedWork]] = _nothing
    """Returns a limited number of calls or fibers that are not over, in order: those of one kind after a number."""
    runs: Callable[[Database, str | None, int | None, int], list[ListedRun]] = _nothing
    """Returns a limited number of runs, the newest first: all, or those of one status; those before a number."""
    unfinished_runs: Callable[[Database, str | None, int], list[UnfinishedRun]] = _nothing
    """Returns a limited number of runs that are not over, in order: all, or those of one turn."""
    open_turns: Callable[[Database, int], list[OpenTurn]] = _nothing
    """Returns a limited number of turns that are not over, in order."""
    messages: Callable[[Database, int | None, int], list[StoredMessage]] = _nothing
    """Returns a limited number of messages, the newest first: those before a position."""
    message_count: Callable[[Database], int] = _zero
    """Counts the messages."""
    chunks: Callable[[Database, ChunkRange, int, int], list[StoredSegment]] = _nothing
    """Returns a limited number of segments of what a turn or run streamed, in order: those after a number."""
    chunk_count: Callable[[Database, ChunkRange], int] = _zero
    """Counts the segments."""
    files: Callable[[Database, int | None, int], list[StoredFile]] = _nothing
    """Returns a limited number of files, the newest first: those before a number."""
    file_totals: Callable[[Database], tuple[int, int, int]] = _no_files
    """Returns the number of files, their size, and the number of uploads that are not complete."""
    decisions: Callable[[Database, int], list[dict[str, Any]] | None] = _none
    """Returns a limited number of decisions about tool calls, in order; `None` if there was never one."""
    questions: Sequence[QuestionReader] = ()
    question: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Returns a stored question with all its fields, and with its digest."""
    spans: Callable[[Database, str | None, int], list[dict[str, Any]]] = _nothing
    """Returns a limited number of spans: those of one piece of work in order, or the latest turns, calls and fibers."""
    works: Callable[[Database, str | None, int], list[dict[str, Any]]] = _nothing
    """Returns a limited number of turns, calls, fibers and runs, the newest first: those before a cursor."""
    work_cursor: Callable[[Sequence[dict[str, Any]], str | None], str] = _empty
    """Returns the cursor of the works after these, which are the page after a cursor."""
    inputs: Sequence[InputReader] = ()
    """Each reads what work was given that its package knows."""
    timeline: Callable[[Database, Timespan, int | None, int], list[dict[str, Any]]] = _nothing
    """Returns a limited number of spans of a timespan by pages: those after a number. In a page, they are in order."""
    incarnations: Callable[[Database], list[Incarnation]] = _nothing
    """Returns the recorded incarnations, in order."""
    sent_requests: Callable[[Database, int], list[dict[str, Any]]] = _nothing
    """Returns the URL and the body of what a model was sent in a step, by the number of its span."""
    compared: Sequence[ComparedPart] = ()
    """What is compared of two agents, beside the tables of users and what was spent."""


def has_table(database: Database, name: str) -> bool:
    """Return whether an agent has a table. Reading never creates or migrates it."""
    return database.exists and bool(database.look("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,), 1)[1])


def has_column(database: Database, table: str, column: str) -> bool:
    """Return whether an agent has a table with this column."""
    sql = "SELECT 1 FROM pragma_table_info(?) WHERE name = ?"
    return database.exists and bool(database.look(sql, (table, column), 1)[1])
