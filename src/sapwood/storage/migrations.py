"""Schemas that grow by numbered scripts, each applied once, whole, in order.

Every owner of tables (a part of the framework, or the user's class) has its own
sequence. What was applied is remembered with a digest, so a script that was edited
afterwards is refused instead of silently meaning two things.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sapwood.errors import MigrationFailed

PARTS = ("kernel", "capabilities", "runs", "chat", "protocols")
USER = "user"
APPLIED = "SELECT number, digest FROM sapwood_migrations WHERE owner = 'user' ORDER BY number"
"""What a file has seen of the user's migrations."""

ROLL_BACK = "Run the newer version, or restore a backup that was made before the upgrade."


class NewerData(MigrationFailed):
    """A file has seen a script that this program does not have: a newer one has written it."""

    def __init__(self, text: str, owner: str, number: int) -> None:
        super().__init__(text)
        self.owner = owner
        self.number = number


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
                f"migration {number} ({script.name}) was edited after it ran on this database. Restore its old "
                "text and add a new migration. During development, you may delete the data folder instead."
            )
    if len(applied) > len(scripts):
        raise NewerData(
            f"this database has run {len(applied)} migrations, but the class has only {len(scripts)}. Restore the "
            "removed migrations, or run the newer version of the program that wrote it.",
            USER,
            len(applied),
        )
    return scripts[len(applied) :]


def check_known(versions: Mapping[str, int]) -> None:
    """Refuse a file that has seen a script of the framework which this version of it does not have."""
    known = framework()
    for owner, number in versions.items():
        if owner != USER and number > known.get(owner, 0):
            raise NewerData(
                f"this database was written by a newer version of sapwood: it has {owner} {number}, and this "
                f"version knows {known.get(owner, 0)}. {ROLL_BACK}",
                owner,
                number,
            )


@functools.cache
def framework() -> dict[str, int]:
    """Return how many scripts each owner of the framework has."""
    counts: dict[str, int] = {}
    for part in PARTS:
        for entry in (resources.files(f"sapwood.{part}") / "schema").iterdir():
            owner = entry.name.rpartition("_")[0]
            counts[owner] = counts.get(owner, 0) + 1
    return counts


@functools.cache
def scripts_of(owner: str) -> tuple[Script, ...]:
    """Return the scripts of an owner of the framework; none of an unknown one."""
    if owner not in framework():
        return ()
    return next(found for part in PARTS if (found := _read(f"sapwood.{part}", owner)))


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
