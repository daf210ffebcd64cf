"""Terminal output: text from users and models cannot control the terminal."""

from __future__ import annotations

import logging
import sys
from typing import IO, Any

from rich import text as rich
from rich.style import Style

from sapwood.errors import UsageError
from sapwood.escapes import escape_controls


class Text(rich.Text):
    """Styled text whose control characters are escaped, line breaks included."""

    def __init__(self, text: str = "", style: str | Style = "", **more: Any) -> None:
        super().__init__(escape_controls(text), style, **more)

    def append(self, text: rich.Text | str, style: str | Style | None = None) -> Text:
        super().append(escape_controls(text) if isinstance(text, str) else text, style)
        return self


def say(text: str, *, file: IO[str] | None = None, flush: bool = False) -> None:
    """Print text with its control characters escaped, except line breaks. JSON stays valid JSON."""
    print(escape_controls(text, keep="\n"), file=file, flush=flush)


def confirm(question: str, refusal: str, *, yes: bool) -> None:
    """Ask the user, unless `yes`. Raises `UsageError`, which begins with the refusal, unless the answer is yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{refusal} Standard input is no terminal, so it cannot be confirmed there. Pass --yes.")
    say(f"{question} [y/N] ", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError(f"{refusal} Confirm with y, or pass --yes.")


def error_line(error: object) -> str:
    """Return the error message that a command exits with, for `sys.exit`."""
    return f"error: {escape_controls(str(error), keep=chr(10))}"


def log_to_stderr(level: str, formatter: logging.Formatter) -> None:
    """Send the log of this process to stderr in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
