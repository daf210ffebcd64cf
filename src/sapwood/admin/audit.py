"""The audit log: a line when an act of an operator begins, one when it has ended, and one for each that was refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.storage.files import open_private

log = logging.getLogger(__name__)

FILE = "operator.jsonl"
LEFT_OUT = frozenset({"address", "arguments", "instructions", "message", "value", "preview", "token"})
"""Parameters that are not logged, or elsewhere."""
LONGEST = 1000
"""Characters of a parameter."""


class Audit:
    """The audit log of one data folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path = folder / FILE
        self._clock = clock

    def add(self, name: str, endpoint: str, params: dict[str, Any], status: int | None) -> None:
        """Add a line. The status is `None` when an act begins: it may end the process."""
        about = {
            key: value[:LONGEST] if isinstance(value, str) else value
            for key, value in params.items()
            if key not in LEFT_OUT and isinstance(value, str | int | float | bool)
        }
        line = {
            "time": datetime.fromtimestamp(self._clock.now(), UTC).isoformat(timespec="milliseconds"),
            "token": name,
            "endpoint": endpoint,
            "address": params.get("address"),
            "params": about,
            "result": _result(status),
            "status": status,
        }
        try:
            with open_private(self._path, "a") as file:
                file.write(f"{json.dumps(line)}\n")
        except OSError as error:
            log.error("cannot write the audit log token=%s endpoint=%s: %s", name, endpoint, error)


def _result(status: int | None) -> str:
    if status is None:
        return "begun"
    return "refused" if status in (401, 403) else "done" if status < 400 else "failed"


def kept_lines(folder: Path, subjects: Sequence[Address]) -> str:
    """Return what the audit log keeps of an agent, as a sentence; an empty string for nothing.

    `subjects`: all addresses of the agent.
    """
    try:
        text = (folder / FILE).read_text()
    except FileNotFoundError:
        return ""
    names = [str(one) for one in subjects]
    count = sum(any(name in line for name in names) for line in text.splitlines())
    if count == 1:
        return f"1 line of the audit log {FILE} names the agent. It has no content."
    return f"{count} lines of the audit log {FILE} name the agent. They have no content." if count else ""
