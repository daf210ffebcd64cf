"""Agents as they are stored, one after the other, beside the classes they would have if the program started now.

No agent is woken, and nothing is changed. Each part of the framework that stores something
has a function `unfit` that reads its own rows as it would read them later, and names what
no longer fits; here are the files, the classes and the migrations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sapwood.address import Address
from sapwood.errors import (
    InvalidArguments,
    MigrationFailed,
    NoSuchMethod,
    StoredDataError,
    UnknownAgent,
    UsageError,
)
from sapwood.kernel.actors.row_ids import row_id
from sapwood.kernel.marshal.agent_class import AgentClass, resolve
from sapwood.kernel.node.data_folder import roots_in, tree_folder
from sapwood.kernel.trees.former_addresses import stored_birthplace, within
from sapwood.kernel.trees.lost_children import stored_children
from sapwood.kernel.trees.tree_files import ROOT_STEM
from sapwood.storage.file_reader import FileReader, reading
from sapwood.storage.files import Files
from sapwood.storage.marks import Marks
from sapwood.storage.migrations import NewerData, to_come

RESTORE = "Restore a backup of this tree, or delete the agent."


@dataclass(frozen=True, slots=True)
class Misfit:
    """Something stored that does not fit the program."""

    agent: str
    """The address of the agent that has it."""
    what: str
    """What it is: a state, a scheduled call, a fiber."""
    id: str
    """Which one, where there may be several."""
    why: str
    """What is wrong with it, in a sentence."""
    remedy: str
    """What to do, in a sentence."""


class NotChecked(Exception):
    """Some code of the user's wants more of its agent than there is while it sleeps."""


class Nobody:
    """Stands in for the life of an agent that sleeps: it has an address, and can do nothing."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def __getattr__(self, name: str) -> Any:
        raise NotChecked(name)


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """One agent as it is stored, and its class."""

    address: Address
    stem: str
    kind: AgentClass
    file: FileReader
    counts: Counter[str]
    """How much was looked at so far, by what it is; each reader counts its own."""
    birthplace: Address
    """The first address that it had."""

    def misfit(self, what: str, why: str, remedy: str, *, number: int | None = None, id: str = "") -> Misfit:
        which = id if number is None else row_id(number, self.birthplace, self.stem)
        return Misfit(str(self.address), what, which, why, remedy)

    def wrong_with(self, method: str, arguments: bytes) -> str | None:
        """Return why a stored call of a method could not be made; None if it could."""
        try:
            found = self.kind.own(method)
            found.signature.unpack(arguments)
        except (NoSuchMethod, InvalidArguments, UsageError) as error:
            return str(error)
        except msgspec.MsgspecError as error:
            return f"The stored arguments of {method}() are damaged: {error}."
        if found.streams:
            return f"{found.full_name}() is now a stream, and stored calls cannot read a stream."
        return None


@dataclass(slots=True)
class Survey:
    """Goes through all agents of a data folder."""

    folder: Path
    roots: Sequence[AgentClass]
    counts: Counter[str] = field(default_factory=Counter[str])
    _kinds: dict[str, AgentClass | Misfit] = field(default_factory=dict[str, "AgentClass | Misfit"])

    def agents(self) -> Iterator[StoredAgent | Misfit]:
        """Return each agent, as long as its file is open, and what is wrong with it as a whole."""
        for root in roots_in(self.folder):
            self.counts["trees"] += 1
            if (outside := self._outside(root)) is not None:
                yield outside
            yield from self._tree(root)

    def _outside(self, root: Address) -> Misfit | None:
        kind = self._kind(root.type)
        if isinstance(kind, Misfit) or kind in self.roots:
            return None
        why = f"{kind.cls.__name__} is not a root of the app, so its trees cannot be reached."
        return Misfit(str(root), "class", "", why, f"Add it: App(agents=[…, {kind.cls.__name__}]).")

    def _tree(self, root: Address) -> Iterator[StoredAgent | Misfit]:
        folder, files = tree_folder(self.folder, root), Files()
        to_visit = [(root, ROOT_STEM)]
        first: Address | None = None
        while to_visit:
            address, stem = to_visit.pop()
            self.counts["agents"] += 1
            kind = self._kind(address.type)
            if isinstance(kind, Misfit):
                yield Misfit(str(address), kind.what, kind.id, kind.why, kind.remedy)
            path = folder / f"{stem}.db"
            if not path.exists():
                mark = Marks(folder, files).find(stem)
                if mark is not None and mark.counts(files.boot):
                    yield Misfit(str(address), "database", "", f"The file {path.name} is missing.", RESTORE)
                continue  # else it has not written anything yet
            try:
                with reading(path) as file:
                    file.check_known()
                    below = [(address.child(type_, name), child) for type_, name, child in stored_children(file)]
                    if stem == ROOT_STEM:
                        first = stored_birthplace(file)
                    if isinstance(kind, AgentClass):
                        yield StoredAgent(address, stem, kind, file, self.counts, within(address, first))
                    to_visit += reversed(below)
            except NewerData as error:  # what is below it cannot be reached
                yield Misfit(str(address), "database", "", *_why_and_remedy(error))
            except StoredDataError as error:
                yield Misfit(str(address), "database", "", str(error), RESTORE)

    def _kind(self, type_id: str) -> AgentClass | Misfit:
        found = self._kinds.get(type_id)
        if found is None:
            try:
                found = resolve(type_id, self.roots)
            except UnknownAgent:
                why = f"No class has the type id {type_id!r}."
                remedy = "If it was renamed, keep the old id: @agent(type=…, aliases=[…]). Or import its module."
                found = Misfit("", "class", "", why, remedy)
            except UsageError as error:
                found = Misfit("", "class", "", str(error), "Give each class a type id of its own: @agent(type=…).")
            self._kinds[type_id] = found
        return found


def unfit(stored: StoredAgent) -> Iterator[Misfit]:
    """Look at the migrations of an agent's class; those to come are tried on a copy."""
    try:
        scripts = to_come(stored.file.applied, stored.kind.migrations)
        if scripts:
            stored.counts["databases to be migrated"] += 1
        if not stored.file.apply(scripts):
            stored.counts["databases too large to try their migrations"] += 1
    except MigrationFailed as error:
        why, remedy = _why_and_remedy(error)
        yield stored.misfit("migrations", why, remedy or "Fix the migration: it must work on the stored data.")


def _why_and_remedy(error: MigrationFailed) -> tuple[str, str]:
    why, _, remedy = str(error).partition(". ")
    return f"{why[0].upper()}{why[1:].removesuffix('.')}.", remedy
