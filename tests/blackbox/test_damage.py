"""Damage to each kind of file of a data folder: noticed, told to clients, contained in its tree, and mended.

Every row damages one file of the tree `Root:bad`, in a copy of the same folder. The server must refuse that tree with
the code `stored_data`, `sapwood verify` must name it, the other trees must answer, and `sapwood restore` must bring
back everything that was acknowledged before the backup.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.blackbox import folder as files
from tests.blackbox.app import DEEP
from tests.blackbox.client import call, code_of, connected, count_items
from tests.blackbox.events import wait_until
from tests.blackbox.folder import DataFolder, wal_of
from tests.blackbox.server import HERE, Server, run_command

ROOTS = ("good", "bad", "other")
ITEMS, DEEP_ITEMS = 120, 40
TOTAL = ITEMS + DEEP_ITEMS + 1
BAD = "Root:bad"
IN_CHILD = b"deep-0020"
"""What only one child of a root stores."""


@dataclass(frozen=True)
class Base:
    """What every row starts from."""

    killed: DataFolder
    """The folder of a server that was killed: most of the data is in write-ahead logs."""
    stopped: DataFolder
    """The same data, all of it in databases."""
    older: DataFolder
    """The folder as it was with half of the items."""
    backup: Path


async def fill(server: Server, items: range) -> None:
    for root in ROOTS:
        async with connected(server, root) as agent:
            for number in items:
                await agent.append(f"{root}-item-{number:04}")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Generator[Base, None, None]:
    home = tmp_path_factory.mktemp("damage")
    server = Server(home)
    data = DataFolder(server.data)

    async def fill_half() -> None:
        await fill(server, range(ITEMS // 2))

    async def fill_rest() -> None:
        await fill(server, range(ITEMS // 2, ITEMS))
        for root in ROOTS:
            async with connected(server, root) as agent:
                await agent.append_deep("deepest", 3)
                for number in range(DEEP_ITEMS):
                    await agent.append_deep(f"deep-{number:04}", 1)

    async def open_all() -> None:
        for root in ROOTS:
            assert await count_items(server, root) == TOTAL
            for depth in range(1, 4):
                await count_items(server, root, below=(DEEP,) * depth)

    try:
        server.start()
        asyncio.run(fill_half())
        server.stop()
        older = data.copy_to(home / "older")
        server.start()
        asyncio.run(fill_rest())
        backup = home / "backup"
        assert (made := server.command("backup", str(backup))).returncode == 0, made.stderr
        asyncio.run(wait_until(lambda: all(data.is_marked(root) for root in ROOTS), "the marks of all writes"))
        server.kill()
        killed = data.copy_to(home / "killed")
        server.start()
        asyncio.run(open_all())
        server.stop()  # a clean stop copies the logs of open databases into their files
        yield Base(killed, data, older, backup)
    finally:
        server.kill()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server, None]:
    """A server that is not started: the test prepares its data folder."""
    prepared = Server(tmp_path)
    yield prepared
    prepared.kill()


Damage = Callable[[DataFolder, Base], None]


def to_root(damage: Callable[[Path], None]) -> Damage:
    return lambda data, base: damage(data.root_database("bad"))


def to_child(damage: Callable[[Path], None]) -> Damage:
    return lambda data, base: damage(data.child_database("bad", IN_CHILD))


def to_wal(damage: Callable[[Path], None]) -> Damage:
    return lambda data, base: damage(wal_of(data.root_database("bad")))


def to_child_wal(damage: Callable[[Path], None]) -> Damage:
    return lambda data, base: damage(wal_of(data.child_database("bad", IN_CHILD)))


def flip_bit_in_root(data: DataFolder, base: Base) -> None:
    files.flip_bit(data.root_database("bad"), b"bad-item-0050")


def flip_bit_in_child(data: DataFolder, base: Base) -> None:
    files.flip_bit(data.child_database("bad", IN_CHILD), IN_CHILD)


def replace_root_by_older(data: DataFolder, base: Base) -> None:
    shutil.copy(base.older.root_database("bad"), data.root_database("bad"))


def make_root_a_folder(data: DataFolder, base: Base) -> None:
    database = data.root_database("bad")
    files.remove(database)
    database.mkdir()


def row(name: str, damage: Damage, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(damage, id=name, marks=marks)


NIGHTLY = pytest.mark.nightly

TO_DATABASES = [
    row("root-header", to_root(files.damage_header)),
    row("root-middle", to_root(files.damage_middle), NIGHTLY),
    row("root-cut-in-half", to_root(files.cut_in_half), NIGHTLY),
    row("root-empty", to_root(files.empty), NIGHTLY),
    row("root-zeroed", to_root(files.zero), NIGHTLY),
    row("root-removed", to_root(files.remove)),
    row("root-older", replace_root_by_older, NIGHTLY),
    row("root-bit", flip_bit_in_root),
    row("root-is-a-folder", make_root_a_folder, NIGHTLY),
]
TO_CHILDREN = [
    row("child-header", to_child(files.damage_header), NIGHTLY),
    row("child-tail", to_child(files.damage_tail), NIGHTLY),
    row("child-cut-in-half", to_child(files.cut_in_half), NIGHTLY),
    row("child-empty", to_child(files.empty), NIGHTLY),
    row("child-zeroed", to_child(files.zero), NIGHTLY),
    row("child-removed", to_child(files.remove), NIGHTLY),
    row("child-bit", flip_bit_in_child, NIGHTLY),
]
NOT_READ = [
    row("root-tail", to_root(files.damage_tail)),
    row("child-middle", to_child(files.damage_middle), NIGHTLY),
]
TO_LOGS = [
    row("log-header", to_wal(files.damage_header), NIGHTLY),
    row("log-middle", to_wal(files.damage_middle), NIGHTLY),
    row("log-cut-in-half", to_wal(files.cut_in_half), NIGHTLY),
    row("log-empty", to_wal(files.empty), NIGHTLY),
    row("log-zeroed", to_wal(files.zero), NIGHTLY),
    row("log-removed", to_wal(files.remove), NIGHTLY),
]
TO_CHILD_LOGS = [
    row("log-middle", to_child_wal(files.damage_middle), NIGHTLY),
    row("log-removed", to_child_wal(files.remove), NIGHTLY),
]


@pytest.mark.parametrize("damage", TO_DATABASES)
async def test_a_damaged_root_is_refused_and_restored(damage: Damage, server: Server, base: Base) -> None:
    await check_refusal(damage, server, base, base.stopped, below=())


@pytest.mark.parametrize("damage", TO_CHILDREN)
async def test_a_damaged_child_is_refused_and_restored(damage: Damage, server: Server, base: Base) -> None:
    await check_refusal(damage, server, base, base.stopped, below=(DEEP,))


@pytest.mark.parametrize("damage", TO_LOGS)
async def test_a_damaged_log_is_refused_and_restored(damage: Damage, server: Server, base: Base) -> None:
    await check_refusal(damage, server, base, base.killed, below=())


@pytest.mark.parametrize("damage", TO_CHILD_LOGS)
async def test_a_damaged_log_of_a_child_is_refused_and_restored(damage: Damage, server: Server, base: Base) -> None:
    await check_refusal(damage, server, base, base.killed, below=(DEEP,))


@pytest.mark.parametrize("damage", NOT_READ)
async def test_damage_to_a_page_that_is_not_read_is_found_by_verify(damage: Damage, server: Server, base: Base) -> None:
    await check_refusal(damage, server, base, base.stopped, below=None)


async def check_refusal(
    damage: Damage, server: Server, base: Base, source: DataFolder, *, below: tuple[str, ...] | None
) -> None:
    """Check a tree that is damaged, where the damage is: at the root, below it, or on a page that no call reads."""
    data = source.copy_to(server.data)
    damage(data, base)
    verified = server.command("verify")
    assert verified.returncode == 1
    assert BAD in verified.stdout + verified.stderr
    await server.start_beside()
    assert await count_items(server, "good") == TOTAL
    assert await count_items(server, "other") == TOTAL
    if below is not None:
        assert await code_of(server, "bad", "content", below=below) == "stored_data"
        assert await code_of(server, "bad", "append", "after-the-damage", below=below) == "stored_data"
    if below == ():
        assert await asyncio.to_thread(server.error_code, "/agents/root/bad") == (500, "stored_data")
    assert len(server.warnings()) < 10, "one line for each cause, and not for each client"
    restored = await asyncio.to_thread(server.command, "restore", str(base.backup), BAD)
    assert restored.returncode == 0, restored.stderr
    assert await count_items(server, "bad") == TOTAL
    assert await count_items(server, "bad", below=(DEEP,)) == DEEP_ITEMS + 1
    assert await call(server, "bad", "append", "after-the-restore") == TOTAL + 1


# What does not harm the data of any tree.


def remove_label(data: DataFolder, base: Base) -> None:
    (data.tree("bad") / "address").unlink()


def empty_label(data: DataFolder, base: Base) -> None:
    (data.tree("bad") / "address").write_bytes(b"")


def damage_label(data: DataFolder, base: Base) -> None:
    (data.tree("bad") / "address").write_bytes(b"\x00\xff not text")


def add_stray_entries(data: DataFolder, base: Base) -> None:
    (data.trees / "stray").write_text("a file among the trees")
    (data.trees / "empty").mkdir()
    (data.tree("bad") / "core.1234").write_text("a file in a tree")


def damage_lock(data: DataFolder, base: Base) -> None:
    (data.path / "lock").write_bytes(b"999999 not a pid")


ODD_ENTRIES = [
    row("label-removed", remove_label, NIGHTLY),
    row("label-empty", empty_label, NIGHTLY),
    row("label-damaged", damage_label),
    row("stray-entries", add_stray_entries, NIGHTLY),
    row("lock-damaged", damage_lock, NIGHTLY),
]


@pytest.mark.parametrize("damage", ODD_ENTRIES)
async def test_an_odd_entry_harms_no_tree_and_no_tool(
    damage: Damage, server: Server, base: Base, tmp_path: Path
) -> None:
    data = base.stopped.copy_to(server.data)
    damage(data, base)
    offline = [
        run_command("upgrade-check", str(HERE / "app.py"), "--data", str(server.data)),
        server.command("backup", str(tmp_path / "offline-backup")),
        server.command("tree", "--once"),
    ]
    await server.start_beside()
    for root in ROOTS:
        assert await count_items(server, root) == TOTAL
    online = [
        await asyncio.to_thread(server.command, "backup", str(tmp_path / "online-backup")),
        await asyncio.to_thread(server.command, "tree", "--once"),
    ]
    for ended in [*offline, *online]:
        assert "Traceback" not in ended.stderr
    checked, offline_backup, *others = offline
    assert "the rest fits" in checked.stdout or checked.returncode == 0
    assert "Copied 2 trees" in offline_backup.stdout or offline_backup.returncode == 0
    for ended in (*others, *online):
        assert "Root:good" in ended.stdout or ended.returncode == 0


# Backups.


@pytest.mark.parametrize("is_online", [pytest.param(False, marks=NIGHTLY), pytest.param(True, marks=NIGHTLY)])
async def test_a_backup_names_damaged_trees_and_copies_the_others(
    is_online: bool, server: Server, base: Base, tmp_path: Path
) -> None:
    data = base.stopped.copy_to(server.data)
    files.damage_header(data.root_database("bad"))
    if is_online:
        await server.start_beside()
    made = await asyncio.to_thread(server.command, "backup", str(tmp_path / "backup"))
    assert made.returncode == 1
    assert BAD in made.stdout + made.stderr
    copied = DataFolder(tmp_path / "backup")
    assert copied.root_database("good").exists()
    assert copied.root_database("other").exists()


@NIGHTLY
async def test_a_damaged_backup_is_not_restored(server: Server, base: Base, tmp_path: Path) -> None:
    base.stopped.copy_to(server.data)
    shutil.copytree(base.backup, tmp_path / "backup")
    backup = DataFolder(tmp_path / "backup")
    files.damage_middle(backup.root_database("bad"))
    verified = run_command("verify", str(backup.path))
    assert verified.returncode == 1
    assert BAD in verified.stdout + verified.stderr
    restored = server.command("restore", str(backup.path), BAD)
    assert restored.returncode == 1
    assert BAD in restored.stderr
    await server.start_beside()
    assert await count_items(server, "bad") == TOTAL
