"""The cgroup around code behind Bubblewrap: found where it was delegated, entered, and not needed elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapwood.sandbox import Bubblewrap, CodeResult, Task, run_code
from sapwood.sandbox.cgroup import Cgroup, find_parent, make_cgroup


def tree(folder: Path, **controllers: str) -> Path:
    """Make folders as cgroups are; return the file that says where this process is."""
    for name, enabled in {"": "", **controllers}.items():
        one = folder / name.replace("__", "/")
        one.mkdir(parents=True, exist_ok=True)
        (one / "cgroup.subtree_control").write_text(enabled)
        (one / "cgroup.procs").write_text("")
    return folder / "own"


@pytest.mark.parametrize(
    ("own", "controllers", "expected"),
    [
        ("0::/unit/server", {"unit": "cpu memory pids", "unit__server": ""}, "unit"),
        ("0::/unit/server", {"unit": "cpu pids", "unit__server": ""}, None),
        ("0::/", {}, None),
        ("4:memory:/x\n0::/unit/server", {"unit": "memory", "unit__server": ""}, "unit"),
        ("4:memory:/x", {"x": "memory"}, None),
        ("0::/gone/server", {}, None),
    ],
)
def test_a_parent_is_one_that_was_delegated(
    tmp_path: Path, own: str, controllers: dict[str, str], expected: str | None
) -> None:
    file = tree(tmp_path, **controllers)
    file.write_text(own + "\n")
    assert find_parent(file, tmp_path) == (None if expected is None else tmp_path / expected)


def test_limits_are_written_and_a_killed_process_is_noticed(tmp_path: Path) -> None:
    cgroup = make_cgroup(tmp_path, 1000, 64)
    assert cgroup is not None
    (folder,) = tmp_path.iterdir()
    assert (folder / "memory.max").read_text() == "1000"
    assert (folder / "pids.max").read_text() == "64"
    (folder / "memory.events").write_text("oom 1\noom_kill 0\n")
    assert not cgroup.is_over_memory()
    (folder / "memory.events").write_text("oom 1\noom_kill 1\n")
    assert cgroup.is_over_memory()


def test_without_a_parent_there_is_no_cgroup(tmp_path: Path) -> None:
    assert make_cgroup(None, 1000, 64) is None
    assert make_cgroup(tmp_path / "gone", 1000, 64) is None


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
async def test_code_runs_as_a_process_of_its_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.sandbox.bubblewrap.find_parent", lambda: tmp_path)
    monkeypatch.setattr(Cgroup, "remove", lambda self: None)  # a folder that is no cgroup cannot be removed
    assert await run_code("6 * 7", executor=Bubblewrap()) == CodeResult(42)
    assert written(tmp_path, "cgroup.procs") > 1
    assert written(tmp_path, "memory.max") > Task("").limits.memory_bytes


def written(parent: Path, name: str) -> int:
    """Return what was written to a file of the only cgroup below a folder."""
    (folder,) = parent.iterdir()
    return int((folder / name).read_text())
