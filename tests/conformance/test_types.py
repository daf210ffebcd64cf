"""Types: a checker sees through a stub what the agent's methods take and return."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parent.parent / "typing" / "check.py"


@pytest.mark.promise("A-11", "A-14", "A-46", "A-47", "A-226", "B-9", "B-29")
@pytest.mark.slow
def test_both_type_checkers_refuse_wrong_calls_through_a_stub_at_the_very_line() -> None:
    checked = subprocess.run([sys.executable, CHECK], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "Both checkers accept the programs, and refuse" in checked.stdout
