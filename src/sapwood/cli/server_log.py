"""What a server logs, and which lines of uvicorn it leaves out."""

from __future__ import annotations

import logging
from asyncio import CancelledError

from sapwood.cli.serve_options import ServeOptions
from sapwood.cli.terminal import log_to_stderr
from sapwood.errors import Unavailable


def log_server(options: ServeOptions, who: str = "") -> None:
    """Write the log of this process to stderr; `who` stands before each line."""
    log_to_stderr(options.log_level, f"%(asctime)s %(levelname)-7s {who}%(message)s", "%H:%M:%S")
    logging.getLogger("sapwood.access").setLevel(logging.INFO if options.access_log else logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    logging.getLogger("uvicorn.error").addFilter(RepeatFilter(options.timings.connection_log_interval))


class RepeatFilter:
    """A filter for log lines that unauthenticated clients can cause: each at most once per interval."""

    MESSAGES = frozenset({"Invalid HTTP request received.", "Unsupported upgrade request."})

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged."""
        if record.msg not in self.MESSAGES:
            return True
        if record.created < self._next.get(record.msg, 0.0):
            return False
        self._next[record.msg] = record.created + self._interval
        return True


def _is_news(record: logging.LogRecord) -> bool:
    """Keep uvicorn's messages about its own start and stop out of a log of agents."""
    raised = record.exc_info[0] if record.exc_info is not None else None
    # It said so in a line before; or the supervisor did, of the worker that ended in the middle of an answer.
    cut_short = raised is not None and issubclass(raised, CancelledError | Unavailable)
    return record.levelno > logging.INFO and not cut_short
