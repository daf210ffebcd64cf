"""The data folder belongs to one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sapwood.errors import FolderInUse
from sapwood.storage.files import Files, FolderLock

HOLDER = """
import sys
from pathlib import Path
from sapwood.storage.files import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "data")

    with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}"):
        FolderLock(tmp_path / "data")

    lock.release()
    FolderLock(tmp_path / "data").release()


@pytest.mark.slow
def test_the_lock_ends_with_its_process_however_it_dies(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUse, match=f"process {other.pid}"):
            FolderLock(tmp_path)

        other.kill()
        other.wait()

    FolderLock(tmp_path).release()


def test_a_shorter_pid_replaces_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("99999999999999")

    lock = FolderLock(tmp_path)

    assert (tmp_path / "lock").read_text() == str(os.getpid())
    lock.release()


def test_a_file_is_never_created_over_another(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "file"
    files.close(files.create(path, b"first"))

    with pytest.raises(FileExistsError):
        files.create(path, b"second")

    assert path.read_bytes() == b"first"


def test_overwriting_keeps_what_lies_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")

    Files().overwrite(path, b"abc")

    assert path.read_bytes() == b"abc3456789"


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    Files().remove(tmp_path / "nothing")


def test_a_file_that_finds_no_room_leaves_nothing_in_the_way_of_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, path = Files(), tmp_path / "file"
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - it lists itself, too

    def no_room(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", no_room)
        with pytest.raises(OSError, match="No space left"):
            files.create(path, b"content")

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    files.close(files.create(path, b"content"))
    assert path.read_bytes() == b"content"


def test_a_file_is_written_whole_even_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))

    files, path = Files(), tmp_path / "file"
    files.close(files.create(path, b"0123456789"))

    assert path.read_bytes() == b"0123456789"
