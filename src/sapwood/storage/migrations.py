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

from sapwood.errors import MigrationFailed

APPLIED = "SELECT number, digest FROM sapwood_migrations WHERE owner = 'user' ORDER BY number"
"""What a file has seen of the user's migrations."""


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


def to_come(applied: Sequence[tuple[int, bytes]], scripts: Sequence[Script]) -> Sequence[Script]:
    """Return the scripts that a file has not seen; refuse those that were edited or removed since it saw them."""
    for (number, digest), script in zip(applied, scripts, strict=False):
        if bytes(digest) != script.digest:
            raise MigrationFailed(
                f"migration {number} ({script.name}) was edited after it ran here. Put the old text back and add "
                "a new one. While you develop, you may delete the data folder instead."
            )
    if len(applied) > len(scripts):
        raise MigrationFailed(
            f"this database has seen {len(applied)} migrations and the class has only {len(scripts)}. Put back "
            "what was removed, or run the newer version of the program that wrote it."
        )
    return scripts[len(applied) :]


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
