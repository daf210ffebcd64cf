"""Numbers, times and sizes in words."""

from __future__ import annotations

import re

UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60))


def counted(count: int, what: str) -> str:
    """Return a count with its noun; the first word of `what` that ends in an s is the plural."""
    return f"{count} {re.sub(r'(ie)?s(?= |$)', _singular, what, count=1) if count == 1 else what}"


def _singular(ending: re.Match[str]) -> str:
    return "y" if ending[1] else ""


def ago(seconds: float) -> str:
    """Return how long ago an event was."""
    for unit, length in UNITS:
        if seconds >= length:
            return f"{counted(int(seconds // length), unit)} ago"
    return "just now"


def lasted(seconds: float) -> str:
    """Return a duration in short form."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def size(count: int) -> str:
    """Return a number of bytes in readable form."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.0f} {units[0]}" if value >= 10 or units[0] == "B" else f"{value:.1f} {units[0]}"
