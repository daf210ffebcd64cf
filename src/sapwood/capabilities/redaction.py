"""Takes out of records what must not be stored in them, by a function of the app's."""

from __future__ import annotations

import logging
from collections.abc import Callable

from sapwood.clock import Clock
from sapwood.settings import Settings

log = logging.getLogger(__name__)

Redact = Callable[[str, str], str]
"""Returns a text without its secrets. The first argument is what it is: `request`, `arguments` or `name`."""
FAILED = "(left out: the function of App(redact=…) failed)"


class Redaction:
    """What the records of one node leave out."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.function: Redact | None = None

    def apply(self, kind: str, text: str) -> str:
        """Return the text as it may be stored. A function that fails hides the whole text, and breaks no turn."""
        if self.function is None:
            return text
        try:
            redacted = self.function(kind, text)
            redacted.encode()  # fails for what is not a text, and for one that cannot be stored
        except Exception:
            log.exception("App(redact=…) failed kind=%s", kind)
            return FAILED
        return redacted
