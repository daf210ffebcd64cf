"""Damage to each file of a tree: noticed, named with the command that mends it, and harmless to other trees."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cases import slow
from tests.conformance.replicated import running_replicated
from tests.conformance.worlds import Branch, below, until

import sapwood
from sapwood import App, Settings
from sapwood.address import Address
from sapwood.errors import StoredDataError, Unavailable
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.tree_check import check_folder
from sapwood.kernel.node.upgrade_check import Misfit, Survey
from sapwood.storage import files
from sapwood.storage.file_reader import reading
from sapwood.storage.image import PAGE_SIZE
from sapwood.storage.marks import MARKS
from sapwood.testing import World, running
from sapwood.timings import Timings

BAD, GOOD = Address.root_of("Branch", "bad"), Address.root_of("Branch", "good")
AGENTS: dict[str, Sequence[str]] = {"root": (), "child": ("a", "b", "c")}
"""The agents that are damaged: the root, and one at depth 3."""
KEPT = [f"{number} {'note ' * 60}" for number in range(8)]

Damage = Callable[[Path], object]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0b1000
    path.write_bytes(content)


def overwrite(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def truncate(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        file.truncate(length)


def size(path: Path) -> int:
    return path.stat().st_size


def a_note(path: Path) -> int:
    """Return the place of some text of a note."""
    return path.read_bytes().index(b"note note")


def last_note(path: Path) -> int:
    return path.read_bytes().rindex(b"note note")


def wal(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def older(path: Path) -> Path:
    """Return an earlier copy of a file."""
    return path.parents[3] / "older" / path.name


DAMAGE: dict[str, Damage] = {
    "header": lambda path: overwrite(path, 0, b"\xff" * 100),
    "middle": lambda path: overwrite(path, a_note(path), b"\xff" * 64),
    "tail": lambda path: overwrite(path, last_note(path), b"\xff" * 64),
    "one bit": lambda path: flip(path, a_note(path)),
    "one bit of the header": lambda path: flip(path, 30),
    "truncated to half": lambda path: truncate(path, size(path) // 2),
    "truncated to a page": lambda path: truncate(path, PAGE_SIZE),
    "truncated to nothing": lambda path: truncate(path, 0),
    "zeroed": lambda path: overwrite(path, 0, bytes(size(path))),
    "deleted": lambda path: path.unlink(),
    "an older copy": lambda path: shutil.copy(older(path), path),
}
WAL_DAMAGE: dict[str, Damage] = {
    "header": lambda path: overwrite(wal(path), 0, b"\xff" * 32),
    "one bit of the header": lambda path: flip(wal(path), 18),
    "middle": lambda path: overwrite(wal(path), size(wal(path)) // 2, b"\xff" * 64),
    "one bit": lambda path: flip(wal(path), size(wal(path)) // 2),
    "tail": lambda path: overwrite(wal(path), size(wal(path)) - 64, b"\xff" * 64),
    "truncated to half": lambda path: truncate(wal(path), size(wal(path)) // 2),
    "truncated to nothing": lambda path: truncate(wal(path), 0),
    "zeroed": lambda path: overwrite(wal(path), 0, bytes(size(wal(path)))),
    "deleted": lambda path: wal(path).unlink(),
    "an older copy": lambda path: shutil.copy(older(wal(path)), wal(path)),
}


@sapwood.agent(type="Branch")
class Asking(Branch):
    async def ask(self) -> int:
        return (await self.read_sql("SELECT sum(length(text)) FROM notes")).scalar(int)


@dataclass(frozen=True)
class Left:
    """What an app left that has ended."""

    home: Path
    stems: dict[str, str]
    """The file name of each agent, without its suffix."""

    def copied(self, to: Path) -> Left:
        shutil.copytree(self.home, to, dirs_exist_ok=True)
        return Left(to, self.stems)

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def folder(self) -> Path:
        return tree_folder(self.data, BAD)

    def file(self, agent: str) -> Path:
        return self.folder / f"{self.stems[agent]}.db"


Leave = Callable[..., Awaitable[Left]]


async def write(world: World, texts: list[str]) -> None:
    for root in (BAD, GOOD):
        for path in AGENTS.values():
            one = await world.get_agent(Branch, root.name, sub=below(*path))
            for text in texts:
                await one.note(text)
    databases = [database for tree in world.node.trees.values() for database in tree.databases.values()]
    await until(lambda: all(database.is_marked for database in databases))


async def end(world: World, how: str) -> None:
    """Stop the app, or end it as kill -9 does."""
    if how == "killed":
        world.points.ended = True
        await world.node.die()
    await world.app.__aexit__()


async def live(home: Path, how: str, level: str) -> Left:
    """Run two trees twice; each time the app ends. The files after the first time are in `older`."""
    settings = {"data": home / "data", "durability": level}
    app, timings = App(agents=[Branch]), Timings(mark_interval=0.01)
    async with running(app, slow_slices="allow", timings=timings, **settings) as world:
        for root in (BAD, GOOD):
            await (await world.get_agent(Branch, root.name)).grow("a", "b", "c")
        await write(world, KEPT[:1])
        actors = world.node.trees[BAD].actors
        stems = {"root": "root", "child": next(actor.stem for actor in actors.values() if actor.address.name == "c")}
        await end(world, how)
        shutil.copytree(tree_folder(world.data, BAD), home / "older")
        await world.start()
        await write(world, KEPT[1:])
        await end(world, how)
        left = Left(home, stems).copied(home.with_name(f"{home.name}-left"))
        await world.start()
    return left


LIVES: dict[tuple[str, str], Left] = {}
"""What apps left; each is made once."""


@pytest.fixture
def left(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Leave:
    """Makes a folder that an app left which was stopped, or killed."""

    async def leave(how: str, level: str = "process") -> Left:
        if (how, level) not in LIVES:
            LIVES[how, level] = await live(tmp_path_factory.mktemp(how) / level, how, level)
        return LIVES[how, level].copied(tmp_path)

    return leave


@asynccontextmanager
async def served(left: Left, level: str = "process") -> AsyncIterator[Callable[[Address, str], Awaitable[list[str]]]]:
    """Run an app on a folder; yield what returns the notes of an agent."""
    async with App(agents=[Branch], settings=Settings(data=left.data, durability=level)) as app:

        async def notes(root: Address, agent: str) -> list[str]:
            return await (await app.get_agent(Branch, root.name, sub=below(*AGENTS[agent]))).notes()

        yield notes


async def check_refused(left: Left, agent: str, level: str = "process") -> None:
    """Check that an agent is refused with the command that restores its tree, and that another tree is whole."""
    message = (
        rf"{left.file(agent).name} of Branch:bad .*sapwood restore FOLDER Branch:bad --data .*{Path(left.data).name}"
    )
    async with served(left, level) as notes:
        with pytest.raises(StoredDataError, match=message):
            await notes(BAD, agent)
        for other in AGENTS:
            assert await notes(GOOD, other) == KEPT


async def check_whole(left: Left) -> None:
    async with served(left) as notes:
        for root in (BAD, GOOD):
            for agent in AGENTS:
                assert await notes(root, agent) == KEPT


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("kind", DAMAGE)
async def test_a_damaged_file_is_refused(left: Leave, kind: str, agent: str) -> None:
    there = await left("stopped")
    DAMAGE[kind](there.file(agent))

    await check_refused(there, agent)


@pytest.mark.parametrize("agent", ["child", *slow(["root"])])
@pytest.mark.parametrize("kind", WAL_DAMAGE)
async def test_a_damaged_log_is_refused(left: Leave, kind: str, agent: str) -> None:
    there = await left("killed")
    WAL_DAMAGE[kind](there.file(agent))

    await check_refused(there, agent)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("kind", ["header", "deleted"])
async def test_a_damaged_file_below_an_intact_log_is_refused(left: Leave, kind: str, agent: str) -> None:
    there = await left("killed")
    DAMAGE[kind](there.file(agent))

    await check_refused(there, agent)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("kind", ["truncated to a page", "truncated to nothing", "zeroed"])
async def test_a_file_that_held_nothing_but_its_log_is_made_again(left: Leave, kind: str, agent: str) -> None:
    there = await left("killed")
    DAMAGE[kind](there.file(agent))

    await check_whole(there)


@pytest.mark.parametrize("agent", AGENTS)
async def test_both_files_from_an_older_copy_are_refused(left: Leave, agent: str) -> None:
    there = await left("killed")
    DAMAGE["an older copy"](there.file(agent))
    WAL_DAMAGE["an older copy"](there.file(agent))

    await check_refused(there, agent)


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("kind", ["middle of marks", "zeroed marks", "deleted marks", "deleted label", "emptied label"])
async def test_what_only_helps_to_notice_damage_harms_nothing_when_it_is_damaged(
    left: Leave, how: str, kind: str
) -> None:
    there = await left(how)
    marks, label = there.folder / MARKS, there.folder / "address"
    {
        "middle of marks": lambda: overwrite(marks, 32, b"\xff" * 400),
        "zeroed marks": lambda: overwrite(marks, 0, bytes(size(marks))),
        "deleted marks": marks.unlink,
        "deleted label": label.unlink,
        "emptied label": lambda: truncate(label, 0),
    }[kind]()

    await check_whole(there)


@pytest.mark.parametrize("agent", ["child", *slow(["root"])])
@pytest.mark.parametrize("kind", WAL_DAMAGE)
async def test_a_look_without_a_server_notices_a_damaged_log(left: Leave, kind: str, agent: str) -> None:
    there = await left("killed")
    WAL_DAMAGE[kind](there.file(agent))

    with pytest.raises(StoredDataError, match="damaged"), reading(there.file(agent)):
        pass


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_doctor_names_a_missing_file_of_a_child_and_nothing_in_a_whole_folder(left: Leave, how: str) -> None:
    there = await left(how)
    roots = [known(Branch)]
    assert [found for found in Survey(there.data, roots).agents() if isinstance(found, Misfit)] == []

    there.file("child").unlink()

    (misfit,) = [found for found in Survey(there.data, roots).agents() if isinstance(found, Misfit)]
    assert misfit.agent == "Branch:bad/Branch:a/Branch:b/Branch:c"
    assert "is missing" in misfit.why


async def test_a_stop_leaves_all_in_the_files_so_that_other_programs_can_read_them(left: Leave) -> None:
    there = await left("stopped")

    assert {size(wal(there.file(agent))) for agent in AGENTS} == {0}
    for agent in AGENTS:
        wal(there.file(agent)).unlink()
    await check_whole(there)


async def test_a_child_that_is_ahead_of_its_parent_is_refused(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data")
    async with App(agents=[Branch], settings=settings) as app:
        await (await app.get_agent(Branch, "bad")).note("root")
    folder = tree_folder(tmp_path / "data", BAD)
    shutil.copytree(folder, tmp_path / "older")
    async with App(agents=[Branch], settings=settings) as app:
        await (await app.get_agent(Branch, "bad")).note_below("a", "child")
    shutil.copy(tmp_path / "older" / "root.db", folder)
    (folder / MARKS).unlink()  # without them the parent alone does not tell

    async with App(agents=[Branch], settings=settings) as app:
        with pytest.raises(StoredDataError, match=r"does not name it.*sapwood restore FOLDER Branch:bad"):
            await (await app.get_agent(Branch, "bad")).note_below("b", "other child")


async def test_a_file_removed_while_it_is_open_is_refused_and_other_trees_are_marked_still() -> None:
    async with running(App(agents=[Branch]), timings=Timings(mark_interval=0.01)) as world:
        bad, good = await world.get_agent(Branch, "bad"), await world.get_agent(Branch, "good")
        await good.note("before")
        await bad.note("before")
        folders = [tree_folder(world.data, one) for one in (BAD, GOOD)]
        await until(lambda: all((folder / MARKS).exists() for folder in folders))
        (folders[0] / "root.db").unlink()
        await bad.note("into a file that has no name")

        async def is_refused() -> bool:
            try:
                await (await world.get_agent(Branch, "bad")).notes()
            except StoredDataError as error:
                return "root.db of Branch:bad is damaged: it was removed while it was open" in str(error)
            return False

        while not await is_refused():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
        marked = (folders[1] / MARKS).read_bytes()
        await good.note("after")
        await until(lambda: (folders[1] / MARKS).read_bytes() != marked)


async def test_a_root_that_is_missing_while_children_have_files_is_refused_without_marks(
    left: Leave,
) -> None:
    there = await left("stopped")
    there.file("root").unlink()
    (there.folder / MARKS).unlink()

    await check_refused(there, "root")


@pytest.mark.parametrize("kind", ["truncated to half", "middle", "deleted"])
async def test_a_log_that_a_loss_of_power_cut_opens_at_level_process_with_one_line(
    left: Leave, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = await left("killed")
    WAL_DAMAGE[kind](there.file("child"))
    monkeypatch.setattr(files, "boot_of_machine", lambda: 99)

    with caplog.at_level(logging.WARNING):
        async with served(there) as notes:
            found = await notes(BAD, "child") if kind != "deleted" else []
            assert await notes(GOOD, "child") == KEPT

    assert found == KEPT[: len(found)]
    lines = [record for record in caplog.records if "restart of the machine" in record.getMessage()]
    assert len(lines) == (1 if kind != "deleted" else 0)


@pytest.mark.parametrize("kind", ["truncated to half", "middle", "deleted"])
async def test_at_level_disk_a_loss_of_power_explains_no_loss(
    left: Leave, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = await left("killed", "disk")
    WAL_DAMAGE[kind](there.file("child"))
    log = there.file("child").with_name(f"{there.file('child').name}-wal")
    found = log.read_bytes() if log.exists() else b""
    monkeypatch.setattr(files, "boot_of_machine", lambda: 99)

    await check_refused(there, "child", "disk")

    assert (log.read_bytes() if log.exists() else b"") == found  # what is refused is left as it was


async def test_a_child_that_never_wrote_has_no_file_and_is_no_damage(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data")
    for _ in range(2):
        async with App(agents=[Branch], settings=settings) as app:
            await (await app.get_agent(Branch, "bad")).grow("quiet")
            quiet = await app.get_agent(Branch, "bad", sub=below("quiet"))
            assert await quiet.has("nothing") is False


async def test_a_mark_that_outlives_its_deleted_child_is_no_damage(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data")
    async with App(agents=[Branch], settings=settings) as app:
        await (await app.get_agent(Branch, "bad")).note_below("a", "first")
    marks = tree_folder(tmp_path / "data", BAD) / MARKS
    older = marks.read_bytes()
    async with App(agents=[Branch], settings=settings) as app:
        await (await app.get_agent(Branch, "bad")).cut("a")
    marks.write_bytes(older)  # as after a loss of power, before the disk had stored that the mark was removed

    assert check_folder(tmp_path / "data").is_whole


async def test_an_agent_that_is_deleted_and_made_again_is_new(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data")
    for _ in range(2):
        async with App(agents=[Branch], settings=settings) as app:
            root = await app.get_agent(Branch, "bad")
            assert await root.note_below("a", "first") == 1
            await root.cut("a")
            await root.end()


async def test_damage_that_a_long_query_finds_is_named(left: Leave) -> None:
    there = await left("stopped")
    DAMAGE["one bit"](there.file("root"))
    async with App(agents=[Asking], settings=Settings(data=there.data)) as app:
        with pytest.raises(StoredDataError, match="sapwood restore FOLDER Branch:bad"):
            await (await app.get_agent(Asking, "bad")).ask()


async def test_in_a_cluster_a_damaged_copy_is_read_again_from_the_log() -> None:
    timings = Timings(checkpoint_frames=1)
    async with running_replicated(App(agents=[Branch]), slow_slices="allow", timings=timings) as world:
        root = await world.get_agent(Branch, "bad")
        for text in KEPT:
            await root.note(text)
        tree = world.node.trees[BAD]
        await world.until(lambda: tree.close_database(tree.root))
        DAMAGE["one bit"](tree.root.path)

        with pytest.raises(Unavailable, match="is read again from the log"):
            await root.notes()

        assert await (await world.get_agent(Branch, "bad")).notes() == KEPT
        assert not (tree.folder / MARKS).exists()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("kind", ["header", "one bit", "truncated to nothing", "deleted", "an older copy"])
async def test_a_restore_mends_a_damaged_tree_while_the_app_runs(left: Leave, kind: str, agent: str) -> None:
    there = await left("stopped")
    shutil.copytree(there.data / "trees", there.home / "backup" / "trees")
    DAMAGE[kind](there.file(agent))
    async with App(agents=[Branch], settings=Settings(data=there.data)) as app:
        with pytest.raises(StoredDataError):
            await (await app.get_agent(Branch, "bad", sub=below(*AGENTS[agent]))).notes()

        await app.restore(there.home / "backup", Branch, "bad")

        for one in AGENTS.values():
            assert await (await app.get_agent(Branch, "bad", sub=below(*one))).notes() == KEPT
