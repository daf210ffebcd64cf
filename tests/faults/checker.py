"""Opens what a dead process left, lets it recover, and says what is there."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import apsw
from tests.faults.model import Report, Seen, SeenTree
from tests.faults.workload import TREES, Branch, Page, Root, pages

from sapwood import App, Settings
from sapwood.address import Address
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.trees.deletion import child_stem
from sapwood.storage.engine import CHECKED

PATIENCE = 120.0
"""Seconds after which a recovery hangs: so many that no busy machine is that slow."""


class Complaints(logging.Handler):
    """Collects what sapwood reports to operators as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        trouble = record.exc_info[1] if record.exc_info else None
        self.texts.append(f"sapwood logged an error: {record.getMessage()}: {trouble!r}")


async def examine(folder: Path, level: str) -> Report:
    """Wake every agent in the folder, wait for deletions to finish, then look at the files."""
    complaints = Complaints()
    logging.getLogger("sapwood").addHandler(complaints)
    report = Report(trees={}, problems=[])
    app = App(agents=[Root], settings=Settings(data=folder, durability=level, slow_after=10.0))
    try:
        async with asyncio.timeout(PATIENCE), app:
            for tree in TREES:
                if _home(folder, tree).exists():
                    report.trees[tree] = await _wake(app, tree, report.problems)
                    if level == "disk":
                        await _count_again(app, tree)
            for tree in app.node.trees.values():
                while tree.deletions:
                    await asyncio.wait(tree.deletions)
    except TimeoutError:
        report.problems.append(f"recovery did not end within {PATIENCE} s")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to be reported
        report.problems.append(f"recovery failed: {error!r}")
    report.problems += complaints.texts
    for tree in TREES:
        if _home(folder, tree).exists():
            look_at_files(Address.root_of("Root", tree), _home(folder, tree), report.problems)
    known = {_home(folder, tree) for tree in TREES}
    report.problems += [
        f"{left.name} lies beside the trees" for left in (folder / "trees").iterdir() if left not in known
    ]
    return report


def _home(folder: Path, tree: str) -> Path:
    return tree_folder(folder, Address.root_of("Root", tree))


async def _wake(app: App, tree: str, problems: list[str]) -> SeenTree:
    seen = SeenTree()
    async for where, page in pages(app, tree):
        if isinstance(page, Page):
            seen.epoch = page.epoch
            seen.agents[page.lineage[-1]] = Seen(where, page.ids, page.state, page.last_with_state)
        else:
            problems.append(f"{where} is registered and does not answer: {page!r}")
    return seen


async def _count_again(app: App, tree: str) -> None:
    """Have every branch count its children: a loss of power may keep a child and lose its entry in the ledger."""
    root = await app.get_agent(Root, tree)
    for _, name in (await root.page()).children:
        branch = await app.get_agent(Root, tree, sub=[(Branch, name)])
        if (await branch.page()).children:
            await branch.spawn("one more")


def look_at_files(root: Address, folder: Path, problems: list[str]) -> None:
    """Follow the registries from the root down: every file is named by one, and is sound."""
    tree = root.name
    expected = {"address", "marks", "marks.new"}
    children_of: dict[str, int] = {}
    ledger: dict[str, int] = {}
    left = ["root"]
    while left:
        stem = left.pop()
        path = folder / f"{stem}.db"
        expected |= {path.name, f"{path.name}-wal"}
        if not path.exists():
            continue
        database = apsw.Connection(str(path), vfs=CHECKED)
        try:
            ((verdict, *_), *_) = database.execute("PRAGMA integrity_check").fetchall()
            if verdict != "ok":
                problems.append(f"{tree}: the file {path.name} is damaged: {verdict}")
            tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_schema")}
            if "sapwood_children" in tables:
                rows = database.execute("SELECT generation, name, deleted_at FROM sapwood_children").fetchall()
                ((count,),) = database.execute("SELECT alive FROM sapwood_children_count").fetchall()
                alive = [child_stem(stem, int(str(row[0]))) for row in rows if row[2] is None]
                left += alive
                children_of[stem] = len(alive)
                if count != len(alive):
                    problems.append(f"{tree}: {stem} counts {count} children and has {len(alive)}")
                if len(alive) < len(rows):
                    problems.append(f"{tree}: {stem} still has the tombstone of a child")
            if stem == "root" and "sapwood_ledger" in tables:
                rows = database.execute("SELECT holder, children FROM sapwood_ledger").fetchall()
                ledger = {str(holder): int(str(children)) for holder, children in rows}
        finally:
            database.close()
    left_over = sorted(entry.name for entry in folder.iterdir() if entry.name not in expected)
    if left_over:
        problems.append(f"{tree}: files of nobody: {', '.join(left_over)}")
    if (label := folder / "address").exists() is False or label.read_text() != str(root):
        problems.append(f"{tree}: the folder does not say whose it is")
    _look_at_ledger(tree, ledger, children_of, problems)


def _look_at_ledger(tree: str, ledger: dict[str, int], children_of: dict[str, int], problems: list[str]) -> None:
    total = ledger.pop("", 0)
    if total != sum(ledger.values()):
        problems.append(f"{tree}: the ledger's sum is {total}, and its entries add up to {sum(ledger.values())}")
    for stem, children in children_of.items():
        if stem != "root" and ledger.get(stem, 0) < children:
            problems.append(f"{tree}: the ledger has {stem} down for {ledger.get(stem, 0)} children; it has {children}")
