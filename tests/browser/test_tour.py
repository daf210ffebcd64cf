"""The tour of the studio can be recorded again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from scripts.animation import durations
from tests.browser.serving import ROOT


@pytest.mark.nightly
@pytest.mark.needs("browser")
def test_a_tour_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "tour.webp"
    command = [sys.executable, str(ROOT / "scripts/record_tour.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)

    assert done.returncode == 0, done.stderr
    assert len(durations(file.read_bytes())) >= 20
