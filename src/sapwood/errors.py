"""Everything sapwood raises, sorted by who can do something about it.

`UsageError`: the developer. `Refused`: the caller. `Unavailable`: no one, wait and
try again. `StoredDataError`: the operator. `ChildFailed` says that a call to another
agent did not succeed, which agent it was and why; its kinds say what happened.

Every class has a stable `code` that crosses processes, and `retryable`, which says
whether the same call may succeed later.
"""

from __future__ import annotations

import inspect
from typing import ClassVar, NamedTuple


class PathSegment(NamedTuple):
    """One segment of an address: the type id of a class, and the name of an instance."""

    type: str
    """The type id of the class."""
    name: str
    """The name of the instance."""


Path = tuple[PathSegment, ...]
"""The segments of an agent's address, root first."""


class SapwoodError(Exception):
    """Something in sapwood went wrong."""

    code: ClassVar[str] = "error"
    """A stable code for this kind of error."""
    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (inspect.getdoc(type(self)) or "").partition("\n")[0])


class UsageError(SapwoodError):
    """The program uses sapwood in a way that cannot work."""

    code = "usage"


class WrongThread(UsageError):
    """An agent was used from a thread other than its own."""

    code = "wrong_thread"


class SqlError(UsageError):
    """SQLite rejected a statement."""

    code = "sql"


class ConstraintViolated(SqlError):
    """A statement would violate a constraint of the schema."""

    code = "constraint_violated"


class ForbiddenSql(SqlError):
    """This SQL statement is not allowed in an agent."""

    code = "forbidden_sql"


class SlowSql(SqlError):
    """A statement ran longer than `sql_timeout` and was interrupted."""

    code = "slow_sql"


class StartCycle(UsageError):
    """Agents wait for each other's `on_start` in a cycle."""

    code = "start_cycle"


class UnknownAgent(UsageError):
    """No agent class is known under this type id."""

    code = "unknown_agent"


class NotCopyable(UsageError):
    """A value cannot be copied to another agent."""

    code = "not_copyable"


class InvalidResult(UsageError):
    """The result of a method does not match its annotation."""

    code = "invalid_result"


class MigrationFailed(UsageError):
    """A migration could not be applied. The database stays at the version before it."""

    code = "migration_failed"


class FolderInUse(UsageError):
    """Another process uses this data folder."""

    code = "folder_in_use"


class Refused(SapwoodError):
    """This request is invalid or not allowed."""

    code = "refused"


class InvalidName(Refused):
    """This text cannot be the name of an agent."""

    code = "invalid_name"


class InvalidArguments(Refused):
    """The arguments do not match the method."""

    code = "invalid_arguments"


class NoSuchMethod(Refused, AttributeError):
    """The agent has no such public method."""

    code = "no_such_method"


class CallTooDeep(Refused):
    """A chain of calls is too long. Agents probably call each other in a cycle."""

    code = "call_too_deep"


class Quarantined(Refused):
    """This tree blocked its process repeatedly. It is quarantined until an operator releases it."""

    code = "quarantined"


class KeyReused(Refused):
    """An idempotency key was reused for another method or with other arguments."""

    code = "key_reused"


class RemoteRefused(Refused):
    """Another server refused the request."""

    code = "remote_refused"


class RemoteUnauthorized(RemoteRefused):
    """Another server rejected the credentials of this program."""

    code = "remote_unauthorized"


class ProtocolMismatch(RemoteRefused):
    """Another server uses a different version of the remote run protocol."""

    code = "protocol_mismatch"


class RemoteLost(RemoteRefused):
    """Another server has lost data of a run."""

    code = "remote_lost"


class Unavailable(SapwoodError):
    """Not available now. Retry later."""

    code = "unavailable"
    retryable = True
    path: Path = ()
    """The address segments of the agent that was called, root first; empty if no agent was called."""


class CircuitOpen(Unavailable):
    """The circuit breaker of a method is open, so the method was not called."""

    code = "circuit_open"
    retry_after: float = 0.0
    """Seconds until the breaker lets a call through."""


class StoredDataError(SapwoodError):
    """The stored data cannot be read."""

    code = "stored_data"


class SignatureChanged(StoredDataError):
    """A stored call no longer matches the program: its method was removed, or takes other arguments."""

    code = "signature_changed"


class ChildFailed(SapwoodError):
    """A call to another agent did not succeed."""

    code = "child_failed"

    def __init__(self, message: str | None = None, *, path: Path = ()) -> None:
        super().__init__(message)
        self.path = path
        """The steps of the agent it is about, root first."""


class Crashed(ChildFailed):
    """The agent raised an exception of its own.

    The caller catches an instance of this class and of the exception's own type: both
    ``except Crashed`` and ``except ValueError`` work.
    """

    code = "crashed"
    remote_traceback: str = ""
    """The traceback inside the agent."""


class Aborted(ChildFailed):
    """The agent was aborted."""

    code = "aborted"

    def __init__(self, reason: object = None, *, path: Path = ()) -> None:
        text = "The agent was aborted." if reason is None else str(reason)
        super().__init__(text, path=path)
        self.reason = reason
        """What `children.abort` was given."""


class TimedOut(ChildFailed):
    """The deadline passed before the agent answered."""

    code = "timed_out"
    retryable = True


class OverLimit(ChildFailed):
    """A limit was reached."""

    code = "over_limit"

    def __init__(
        self, message: str | None = None, *, path: Path = (), limit: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.limit = limit
        """The name of the field of `Limits`."""
        self.retry_after = retry_after
        """Seconds until the period of the limit ends. `None` if the limit has no period, or a wait cannot help."""


class NotFound(ChildFailed):
    """No such agent exists, or it was deleted."""

    code = "not_found"


class MovedAway(NotFound):
    """The agent was moved to another server."""

    code = "moved_away"

    def __init__(self, message: str | None = None, *, path: Path = (), url: str = "") -> None:
        super().__init__(message, path=path)
        self.url = url
        """Where clients find its root now."""


class GaveUp(ChildFailed):
    """All retries failed."""

    code = "abandoned"


class FiberFailed(ChildFailed):
    """The fiber did not complete: it failed, was cancelled, or could not be recovered."""

    code = "fiber_failed"


class PipelineFailed(ChildFailed):
    """A step of a pipeline did not complete. The steps after it did not start."""

    code = "pipeline_failed"

    def __init__(self, message: str | None = None, *, path: Path = (), step: int = 0, run_id: str = "") -> None:
        super().__init__(message, path=path)
        self.step = step
        """The number of the step, counted from 1."""
        self.run_id = run_id
        """The id of its run: `runs.get` returns how it ended."""
