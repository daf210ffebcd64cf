"""What a server logs, and which lines of uvicorn it leaves out."""

from __future__ import annotations

import logging
import sys
from asyncio import CancelledError
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NoReturn

from sapwood.cli.json_log import JsonFormatter, log_uncaught
from sapwood.cli.serve_options import ServeOptions
from sapwood.cli.terminal import error_line, log_to_stderr
from sapwood.errors import SapwoodError, Unavailable
from sapwood.escapes import LineFormatter

log = logging.getLogger("sapwood.server")
CLIENTS = ("httpx", "httpx2", "mcp")
"""Loggers with a line for each request that the app sends, for example to a model."""


def log_server(options: ServeOptions, worker: int | None = None, pool: str = "") -> None:
    """Write the log of this process to stderr, as text or as JSON. The lines of a worker name it."""
    if options.log == "json":
        facts: dict[str, Any] = {} if worker is None else {"worker": worker}
        log_to_stderr(options.log_level, JsonFormatter(**facts, **({"pool": pool} if pool else {})))
        log_uncaught()
    else:
        who = "" if worker is None else f"worker {worker} {pool and f'({pool}) '}"
        line = LineFormatter(f"%(asctime)s %(levelname)-7s {who}%(message)s", "%H:%M:%S")
        log_to_stderr(options.log_level, line)
    logging.getLogger("sapwood.access").setLevel(logging.INFO if options.access_log else logging.WARNING)
    set_client_levels(options.log_level)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    logging.getLogger("uvicorn.error").addFilter(RepeatFilter(options.timings.connection_log_interval))


def set_client_levels(level: str) -> None:
    """Log the requests that the app sends only at the level `debug`, unless the app sets another level later."""
    for name in CLIENTS:
        logging.getLogger(name).setLevel(logging.NOTSET if level.lower() == "debug" else logging.WARNING)


def exit_with(error: SapwoodError, options: ServeOptions, more: str = "") -> NoReturn:
    """Exit because of an error: with a sentence on stderr, or with a JSON line in a log of such lines."""
    if options.log != "json":
        sys.exit(f"{error_line(error)}{more and chr(10)}{more}")
    log.critical("%s%s%s", error, more and " ", more, extra={"code": error.code})
    sys.exit(1)


@contextmanager
def errors_in_log(options: ServeOptions) -> Generator[None, None, None]:
    """In a log of JSON lines, let an error that ends the process be one too. Python would write text to stderr."""
    try:
        yield
    except Exception as error:
        if options.log != "json":
            raise
        if not logging.getLogger().handlers:  # it did not come so far
            log_server(options)
        if isinstance(error, SapwoodError):
            exit_with(error, options)
        log.critical("uncaught exception", exc_info=error)
        sys.exit(1)


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
