"""The contract between an executor and its caller: a task, pauses, answers and an end.

An executor is handed a task and runs it until it calls a host function or is over. What it
hands back at a call is all it needs to continue later, in this process or in another, once
there is an answer: nothing of a run lives in memory while its host function is at work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

from sapwood.errors import UsageError

Kind = Literal["syntax", "unknown", "forbidden", "limit", "binding", "raised", "crashed"]
"""Why code did not come to its end."""

IN_WORDS: Mapping[str, str] = {
    "syntax": "This Python cannot run here",
    "unknown": "Unknown name or module",
    "forbidden": "Not allowed here",
    "limit": "A limit was reached",
    "binding": "A function that the code called failed",
    "raised": "The code raised",
    "crashed": "The sandbox crashed",
}


def in_words(value: object) -> str:
    """Return what a value looks like, whatever it is."""
    try:
        return repr(value)
    except (ValueError, RecursionError):  # a number with very many digits, a list in very many lists
        return f"a value of type {type(value).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """The limits of one run of code."""

    seconds: float = 5.0
    """Maximum run time in seconds, without the time of its host functions."""
    memory_bytes: int = 64 * 1024 * 1024
    """Maximum memory in bytes."""
    depth: int = 200
    """Maximum recursion depth."""
    calls: int = 100
    """Maximum number of calls of host functions."""
    output_bytes: int = 64 * 1024
    """Maximum size of the printed output, and of the result, in bytes."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise UsageError(f"CodeLimits({each.name}) must be a number above 0, got {value!r}.")


@dataclass(frozen=True, slots=True)
class CodeFailure:
    """Why code failed, in words for a model or a person."""

    kind: Kind
    """`syntax`: it is no Python, or not what runs here. `unknown`: a name or a module that is not there.
    `forbidden`: files and the like. `limit`: one of `CodeLimits`. `binding`: a host function failed, and the code
    did not catch it. `raised`: an error of its own. `crashed`: the sandbox itself."""
    message: str
    """What happened."""
    line: int | None = None
    """The line of the code, if it is known."""

    def __str__(self) -> str:
        where = "" if self.line is None else f" (line {self.line})"
        return f"{IN_WORDS[self.kind]}{where}: {self.message}"


MOST_LINES = 2**31


def bound_failure(failure: CodeFailure, most: int) -> CodeFailure:
    """Return a failure with this many bytes of its message at most, and a line that code can have."""
    data = failure.message.encode(errors="replace")
    message = failure.message
    if len(data) > most:
        message = f"{data[:most].decode(errors='ignore')}… ({len(data)} bytes in all)"
    line = failure.line if failure.line is not None and 0 <= failure.line < MOST_LINES else None
    return CodeFailure(failure.kind, message, line)


def printed_too_much(limits: CodeLimits) -> CodeFailure:
    """Say that code printed more than it may."""
    return CodeFailure("limit", f"The code printed more than {limits.output_bytes} bytes.")


@dataclass(frozen=True, slots=True)
class CodeResult:
    """The result of code. Its text is written for the model that wrote the code."""

    value: Any = None
    """The value of the last expression, as plain data; other values are described as text."""
    printed: str = ""
    """The printed output."""
    failure: CodeFailure | None = None
    """Why the code failed. `None` means that it completed."""
    calls: int = 0
    """Number of calls of host functions."""

    @property
    def ok(self) -> bool:
        """Whether the code completed."""
        return self.failure is None

    def __str__(self) -> str:
        printed = self.printed if not self.printed or self.printed.endswith("\n") else self.printed + "\n"
        if self.failure is not None:
            return f"{printed}{self.failure}"
        return printed + (f"=> {in_words(self.value)}" if self.value is not None or not printed else "")


@dataclass(frozen=True, slots=True)
class Task:
    """The code for an executor to run."""

    code: str
    """Python."""
    names: frozenset[str] = frozenset()
    """The host functions it may call."""
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Predefined variables, as plain data."""
    limits: CodeLimits = CodeLimits()
    """The limits."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a host function, or its exception."""

    value: Any = None
    """The result, as plain data."""
    error: tuple[str, str] | None = None
    """The name of a built-in exception and a message, to be raised where it was called."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The code called a host function, and waits."""

    snapshot: bytes
    """The snapshot that `resume` needs."""
    function: str
    """The called function."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    printed: str = ""
    """The output since the code was started or resumed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The code has finished."""

    value: Any = None
    failure: CodeFailure | None = None
    printed: str = ""
    """The output since the code was started or resumed."""


class Executor(Protocol):
    """Runs code until it calls a host function or finishes."""

    async def start(self, task: Task) -> Paused | Ended:
        """Run code from the start."""
        ...

    async def resume(self, task: Task, snapshot: bytes, answer: Answer) -> Paused | Ended:
        """Resume code at its call of a host function, which has answered.

        Raises `StoredDataError` if the snapshot cannot be decoded.
        """
        ...
