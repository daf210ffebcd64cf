"""The gate tells a part that became slow from a machine that is busy, and a part that failed from both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import gate
from scripts.gate import Part, Result


def result(*, wall: float, taken: float = 0.0, slowness: float = 1.0, limit: float = 10.0) -> Result:
    return Result("lives", ok=True, wall=wall, cpu=1.0, taken=taken, slowness=slowness, limit=limit)


def test_a_part_above_its_limit_is_over() -> None:
    assert not result(wall=10.0).is_over
    assert result(wall=10.1).is_over


def test_time_that_other_programs_took_does_not_count() -> None:
    assert not result(wall=19.0, taken=9.5).is_over
    assert result(wall=29.0, taken=9.5).is_over


def test_time_that_a_slow_machine_takes_longer_does_not_count() -> None:
    assert not result(wall=19.0, slowness=2.0).is_over
    assert result(wall=21.0, slowness=2.0).is_over


def test_a_fast_machine_makes_no_limit_stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    speed = gate.MachineSpeed()
    assert speed.slowness == 1.0  # no probe was taken

    for seconds, slowness in ((gate.PROBE_REFERENCE / 2, 1.0), (gate.PROBE_REFERENCE * 2, 2.0), (1e9, gate.SLOWEST)):
        monkeypatch.setattr(gate, "probe", lambda seconds=seconds: seconds)
        speed = gate.MachineSpeed()
        speed.look()
        speed.look()  # not yet: the last probe is younger than a second
        assert speed.slowness == slowness


def run(monkeypatch: pytest.MonkeyPatch, *stages: gate.Stage) -> int:
    monkeypatch.setitem(gate.TIERS, "check", list(stages))
    monkeypatch.setattr(sys, "argv", ["gate.py", "check"])
    return gate.main()


def test_a_tier_passes_if_all_of_its_parts_do(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> None:
    assert run(monkeypatch, (Part("one", "echo first", 60), Part("two", "echo hidden; echo last", 60))) == 0

    output = capfd.readouterr().out
    assert "first" in output  # the first part of a stage is shown as it runs, of the others the last line
    assert "[two] last" in output
    assert "hidden" not in output


def test_a_part_that_fails_is_shown_whole_and_fails_its_tier(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    stages = (Part("one", "true", 60), Part("two", "echo why; echo so; exit 3", 60)), (Part("three", "echo after", 60),)

    assert run(monkeypatch, *stages) == 1

    output = capfd.readouterr().out
    assert "why\nso" in output
    assert "after" in output


def test_a_commit_checks_the_types_of_the_tests_and_scripts_that_it_changes(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *words], cwd=tmp_path, env=env, check=True)

    env = {**{name: value for name, value in os.environ.items() if not name.startswith("GIT_")}, "HOME": str(tmp_path)}
    for name in ("tests/unit/same.py", "tests/staged.py", "scripts/open.py", "tests/gone.py", "tests/typing/own.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = 1")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "before")
    for name in ("tests/staged.py", "scripts/open.py", "tests/typing/own.py", "tests/new.py", "tests/new.toml"):
        (tmp_path / name).write_text("a = 2")
    (tmp_path / "tests/gone.py").unlink()
    git("add", "tests/staged.py")

    changed = subprocess.run(
        gate.CHANGED, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )

    assert sorted(changed.stdout.split()) == ["scripts/open.py", "tests/new.py", "tests/staged.py"]


@pytest.mark.parametrize("tier", ["ci", "nightly"])
def test_a_change_does_not_land_before_all_types_are_checked(tier: str) -> None:
    (types,) = [part for stage in gate.TIERS[tier] for part in stage if part.name == "types"]

    assert types.command.startswith("pyright && ")  # of all that pyproject.toml includes


def test_each_part_of_check_is_in_nightly() -> None:
    assert {part.name for stage in gate.CHECK for part in stage} <= {
        part.name for stage in gate.NIGHTLY for part in stage
    }


def test_timings_are_asked_for_in_one_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_TIMINGS", "/some where/timings.jsonl")

    # As two words, pytest takes the file for a test, and its folder for the project, as soon as it exists.
    assert " '--timings=/some where/timings.jsonl' " in gate.tests("lives", "tests/faults", 60).command


def test_nothing_runs_after_a_cheap_part_that_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    assert run(monkeypatch, (Part("lint", "false", 60, cheap=True),), (Part("tests", "echo after", 60),)) == 1

    assert "after" not in capfd.readouterr().out


def test_a_part_that_passes_above_its_limit_fails_its_tier(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    assert run(monkeypatch, (Part("one", "true", -1e9),)) == 1

    assert "over its limit" in capfd.readouterr().out


def test_a_gate_that_runs_in_the_background_does_not_make_its_tests_deaf_to_signals(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it runs in the background
    try:
        code = run(monkeypatch, (Part("one", f"{sys.executable} -c 'import signal; print(signal.getsignal(2))'", 60),))
    finally:
        signal.signal(signal.SIGINT, before)

    assert code == 0
    assert "default_int_handler" in capfd.readouterr().out
