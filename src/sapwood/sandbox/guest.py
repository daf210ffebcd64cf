"""Runs inside Bubblewrap, where nothing of sapwood is: takes a task, runs it, and says what came of it.

It is handed to Python as text, not imported. What is promised is held from outside: the
namespaces, the clock and the bounds on what is read of it are not for the code to change.
"""

from __future__ import annotations

import ast
import builtins
import errno
import io
import json
import math
import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

OWN = 128 * 1024 * 1024
"""Bytes of its address space that Python itself takes, generously."""
PROCESSES = 64
DESCRIPTORS = 64
FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENETUNREACH, errno.ENETDOWN)
FULL = (errno.ENOSPC, errno.EFBIG)


class Printed(io.TextIOBase):
    """What the code prints."""

    def __init__(self, most: int, full: Callable[[], NoReturn]) -> None:
        self.text: list[str] = []
        self.left = most
        self.full = full
        """Ends the process: an exception could be caught, and the code would continue."""

    def write(self, text: str) -> int:
        """Keep the text; end the process if it is too much."""
        data = text.encode(errors="replace")
        self.text.append(data[: max(self.left, 0)].decode(errors="ignore"))
        self.left -= len(data)
        if self.left < 0:
            self.full()
        return len(text)


class Stage:
    """One run of a task."""

    def __init__(self, task: dict[str, Any], out: io.TextIOBase) -> None:
        self.task = task
        self.limits: dict[str, Any] = task["limits"]
        self.out = out
        self.printed = Printed(self.limits["output_bytes"], self.full)
        self.before = iter(task["calls"])
        """What was called and answered before the code was run again."""

    def run(self) -> NoReturn:
        """Run the code, and say what came of it."""
        sys.stdout = sys.stderr = self.printed
        names = {"__name__": "__main__", **self.task["inputs"]}
        names.update((name, self.standing_for(name)) for name in self.task["names"])
        value = wrong = None
        try:
            tree = ast.parse(self.task["code"], "<code>")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<code>", "exec"), names)  # noqa: S102 - it is what this is for
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<code>", "eval"), names)
                value = shown(value)
        except BaseException as error:  # noqa: BLE001 - whatever it was, it is told
            value, wrong = None, self.failure(error)
        self.tell(value=value, failure=wrong)

    def standing_for(self, name: str) -> Any:
        """Return what the code calls instead of a host function."""

        def call(*args: Any, **kwargs: Any) -> Any:
            now = json.loads(json.dumps([name, args, kwargs], default=as_plain, allow_nan=False))
            known = next(self.before, None)
            if known is None:
                self.tell(call=now)
            if known[:3] != now:
                told = (
                    "The code made different calls when it was run again to resume. It must make the same calls "
                    "every time."
                )
                self.tell(failure=why("raised", told))
            self.printed.text.clear()  # that was told before
            value, error = known[3]
            if error is not None:
                raise getattr(builtins, error[0], RuntimeError)(error[1])
            return value

        call.__name__ = call.__qualname__ = name
        return call

    def tell(self, **what: Any) -> NoReturn:
        """Say what came of it, and end at once, whatever the code would do to stay."""
        self.out.write(json.dumps({**what, "printed": "".join(self.printed.text)}) + "\n")
        self.out.flush()
        os._exit(0)

    def full(self) -> NoReturn:
        """Say that the code printed too much, and end."""
        self.tell(failure=why("limit", f"The code printed more than {self.limits['output_bytes']} bytes."))

    def failure(self, error: BaseException) -> dict[str, Any]:
        """Return why code did not come to its end that raised this."""
        frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<code>"]
        line = frames[-1] if frames else None
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        number = getattr(getattr(error, "reason", error), "errno", None)  # urllib wraps what the kernel said
        if isinstance(error, SyntaxError):
            return why("syntax", error.msg, error.lineno)
        if isinstance(error, MemoryError) or number in FULL:
            return why("limit", f"The code used more than {self.limits['memory_bytes']} bytes of memory.", line)
        if isinstance(error, RecursionError):
            return why("limit", f"The code exceeded the recursion depth of {self.limits['depth']}.", line)
        if isinstance(error, NameError | ModuleNotFoundError):
            return why("unknown", said, line)
        return why("forbidden" if number in FORBIDDEN else "raised", said, line)


def as_plain(value: Any) -> Any:
    """Return what crosses instead of something that JSON does not have; raise if nothing does."""
    if isinstance(value, set | frozenset):
        return list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - of anything
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"expected plain data, got a {type(value).__name__}")


def shown(value: Any) -> Any:
    """Return a value as plain data, or what it looks like."""
    try:
        return json.loads(json.dumps(value, default=as_plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def why(kind: str, message: str, line: int | None = None) -> dict[str, Any]:
    """Return why code did not come to its end, as it is told."""
    return {"kind": kind, "message": message, "line": line}


def bound(limits: dict[str, Any]) -> None:
    """Have the kernel hold what it can hold of the limits."""
    for what, most in (
        (resource.RLIMIT_AS, OWN + limits["memory_bytes"]),
        (resource.RLIMIT_CPU, math.ceil(limits["seconds"]) + 1),
        (resource.RLIMIT_FSIZE, limits["memory_bytes"]),
        (resource.RLIMIT_NPROC, PROCESSES),
        (resource.RLIMIT_NOFILE, DESCRIPTORS),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    sys.setrecursionlimit(limits["depth"] + 50)


def main() -> None:
    """Run the task that comes in; what came of it goes to the descriptor that is named."""
    out = os.fdopen(int(sys.argv[1]), "w")
    stage = Stage(json.load(sys.stdin), out)
    bound(stage.limits)
    out.write("\n")  # from here on the clock runs
    out.flush()
    stage.run()


if __name__ == "__main__":
    main()
