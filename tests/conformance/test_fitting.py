"""Before new code goes live: what is stored and does not fit it is found, while it sleeps and without a change."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests import loops
from tests.conformance.runtimes import running

from sapwood import After, Agent, App, Cron, Every, Retry, agent
from sapwood.address import Address
from sapwood.capabilities.stored_data_check import unfit
from sapwood.cli import deployment_check
from sapwood.errors import FolderInUse, UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.kernel.node.upgrade_check import Misfit
from sapwood.storage.engine import CHECKED
from sapwood.storage.files import FolderLock, held_still
from sapwood.storage.marks import MARKS

NOTES = "CREATE TABLE notes (text TEXT NOT NULL) STRICT; INSERT INTO notes VALUES ('a'), ('a')"
FAR = timedelta(days=30)


@dataclass(frozen=True)
class Stats:
    letters: int = 0


THREE: Any = Stats(3)


@agent(type="post")
class Post(Agent):
    """What wrote all that is stored."""

    initial_state: Any = Stats()
    migrations = (NOTES,)

    async def fill(self) -> None:
        self.set_state(THREE)
        self.sql("INSERT INTO notes VALUES ('b')")
        self.schedule(After(FAR), self.deliver, "ann", pieces=2)
        self.schedule(Every(FAR), self.sort)
        self.schedule(Cron("0 3 * * *", "Europe/Berlin"), self.sort)
        self.enqueue(self.stamp)
        self.start_fiber("tour", self.tour, "north")
        await self.flush()

    async def deliver(self, to: str, pieces: int) -> None:
        pass

    async def sort(self) -> None:
        pass

    async def stamp(self) -> None:
        await self.sleep_until(datetime(2100, 1, 1, tzinfo=UTC))

    async def tour(self, where: str) -> None:
        await self.step("map", self._draw)
        await self.checkpoint({"at": where})
        await self.sleep_until(datetime(2100, 1, 1, tzinfo=UTC))

    def _fail(self, letter: str) -> None:
        raise ValueError(letter)

    def _draw(self) -> str:
        return "a map"

    async def lose(self) -> None:
        self.schedule(After(timedelta(0), retry=Retry(max_attempts=1)), self._fail, "x")

    async def office(self, name: str) -> None:
        await (await self.sub_agent(Office, name)).open()


@agent(type="office")
class Office(Agent):
    async def open(self) -> None:
        self.schedule(After(FAR), self.close)

    async def close(self) -> None:
        pass


class Same(Post):
    """A new version that changes nothing. Each of those below changes one thing."""


class NoMethod(Same):
    deliver = None  # pyright: ignore[reportAssignmentType]


class OtherType(Same):
    async def deliver(self, to: str, pieces: dict[str, int]) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


class OneMore(Same):
    async def deliver(self, to: str, pieces: int, colour: str) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


class OneMoreWithDefault(Same):
    async def deliver(self, to: str, pieces: int, colour: str = "red") -> None: ...


class OneLess(Same):
    async def deliver(self, to: str) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


class Stream(Same):
    async def stamp(self) -> AsyncIterator[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        yield 1


class NoTour(Same):
    tour = None  # pyright: ignore[reportAssignmentType]


class OtherTour(Same):
    async def tour(self, where: int) -> None: ...  # pyright: ignore[reportIncompatibleMethodOverride]


class Edited(Same):
    migrations = (NOTES + " -- edited",)


class Removed(Same):
    migrations = ()


class MigrationThatFails(Same):
    migrations = (NOTES, "CREATE UNIQUE INDEX once ON notes (text)")


class MigrationThatWorks(Same):
    migrations = (NOTES, "ALTER TABLE notes ADD COLUMN author TEXT")


@dataclass(frozen=True)
class Renamed:
    parcels: int


class StateChanged(Same):
    initial_state = Renamed(0)


class NoUpgrade(StateChanged):
    state_version = 2


class Upgrade(NoUpgrade):
    def upgrade_state(self, old: Any, version: int) -> Any:
        return Renamed(old["letters"])


class BadUpgrade(NoUpgrade):
    def upgrade_state(self, old: Any, version: int) -> Any:
        return {"parcels": "many"}


class RaisingUpgrade(NoUpgrade):
    def upgrade_state(self, old: Any, version: int) -> Any:
        return Renamed(old["parcels"])


class UpgradeWithSql(NoUpgrade):
    def upgrade_state(self, old: Any, version: int) -> Any:
        return Renamed(len(self.sql("SELECT 1 FROM notes")))


def in_place_of(old: type[Agent[Any]], new: type[Agent[Any]]) -> type[Agent[Any]]:
    """Let a class be what another one was to everything that is stored."""
    return agent(type=known(old).type)(new)


def misfits(folder: Path, *roots: type[Agent[Any]], counts: Counter[str] | None = None) -> list[Misfit]:
    return list(unfit(folder, [known(cls) for cls in roots], Counter() if counts is None else counts))


async def fill(folder: Path) -> None:
    async with running(App(agents=[Post]), slow_slices="allow") as world:
        main = await world.get_agent(Post, "main")
        await main.fill()
        await main.lose()
        await world.clock.advance(timedelta(seconds=1))
        await main.office("north")
        await world.app.backup(folder)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "copy"
    loops.play(fill(folder))
    return folder


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    """Return a data folder in which a post office has one of each."""
    return shutil.copytree(filled, tmp_path / "copy")


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_what_fits_is_counted_and_nothing_is_changed(copy: Path) -> None:
    before, counts = contents(copy), Counter[str]()

    assert misfits(copy, in_place_of(Post, Same), Office, counts=counts) == []

    assert dict(counts) == {
        "trees": 1,
        "agents": 2,
        "states": 1,
        "scheduled calls": 4,
        "queued calls": 1,
        "dead letters": 1,
        "fibers": 1,
        "steps": 3,
    }
    assert contents(copy) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "what", "why", "remedy"),
    [
        (NoMethod, "scheduled call", "NoMethod has no method 'deliver'", "Keep a method of this name"),
        (OtherType, "scheduled call", "argument 'pieces' does not fit: Expected `object`, got `int`", "dead letter"),
        (
            OneMore,
            "scheduled call",
            "has an argument 'colour' that the stored call lacks",
            "accepts the stored arguments",
        ),
        (OneLess, "scheduled call", "no longer has the argument 'pieces'", "Keep a method"),
        (Stream, "queued call", "is now a stream", "dead letter"),
        (NoTour, "fiber", "has no method 'tour'", "fails when it is resumed"),
        (OtherTour, "fiber", "argument 'where' does not fit", "fails when it is resumed"),
        (
            Edited,
            "migrations",
            "Migration 1 (migration 1) was edited after it ran on this database.",
            "Restore its old text",
        ),
        (Removed, "migrations", "has run 1 migrations, but the class has only 0", "Restore the removed migrations"),
        (MigrationThatFails, "migrations", "UNIQUE constraint failed", "Fix the migration"),
        (StateChanged, "state", "It cannot be read: Object missing required field `parcels`", "increase it to 2"),
        (NoUpgrade, "state", "has state_version 1, but the class has 2", "Write upgrade_state"),
        (BadUpgrade, "state", "does not match version 2", "Correct upgrade_state()"),
        (RaisingUpgrade, "state", "upgrade_state() raised KeyError: 'parcels'", "Correct upgrade_state()"),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_do(
    copy: Path, new: type[Agent[Any]], what: str, why: str, remedy: str
) -> None:
    before = contents(copy)

    (found,) = misfits(copy, in_place_of(Post, new), Office)

    assert (found.agent, found.what) == ("post:main", what)
    assert why in found.why
    assert remedy in found.remedy
    assert contents(copy) == before


@pytest.mark.parametrize("new", [OneMoreWithDefault, MigrationThatWorks, Upgrade, UpgradeWithSql])
def test_what_the_new_code_can_deal_with_is_no_misfit(copy: Path, new: type[Agent[Any]]) -> None:
    before = contents(copy)

    assert misfits(copy, in_place_of(Post, new), Office) == []

    assert contents(copy) == before


def test_an_upgrade_that_needs_its_agent_is_counted_and_not_tried(copy: Path) -> None:
    counts = Counter[str]()

    misfits(copy, in_place_of(Post, UpgradeWithSql), Office, counts=counts)

    assert counts["states whose upgrade could not be tried"] == 1


def test_a_newer_state_does_not_fit_an_older_program(copy: Path) -> None:
    change(copy, "UPDATE sapwood_state SET version = 7")

    (found,) = misfits(copy, in_place_of(Post, Same), Office)

    assert (found.what, "newer version of the program" in found.why) == ("state", True)


def test_a_dead_letter_that_could_not_be_replayed_is_named_unless_that_is_why_it_is_one(copy: Path) -> None:
    change(copy, "UPDATE sapwood_dead_letters SET method = 'gone'")
    (found,) = misfits(copy, in_place_of(Post, Same), Office)
    change(copy, "UPDATE sapwood_dead_letters SET code = 'signature_changed'")

    assert (found.what, "no method 'gone'" in found.why) == ("dead letter", True)
    assert misfits(copy, in_place_of(Post, Same), Office) == []


def test_a_time_zone_that_this_machine_does_not_know_is_named(copy: Path) -> None:
    change(
        copy,
        """UPDATE sapwood_calls SET schedule = '{"cron":"0 3 * * *","tz":"Mars/Olympus"}'
        WHERE schedule LIKE '%cron%'""",
    )

    (found,) = misfits(copy, in_place_of(Post, Same), Office)

    assert (found.what, "Unknown time zone 'Mars/Olympus'" in found.why) == ("scheduled call", True)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("UPDATE sapwood_calls SET arguments = x'c1' WHERE queue IS NOT NULL", "queued call"),
        ("UPDATE sapwood_calls SET schedule = '{' WHERE schedule LIKE '%every%'", "scheduled call"),
        ("UPDATE sapwood_calls SET retry = '[]' WHERE queue IS NOT NULL", "queued call"),
        ("UPDATE sapwood_fibers SET checkpoint = x'c1'", "fiber"),
        ("UPDATE sapwood_steps SET result = x'c1' WHERE name = 'map'", "step"),
        ("UPDATE sapwood_state SET value = '{'", "state"),
        ("UPDATE sapwood_migrations SET number = 99 WHERE owner = 'fibers'", "database"),
    ],
)
def test_what_is_damaged_is_named(copy: Path, sql: str, what: str) -> None:
    change(copy, sql)

    assert [found.what for found in misfits(copy, in_place_of(Post, Same), Office)] == [what]


def test_a_file_that_is_no_database_is_named_and_the_others_are_looked_at(copy: Path) -> None:
    (child,) = (path for path in copy.rglob("*.db") if path.stem != "root")
    child.with_name(child.name + "-wal").unlink(missing_ok=True)
    child.write_bytes(b"x" * 10_000)
    counts = Counter[str]()

    (found,) = misfits(copy, in_place_of(Post, Same), Office, counts=counts)

    assert (found.agent, found.what) == ("post:main/office:north", "database")
    assert counts["scheduled calls"] == 3


def test_a_class_that_is_gone_is_named_and_those_below_it_are_looked_at(copy: Path) -> None:
    @agent(type="office")
    class Closed(Agent):
        pass

    found = misfits(copy, Closed)

    assert [(one.agent, one.what) for one in found] == [
        ("post:main", "class"),
        ("post:main/office:north", "scheduled call"),
    ]


def test_an_alias_is_as_good_as_the_type_id(copy: Path) -> None:
    @agent(type="letters", aliases=["post"])
    class Letters(Same):
        pass

    assert misfits(copy, Letters, Office) == []


def test_a_tree_whose_class_is_no_root_any_more_is_named(copy: Path) -> None:
    @agent(type="lonely")
    class Lonely(Agent):
        pass

    (label,) = copy.rglob("address")
    label.write_text("lonely:main")
    label.parent.rename(tree_folder(copy, Address.root_of("lonely", "main")))

    found = [one for one in misfits(copy, Office) if one.what == "class"]

    assert [one.why for one in found] == ["Lonely is not a root of the app, so its trees cannot be reached."]


@pytest.mark.needs("ordinary user")
def test_a_folder_that_may_only_be_read_is_read(copy: Path) -> None:
    for path in [*copy.rglob("*"), copy]:
        path.chmod(0o555 if path.is_dir() else 0o444)

    try:
        assert misfits(copy, in_place_of(Post, Same), Office) == []
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755)


def test_the_folder_of_a_process_that_runs_is_refused_with_what_to_do(copy: Path) -> None:
    lock = FolderLock(copy)

    with pytest.raises(UsageError, match=rf"in use by process {os.getpid()}.*sapwood backup COPY --data"):
        deployment_check.examine(copy, App(agents=[Post]))
    lock.release()


def test_nobody_may_run_on_a_folder_while_it_is_looked_at(copy: Path) -> None:
    FolderLock(copy).release()

    with held_still(copy), pytest.raises(FolderInUse):
        FolderLock(copy)
    FolderLock(copy).release()


def test_a_folder_without_trees_is_no_data_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a data folder"):
        deployment_check.examine(tmp_path, App(agents=[Post]))


def change(folder: Path, sql: str) -> None:
    (path,) = folder.rglob("root.db")
    connection = apsw.Connection(str(path), vfs=CHECKED)
    connection.execute(sql)
    connection.close()
    (path.parent / MARKS).unlink(missing_ok=True)  # else the log that was closed is noticed as missing
