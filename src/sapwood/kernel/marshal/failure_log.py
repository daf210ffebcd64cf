"""Logs repeated failures as one line per minute and cause; the next line has their number.

A client that reconnects, an alarm that is tried again and an agent that cannot start fail in the same way many times a
minute. The first line has the traceback. All failures of that minute share its reference.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from sapwood.kernel.marshal.disclosure import internal_error, new_reference, told_of
from sapwood.kernel.marshal.exceptions import describe, unlogged
from sapwood.randomness import SYSTEM, Random
from sapwood.storage.availability import StorageUnavailable
from sapwood.wire.final_errors import final_code

log = logging.getLogger(__name__)

MINUTE = 60.0
MANY = 1000
"""Causes that are remembered; above it, the oldest is forgotten."""
VARIABLE = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
"""Numbers and ids in the text of an error, which differ each time."""


@dataclass(slots=True)
class Repeats:
    """One cause, in the minute that its first failure began."""

    began: float
    reference: str
    log: logging.Logger
    level: int
    text: str
    more: int = 0


class FailureLog:
    """The repeated failures of one node."""

    def __init__(self, now: Callable[[], float], random: Random = SYSTEM) -> None:
        self._now = now
        self._random = random
        self._known: dict[Hashable, Repeats] = {}

    def report(
        self,
        log: logging.Logger,
        level: int,
        message: str,
        *args: object,
        error: BaseException,
        about: Hashable = None,
        traceback: BaseException | None = None,
        with_reference: bool = False,
        **extra: str,
    ) -> str:
        """Log a failure, or count it if the same was logged less than a minute ago. Returns its reference.

        The same means: the same message, about the same tree or agent, with the same error.
        """
        now, key = self._now(), (message, about, type(error), VARIABLE.sub("#", describe(error)))
        if isinstance(error, StorageUnavailable):  # it is the same for everything on this machine
            key, traceback = (StorageUnavailable, error.reason), None
        known = self._known.get(key)
        if known is not None and now < known.began + MINUTE:
            known.more += 1
            return known.reference
        if known is not None:
            self._tell_more(known, now)
            del self._known[key]
        elif len(self._known) >= MANY:
            self._tell_more(self._known.pop(next(iter(self._known))), now)
        reference = new_reference(self._random)
        if with_reference:
            message, args, extra = f"{message} reference=%s", (*args, reference), {**extra, "reference": reference}
        self._known[key] = Repeats(now, reference, log, level, message % args)
        log.log(level, message, *args, exc_info=traceback, extra=extra)
        return reference

    def disclose(self, error: BaseException, *, address: object, method: str) -> str:
        """Return the text that a client gets for an error of a call; an internal one is logged with a reference."""
        text = told_of(error)
        if text is not None:
            return text
        reference = self.report(
            log,
            logging.ERROR,
            "internal error address=%s method=%s error=%s",
            address,
            method,
            describe(error),
            error=error,
            about=(address, method),
            traceback=unlogged(error),
            with_reference=True,
            address=str(address),
        )
        return internal_error(reference, final_code(error))

    def flush(self, *, all: bool = False) -> None:
        """Log how often each failure of a past minute was repeated; with `all`, also those of the current minute."""
        now = self._now()
        for key, known in list(self._known.items()):
            if all or now >= known.began + MINUTE:
                self._tell_more(known, now)
                del self._known[key]

    def _tell_more(self, known: Repeats, now: float) -> None:
        if known.more:
            known.log.log(
                known.level,
                "failure repeated count=%d seconds=%.0f: %s",
                known.more,
                now - known.began,
                known.text,
            )
