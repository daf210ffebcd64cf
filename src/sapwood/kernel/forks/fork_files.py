"""Makes a fork of the copied files of a tree: the agents of a subtree, under another root, with their own ids.

The files of a tree do not have its name, but those of its agents are named by their place in it. So each file of a
subtree moves to a new folder, and gets the name that it has there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sapwood.address import Address
from sapwood.errors import NotFound, StoredDataError
from sapwood.kernel.actors.children_table import CHILDREN
from sapwood.kernel.actors.fork_origin import WorkRule
from sapwood.kernel.actors.idempotency import IDEMPOTENCY
from sapwood.kernel.forks.forked_tree import ForkedAgent, ForkedTree, HeldWork, UnfinishedWork
from sapwood.kernel.forks.origin import store_origin
from sapwood.kernel.forks.root_tables import questions_in, read_rows, spent_before, write_indexes, write_rows
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.former_addresses import birthplace, forget_moves, rename_agents, within
from sapwood.kernel.trees.tree_files import LABEL, ROOT_STEM
from sapwood.storage.blobs import blob_folder
from sapwood.storage.files import make_private_folder
from sapwood.storage.offline_edit import OfflineEdit, editing

Visit = Callable[[ForkedAgent, OfflineEdit], None]


class ForkOrder(NamedTuple):
    """What to make a fork of, and how."""

    source: Address
    """The agent whose subtree is copied."""
    target: Address
    """The root that the copy gets."""
    rule: WorkRule
    at: float
    """The moment that the copied files show."""
    now: float
    is_cut: bool = False
    """Whether the copy has only this subtree, as a tree of its own."""


def make_fork(copy: Path, folder: Path, order: ForkOrder, work: UnfinishedWork) -> tuple[int, HeldWork]:
    """Move a subtree of the copied tree in `copy` to the new folder `folder`, and make a fork of it.

    Returns the number of its agents, and how much work is held. Takes a while: not for the event loop.
    """
    callers: list[ForkedAgent] = []
    with editing(_root_in(copy, order.source)) as edit:
        rows = read_rows(edit)
        first = birthplace(edit)
    is_rewind = order.target == order.source and not order.is_cut  # the tree stays the same one

    def visit(agent: ForkedAgent, edit: OfflineEdit) -> None:
        spent = spent_before(rows, agent.source, agent.source_stem) if agent.stem == ROOT_STEM else None
        if not is_rewind:
            store_origin(edit, agent, order.at, order.now, order.rule, spent)
        if edit.has(IDEMPOTENCY):
            callers.append(agent)
        work.look(agent, edit, is_rewind=is_rewind)

    stem = ROOT_STEM if order.is_cut else _stem_of(copy, order.source)
    root = _moved_subtree(copy, folder, stem, order.source, order.target, visit)
    if order.target != order.source:
        _rename_all_callers(root, first, callers)
    with editing(root.database) as edit:
        if order.target != order.source:
            forget_moves(edit)
        write_rows(edit, rows, root)
    questions = questions_in(rows, order.source, order.target)
    held, due, open_questions = work.settle(ForkedTree(root, order.rule, order.at, order.now, questions))
    with editing(root.database) as edit:
        write_indexes(edit, due, open_questions)
    return sum(1 for _ in root.below()), held


def rename_root(copy: Path, root: Address, former: Sequence[Address], now: float) -> None:
    """Have a copied tree as it was under a former address be as if it had this address. `former`: all that it had."""
    path = copy / f"{ROOT_STEM}.db"
    if former and path.exists():
        with editing(path) as edit:
            for address in former:
                rename_agents(edit, address, root, now)


def move_subtree(copy: Path, folder: Path, source: Address) -> int:
    """Move a subtree of the copied tree in `copy` to the new folder `folder`, as a tree of its own.

    Work, ids and addresses stay as they were: it is not a fork yet. Returns the number of its agents.
    """
    callers: list[ForkedAgent] = []
    with editing(_root_in(copy, source)) as edit:
        rows = read_rows(edit)
        first = birthplace(edit)

    def visit(agent: ForkedAgent, edit: OfflineEdit) -> None:
        if edit.has(IDEMPOTENCY):
            callers.append(agent)

    root = _moved_subtree(copy, folder, _stem_of(copy, source), source, source, visit)
    if source != source.root:  # its files have other names, and it does not know that its tree was moved
        _rename_all_callers(root, first, callers)
    with editing(root.database) as edit:
        write_rows(edit, rows, root)
    return sum(1 for _ in root.below())


def _root_in(copy: Path, source: Address) -> Path:
    path = copy / f"{ROOT_STEM}.db"
    if not path.exists():
        raise NotFound(f"{source} has no data.", path=source.segments)
    return path


def _moved_subtree(copy: Path, folder: Path, stem: str, source: Address, target: Address, visit: Visit) -> ForkedAgent:
    """Move the files of an agent and of all below it; return it. Parents are visited before their children."""
    make_private_folder(folder)
    (folder / LABEL).write_text(str(target))  # first: what a crash leaves of it belongs to who runs the fork
    root = ForkedAgent(target, source, ROOT_STEM, stem, folder / f"{ROOT_STEM}.db")
    if not (copy / f"{root.source_stem}.db").exists():
        raise NotFound(f"{source} has no data.", path=source.segments)
    to_visit = [root]
    while to_visit:
        agent = to_visit.pop()
        _move_files(copy / f"{agent.source_stem}.db", agent.database)
        if agent.database.exists():
            with editing(agent.database) as edit:
                _add_children(agent, edit)
                visit(agent, edit)
        to_visit += reversed(agent.children)
    return root


def _stem_of(copy: Path, source: Address) -> str:
    """Return the file stem of an agent of a copied tree."""
    stem = ROOT_STEM
    for segment in source.segments[1:]:
        found: list[tuple[int]] = []
        path = copy / f"{stem}.db"
        if path.exists():
            with editing(path) as edit:
                if edit.has(CHILDREN):
                    found = edit.execute(
                        "SELECT generation FROM sapwood_children WHERE type = ? AND name = ? AND deleted_at IS NULL",
                        segment.type,
                        segment.name,
                    )
        if not found:
            raise NotFound(f"{source} does not exist.", path=source.segments)
        stem = child_stem(stem, _generation(found[0][0]))
    return stem


def _add_children(agent: ForkedAgent, edit: OfflineEdit) -> None:
    if not edit.has(CHILDREN):
        return
    edit.execute("DELETE FROM sapwood_children WHERE deleted_at IS NOT NULL")
    for generation, type_, name in edit.execute(
        "SELECT generation, type, name FROM sapwood_children ORDER BY generation"
    ):
        stem = child_stem(agent.stem, _generation(generation))
        agent.children.append(
            ForkedAgent(
                agent.address.child(type_, name),
                agent.source.child(type_, name),
                stem,
                child_stem(agent.source_stem, generation),
                agent.database.with_name(f"{stem}.db"),
            )
        )


def _generation(stored: object) -> int:
    """Return what is part of the name of a file. A file that was imported may have anything in this place."""
    if not isinstance(stored, int):
        raise StoredDataError(f"The generation of a child must be a whole number, got {stored!r}.")
    return stored


def _move_files(old: Path, new: Path) -> None:
    for suffix in ("", "-wal"):
        path = old.with_name(old.name + suffix)
        if path.exists():
            path.rename(new.with_name(new.name + suffix))
    if (blobs := blob_folder(old)).exists():
        blobs.rename(blob_folder(new))


def _rename_all_callers(root: ForkedAgent, first: Address | None, agents: list[ForkedAgent]) -> None:
    """Rename the callers that are part of a subtree, at the agents that have stored outcomes. `first`: where its tree
    was made."""
    names = {f"{within(one.source, first)} {one.source_stem}": f"{one.address} {one.stem}" for one in root.below()}
    for agent in agents:
        _rename_callers(agent, names)


def _rename_callers(agent: ForkedAgent, names: dict[str, str]) -> None:
    """Have the stored outcomes of calls with a key belong to the callers of the fork, which have other addresses."""
    with editing(agent.database) as edit:
        for (caller,) in edit.execute("SELECT DISTINCT caller FROM sapwood_idempotency WHERE caller <> ''"):
            if (name := names.get(caller)) is not None:
                edit.execute("UPDATE sapwood_idempotency SET caller = ? WHERE caller = ?", name, caller)
