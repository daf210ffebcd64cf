"""What the tools of the killed server have done, in a database that no process of it owns."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

FILE = "effects.sqlite"


def note(folder: Path, operation: str, tool: str, key: str) -> None:
    """Write down one call of a tool. `key` is the id of the call, which the model chose."""
    with closing(_connect(folder)) as database, database:
        database.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", (operation, tool, key, os.getpid()))


def _connect(folder: Path) -> sqlite3.Connection:
    database = sqlite3.connect(folder / FILE, timeout=60)
    database.execute("PRAGMA synchronous = OFF")  # it has to survive processes, not the machine
    database.execute(
        "CREATE TABLE IF NOT EXISTS effects"
        " (operation TEXT NOT NULL, tool TEXT NOT NULL, key TEXT NOT NULL, process INTEGER NOT NULL) STRICT"
    )
    return database


@dataclass(frozen=True)
class Effects:
    """All calls of tools, by operation and tool."""

    attempts: Counter[tuple[str, str]]
    """How often each tool ran for an operation. A process may die when a tool has run, before that is stored."""
    calls: Counter[tuple[str, str]]
    """For how many calls of the model a tool ran: a receiver that knows the ids of calls counts these."""

    @classmethod
    def read(cls, folder: Path) -> Effects:
        with closing(_connect(folder)) as database:
            rows = database.execute(
                "SELECT operation, tool, count(*), count(DISTINCT key) FROM effects GROUP BY operation, tool"
            ).fetchall()
        return cls(
            Counter({(operation, tool): attempts for operation, tool, attempts, _ in rows}),
            Counter({(operation, tool): calls for operation, tool, _, calls in rows}),
        )
