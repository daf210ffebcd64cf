"""Terminal output: text from users and models cannot control the terminal."""

from __future__ import annotations

import logging
from typing import IO, Any

from rich import text as rich
from rich.style import Style

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


def error_line(error: object) -> str:
    """Return the error message that a command exits with, for `sys.exit`."""
    return f"error: {escape_controls(str(error), keep=chr(10))}"


def log_to_stderr(level: str, formatter: logging.Formatter) -> None:
    """Send the log of this process to stderr in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
