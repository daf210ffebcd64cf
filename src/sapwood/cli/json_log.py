"""The log as JSON: one object per line, with the agent, the turn and the trace that a record belongs to."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from itertools import islice
from math import isfinite
from pathlib import PurePath
from types import TracebackType
from typing import Any, cast
from uuid import UUID

from sapwood import tracing
from sapwood.address import Address
from sapwood.kernel.marshal.call import current
from sapwood.runs.execution.contract import doing

log = logging.getLogger("sapwood.server")

OWN = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}
"""Attributes that every record has."""
LEFT_OUT = frozenset({"color_message"})
"""Attributes of uvicorn's that repeat the message."""
AS_TEXT = (date, PurePath, UUID, Decimal, Enum, Address)
"""Values that are shown as text. Of other objects only the class is shown: their text may have a secret."""
MAX_NESTING, MAX_ITEMS = 3, 200
MAX_NUMBER = 2**63
PLACE = frozenset({"address", "turn", "run", "trace_id", "span_id"})
"""What the context says about a record. A fact that the code logged with it is more accurate."""


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object on one line. `facts` are in every record, such as the worker."""

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self._facts = facts

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="microseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **self._facts,
            **_place(),
        }
        for name, value in record.__dict__.items():
            if name not in OWN and name not in LEFT_OUT:
                found[name if name not in found or name in PLACE else f"{name}_"] = plain(value)
        if record.exc_info and record.exc_info[0] is not None:
            found["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            found["stack"] = record.stack_info
        # In ASCII, so that no character of a text can end the line or control a terminal; JSON leaves DEL as it is.
        return json.dumps(found).replace("\x7f", "\\u007f")


def _message(record: logging.LogRecord) -> str:
    """Return the text of a record. One whose arguments do not fit is not lost."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a text of any code that logs
        return f"{record.msg} (arguments do not fit the message)"


def _place() -> dict[str, str]:
    """Return the agent that logs, its turn or run, and the current span, as far as they are known."""
    call, part = current.get(), doing.get()
    actor = call.actor if call is not None else part.actor if part is not None else None
    found: dict[str, str] = {} if actor is None else {"address": str(actor.address)}
    if part is not None and part.actor is actor:
        found |= {name: id for name, id in (("turn", part.turn), ("run", part.run)) if id is not None}
    if (ids := tracing.ids()) is not None:
        found["trace_id"], found["span_id"] = ids
    return found


def plain(value: object, depth: int = 0) -> Any:
    """Return a value as JSON has it."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < MAX_NUMBER else f"<{type(value).__name__}>"
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if depth < MAX_NESTING and isinstance(value, dict):
        items = islice(cast("dict[object, object]", value).items(), MAX_ITEMS)
        return {str(plain(name, MAX_NESTING)): plain(one, depth + 1) for name, one in items}
    if depth < MAX_NESTING and isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in islice(cast("list[object]", value), MAX_ITEMS)]
    if isinstance(value, AS_TEXT):
        return str(value)
    return f"<{type(value).__name__}>"


def log_uncaught() -> None:
    """Log warnings and exceptions that Python would write to stderr as text."""
    logging.captureWarnings(True)

    def uncaught(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            log.critical("uncaught exception", exc_info=(kind, error, where))

    def in_thread(told: threading.ExceptHookArgs) -> None:
        if told.exc_value is not None and not issubclass(told.exc_type, SystemExit):
            log.critical("uncaught exception in a thread", exc_info=(told.exc_type, told.exc_value, told.exc_traceback))

    def unraisable(told: Any) -> None:
        log.error("exception ignored in %s", type(told.object).__name__, exc_info=told.exc_value)

    sys.excepthook = uncaught
    threading.excepthook = in_thread
    sys.unraisablehook = unraisable
