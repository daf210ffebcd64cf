"""Times on the command line: each has a time zone."""

from __future__ import annotations

from datetime import datetime

from sapwood.errors import UsageError


def with_zone(text: str) -> datetime:
    """Parse a time; `UsageError` if it has no time zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise UsageError(f"Expected a time with a time zone, such as 2026-11-16T05:00:00Z or …+01:00, got {text!r}.")
    return at
