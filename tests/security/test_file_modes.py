"""Other users of the machine: they can read neither the data folder nor copies of it, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import said_by, serving

from sapwood import Agent, App, Settings
from sapwood.cli.doctor import examine
from sapwood.kernel.actors.quarantine import Strikes
from sapwood.kernel.actors.watchdog import write_crash
from sapwood.storage.files import FolderLock

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")

APP = """
from sapwood import Agent, App, expose

class Vault(Agent[int]):
    initial_state = 0

    @expose
    async def add(self) -> int:
        await self.sub_agent(Vault, "below")
        self.set_state(self.state + 1)
        return self.state

app = App(agents=[Vault])
"""


class ModeVault(Agent[int]):
    """Writes to its database and has a child that does."""

    initial_state = 0

    async def write(self) -> None:
        self.set_state(self.state + 1)
        if self.name == "v":
            await (await self.sub_agent(ModeVault, "below")).write()


@pytest.fixture(params=[0o022, 0o000])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def wide(folder: Path) -> dict[str, str]:
    """Return the paths that other users have a permission for, the folder's own included."""
    paths = [folder, *folder.rglob("*")]
    assert len(paths) > 1
    modes = {str(path): stat.S_IMODE(path.lstat().st_mode) for path in paths if not path.is_symlink()}
    return {path: f"{mode:04o}" for path, mode in modes.items() if mode & 0o077}


def app(folder: Path, **settings: Any) -> App:
    return App(agents=[ModeVault], settings=Settings(data=folder, **settings))


@pytest.mark.parametrize("durability", ["process", "disk"])
async def test_databases_and_logs_are_private(tmp_path: Path, umask: int, durability: str) -> None:
    data = tmp_path / "deep/data"
    async with app(data, durability=durability) as running:
        await (await running.get_agent(ModeVault, "v")).write()
        assert list(data.rglob("*-wal"))
        assert wide(data) == {}
    assert wide(tmp_path / "deep") == {}


@pytest.mark.nightly
@pytest.mark.slow
async def test_backups_and_restored_trees_are_private(tmp_path: Path, umask: int) -> None:
    data, backup = tmp_path / "data", tmp_path / "deeper/backup"
    async with app(data) as running:
        await (await running.get_agent(ModeVault, "v")).write()
        await running.backup(backup)
        assert wide(backup) == {}
        await running.restore(backup)
        await (await running.get_agent(ModeVault, "v")).write()
        assert wide(data) == {}
    assert wide(data) == {}
    assert wide(tmp_path / "deeper") == {}


@pytest.mark.slow
async def test_a_backup_into_a_folder_that_others_can_enter_is_private(tmp_path: Path, umask: int) -> None:
    (tmp_path / "backup").mkdir(mode=0o755)
    (tmp_path / "backup").chmod(0o755)
    async with app(tmp_path / "data") as running:
        await (await running.get_agent(ModeVault, "v")).write()
        await running.backup(tmp_path / "backup")

    assert set(wide(tmp_path / "backup")) == {str(tmp_path / "backup")}


def test_crash_files_and_strikes_are_private(tmp_path: Path, umask: int) -> None:
    lock = FolderLock(tmp_path / "data")
    write_crash(tmp_path / "data", 7, "where it was", 0.0)
    Strikes(tmp_path / "data", 3)._note_release("Vault:v", 1.0)  # pyright: ignore[reportPrivateUsage]
    lock.release()

    assert len(list((tmp_path / "data").rglob("*"))) == 4
    assert wide(tmp_path / "data") == {}


async def test_a_folder_with_more_permissions_is_narrowed_at_the_start(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "data"
    async with app(data) as running:
        await (await running.get_agent(ModeVault, "v")).write()
    (data / "notes").mkdir()
    (data / "notes/of-the-user.txt").write_text("not ours")
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert len(wide(data)) > 5

    async with app(data) as running:
        await (await running.get_agent(ModeVault, "v")).write()

    assert {Path(path).name for path in wide(data)} <= {"notes", "of-the-user.txt", "lock", "release.json", "stopped"}
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_shared_folder_like_tmp_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)

    FolderLock(tmp_path / "shared").release()

    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o1777


def test_a_folder_of_another_user_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o775)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    FolderLock(tmp_path / "data").release()

    (found,) = (found for found in examine(tmp_path / "data") if found.what == "access to it")
    assert found.remedy is not None


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").chmod(0o755)
    (tmp_path / "data/trees").mkdir(parents=True)
    (tmp_path / "data/trees").chmod(0o755)
    (tmp_path / "data/trees/link").symlink_to(tmp_path / "elsewhere")

    FolderLock(tmp_path / "data").release()

    assert stat.S_IMODE((tmp_path / "data/trees").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o755


async def test_an_archive_on_this_machine_can_be_entered_by_its_user_only(tmp_path: Path, umask: int) -> None:
    pytest.importorskip("obstore")
    from sapwood.runtimes.cluster.copies.s3_archive import ObjectArchive

    archive = ObjectArchive((tmp_path / "deep/archive").as_uri())
    await archive.put("trees/one", b"secret")

    assert (tmp_path / "deep/archive/trees/one").read_bytes() == b"secret"
    assert stat.S_IMODE((tmp_path / "deep/archive").stat().st_mode) == 0o700


def test_the_doctor_names_a_folder_that_could_not_be_narrowed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o1777)

    (wide,) = (found for found in examine(tmp_path / "data") if found.what == "access to it")
    (tmp_path / "data").chmod(0o700)
    (narrow,) = (found for found in examine(tmp_path / "data") if found.what == "access to it")

    assert (wide.found, wide.remedy is not None and "chmod" in wide.remedy) == ("mode 1777", True)
    assert (narrow.found, narrow.remedy) == ("mode 0700, this user only", None)


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o000], indirect=True)
@pytest.mark.parametrize("workers", [(), pytest.param(("--workers", "2"), marks=pytest.mark.nightly)])
def test_what_real_servers_and_commands_write_is_private(tmp_path: Path, umask: int, workers: tuple[str, ...]) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "serve", "app:app", *workers):
        for name in ("a", "c"):
            said_by(tmp_path, "call", f"Vault:{name}", "add")
        said_by(tmp_path, "backup", "live-backup")
        assert wide(tmp_path / "sapwood-data") == {}
    said_by(tmp_path, "backup", "cold-backup")

    assert wide(tmp_path / "live-backup") == {}
    assert wide(tmp_path / "cold-backup") == {}
    assert wide(tmp_path / "sapwood-data") == {}
