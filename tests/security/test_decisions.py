"""Decisions about tool calls are kept for good, and a change to them is noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from sapwood.storage.engine import CHECKED

pytestmark = pytest.mark.slow  # they start programs

EXAMPLE = Path(__file__).parents[2] / "examples/support_desk.py"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return the data folder of a desk at which a refund was approved."""
    subprocess.run([sys.executable, str(EXAMPLE), str(tmp_path / "data")], check=True, capture_output=True)
    return tmp_path / "data"


def decisions(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sapwood", "decisions", "Desk:acme", "--data", str(data), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_decisions_of_a_tree_are_printed_and_verified(data: Path) -> None:
    printed = decisions(data)

    assert printed.returncode == 0, printed.stderr
    assert "approved book_refund" in printed.stdout
    assert "Verified 2 entries of 1 agent: none was changed." in printed.stdout
    (agent,) = json.loads(decisions(data, "--json").stdout)["agents"]
    assert [one["kind"] for one in agent["decisions"]] == ["approved", "outcome"]


@pytest.mark.nightly
def test_a_decision_that_was_changed_is_noticed(data: Path) -> None:
    (changed,) = [file for file in data.rglob("*.db") if _change(file)]

    printed = decisions(data)

    assert changed
    assert printed.returncode == 1
    assert "Decision 1 of Desk:acme/Ticket:ann/RefundAgent:" in printed.stderr


def _change(file: Path) -> bool:
    """Change who approved, as an intruder with access to the files would."""
    with closing(apsw.Connection(str(file), vfs=CHECKED)) as database:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'sapwood_decisions'").fetchone():
            return False
        database.execute("DROP TRIGGER sapwood_decisions_are_not_updated")
        database.execute("UPDATE sapwood_decisions SET user = 'otto' WHERE number = 1")
        return database.changes() == 1
