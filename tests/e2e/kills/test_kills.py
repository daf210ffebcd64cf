"""A few kills of a server while clients of all protocols use it. `just nightly` does this with hundreds of kills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.kills.run import CALLERS, run_kills

KILLS = 10
pytestmark = pytest.mark.slow


async def test_nothing_is_done_twice_and_no_answered_question_comes_back(tmp_path: Path) -> None:
    outcome = await run_kills(tmp_path, KILLS, seed="gate")

    print(json.dumps(outcome.callers), dict(outcome.kills), f"{outcome.cpu:.1f} s of CPU time")
    assert outcome.violations == []
    assert list(outcome.callers) == list(CALLERS)
    for name, counts in outcome.callers.items():
        assert counts["kills"] >= KILLS, name
        assert counts["cuts"] > 0, name
