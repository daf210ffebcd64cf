"""What there is between code that runs and whoever has it run: a task, pauses, answers, and an end.

An executor is handed a task and runs it until it calls a host function or is over. What it
hands back at a call is all it needs to go on later, in this process or in another, once
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
    """What one run of code may take."""

    seconds: float = 5.0
    """How long it may run; the time its host functions take does not count."""
    memory_bytes: int = 64 * 1024 * 1024
    """How much memory it may hold."""
    depth: int = 200
    """How deep its own functions may call each other."""
    calls: int = 100
    """How often it may call host functions."""
    output_bytes: int = 64 * 1024
    """How much it may print, and how much it may return."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise UsageError(f"CodeLimits({each.name}) must be a number above 0, got {value!r}.")


@dataclass(frozen=True, slots=True)
class CodeFailure:
    """Why code did not come to its end, as a model or a person reads it."""

    kind: Kind
    """`syntax`: it is no Python, or not what runs here. `unknown`: a name or a module that is not there.
    `forbidden`: files and the like. `limit`: one of `CodeLimits`. `binding`: a host function failed, and the code
    did not catch it. `raised`: an error of its own. `crashed`: the sandbox itself."""
    message: str
    """What happened."""
    line: int | None = None
    """In which line of the code, if that is known."""

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
    """What became of code. As text, it is what to tell the model that wrote it."""

    value: Any = None
    """What its last expression was, as what msgpack has; something else is described."""
    printed: str = ""
    """What it printed."""
    failure: CodeFailure | None = None
    """Why it did not come to its end; None: it did."""
    calls: int = 0
    """How often it called host functions."""

    @property
    def ok(self) -> bool:
        """Whether it came to its end."""
        return self.failure is None

    def __str__(self) -> str:
        printed = self.printed if not self.printed or self.printed.endswith("\n") else self.printed + "\n"
        if self.failure is not None:
            return f"{printed}{self.failure}"
        return printed + (f"=> {in_words(self.value)}" if self.value is not None or not printed else "")


@dataclass(frozen=True, slots=True)
class Task:
    """What an executor is to run."""

    code: str
    """Python."""
    names: frozenset[str] = frozenset()
    """The host functions it may call."""
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Variables it finds, as what msgpack has."""
    limits: CodeLimits = CodeLimits()
    """What it may take."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host function returned, or what it raised."""

    value: Any = None
    """What it returned, as what msgpack has."""
    error: tuple[str, str] | None = None
    """The name of a built-in exception and a message, to be raised where it was called."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The code called a host function, and waits."""

    snapshot: bytes
    """All that `resume` needs."""
    function: str
    """What it called."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    printed: str = ""
    """What it printed since it was started or resumed."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The code is over."""

    value: Any = None
    failure: CodeFailure | None = None
    printed: str = ""
    """What it printed since it was started or resumed."""


class Executor(Protocol):
    """Runs code until it calls a host function or is over."""

    async def start(self, task: Task) -> Paused | Ended:
        """Run code from its beginning."""
        ...

    async def resume(self, task: Task, snapshot: bytes, answer: Answer) -> Paused | Ended:
        """Go on where the code called a host function, which has answered.

        `StoredDataError`: the snapshot cannot be read.
        """
        ...
