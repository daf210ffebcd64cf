"""A few faults of each black-box program, so that every change is tried; `just blackbox` plays the full counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.blackbox.suite import PROGRAMS

SEED = 1000
"""Other than those of `just blackbox`."""


@pytest.mark.parametrize(
    ("program", "count"),
    [
        ("kill-cycles-process", 3),
        pytest.param("kill-cycles-disk", 3, marks=pytest.mark.nightly),
        pytest.param("cluster-faults", 10, marks=pytest.mark.nightly),
        ("worker-deaths", 2),
        ("chat-cuts", 2),
        ("chat-kills", 1),
    ],
)
async def test_no_promise_is_broken(program: str, count: int, tmp_path: Path) -> None:
    outcome = await PROGRAMS[program].play(tmp_path, SEED, count)

    assert outcome.violations == []
    assert outcome.faults
    assert outcome.answered >= count
