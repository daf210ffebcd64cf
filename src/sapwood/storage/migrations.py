"""Schemas that grow by numbered scripts, each applied once, whole, in order.

Every owner of tables (a part of the framework, or the user's class) has its own
sequence. What was applied is remembered with a digest, so a script that was edited
afterwards is refused instead of silently meaning two things.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Script:
    """One numbered script of an owner."""

    owner: str
    number: int
    name: str
    sql: str

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.sql.encode()).digest()


@dataclass(frozen=True)
class Schema:
    """The tables of one part of the framework: the numbered `.sql` files in its package's `schema/` folder."""

    package: str
    owner: str

    @functools.cached_property
    def scripts(self) -> tuple[Script, ...]:
        return _read(self.package, self.owner)


@functools.cache
def _read(package: str, owner: str) -> tuple[Script, ...]:
    folder = resources.files(package) / "schema"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(f"{owner}_"))
    return tuple(Script(owner, number, name, (folder / name).read_text()) for number, name in enumerate(names, start=1))


def of_user(source: Sequence[str] | Path) -> tuple[Script, ...]:
    """Return a user's migrations: a list of scripts, or a folder of `.sql` files in the order of their names."""
    if isinstance(source, Path):
        files = sorted(source.glob("*.sql"))
        return tuple(Script("user", n, file.name, file.read_text()) for n, file in enumerate(files, start=1))
    return tuple(Script("user", n, f"migration {n}", sql) for n, sql in enumerate(source, start=1))
