"""The last log records of a process, in memory."""

from __future__ import annotations

import logging
import re
from collections import deque
from itertools import islice
from typing import NamedTuple

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.kernel.marshal.call import current
from sapwood.kernel.node.node import Node
from sapwood.runs.execution.contract import doing
from sapwood.settings import Settings

MOST_RECORDS = 10_000
MOST_BYTES = 8 * 1024 * 1024
LONGEST = 64 * 1024
"""Characters of a message or an exception. What is longer is cut."""
LINK_TOKEN = re.compile(r"(/studio/#t=)\S+")
"""The link that `sapwood dev` logs has a token with all scopes, and a token with less may read the log."""
OF_A_RECORD = 300
"""Bytes that a record takes beside its texts, about."""


class LogEntry(NamedTuple):
    """One log record."""

    number: int
    """From 1, in the order of the process."""
    time: float
    level: str
    severity: int
    logger: str
    message: str
    address: str | None
    """The agent that it is about, or that logged it."""
    exception: str | None

    @property
    def size(self) -> int:
        """How many bytes it takes, about."""
        return OF_A_RECORD + len(self.message) + len(self.exception or "")

    def is_about(self, address: str) -> bool:
        """Return whether it is about an agent or one below it."""
        return self.address is not None and (self.address == address or self.address.startswith(f"{address}/"))

    def names(self, address: str) -> bool:
        """Return whether it is about an agent or one below it, or has its address in a text."""
        return self.is_about(address) or address in self.message or address in (self.exception or "")


def erase_logs(node: Node, subject: Address) -> int:
    """Forget what the log of a process has of an agent and those below it; return of how many records."""
    return node.shared(LogRing).erase(str(subject))


class LogRing(logging.Handler):
    """Keeps the last records of all loggers while it is attached."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        super().__init__()
        self._entries: deque[LogEntry] = deque()
        self._size = 0
        self.last = 0
        """The number of the last record."""

    def attach(self) -> None:
        """Keep what is logged from now on."""
        logging.getLogger().addHandler(self)

    def detach(self) -> None:
        """Keep no more."""
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record. The lock of the handler is held."""
        self.last += 1
        entry = LogEntry(
            self.last,
            record.created,
            record.levelname.lower(),
            record.levelno,
            record.name,
            _message(record)[:LONGEST],
            _address(record),
            _exception(record),
        )
        self._entries.append(entry)
        self._size += entry.size
        while len(self._entries) > MOST_RECORDS or self._size > MOST_BYTES:
            self._size -= self._entries.popleft().size

    def erase(self, address: str) -> int:
        """Forget the records that are about an agent or one below it, or name it; return how many."""
        self.acquire()
        try:
            left = [one for one in self._entries if not one.names(address)]
            count = len(self._entries) - len(left)
            self._entries = deque(left)
            self._size = sum(one.size for one in left)
            return count
        finally:
            self.release()

    def after(self, number: int, most: int) -> list[LogEntry]:
        """Return up to `most` records, in order: those after a number."""
        if number >= self.last:
            return []
        self.acquire()
        try:
            first = self._entries[0].number if self._entries else 0
            # None before it can be one that is meant, and if records were erased, some after it are not.
            start = max(0, number + 1 - first) if len(self._entries) == self.last + 1 - first else 0
            return list(islice((one for one in islice(self._entries, start, None) if one.number > number), most))
        finally:
            self.release()


def _message(record: logging.LogRecord) -> str:
    try:
        return LINK_TOKEN.sub(r"\1<redacted>", record.getMessage())
    except Exception:  # noqa: BLE001 - a text of any code that logs
        return f"{record.msg} (arguments do not fit the message)"


def _exception(record: logging.LogRecord) -> str | None:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    return _FORMATTER.formatException(record.exc_info)[-LONGEST:]


def _address(record: logging.LogRecord) -> str | None:
    if (address := getattr(record, "address", None)) is not None:
        return str(address)
    call, part = current.get(), doing.get()
    actor = call.actor if call is not None else part.actor if part is not None else None
    return None if actor is None else str(actor.address)


_FORMATTER = logging.Formatter()
