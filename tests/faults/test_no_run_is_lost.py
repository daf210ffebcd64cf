"""Promises 4, 6 and 8, for runs: each is done once, stopped to the bottom, and everybody hears the same of it."""

from __future__ import annotations

import pytest
from tests.faults.lives import points_of
from tests.faults.running import LIVES, run_lives

OF_EACH = LIVES // 2
"""Lives of each level: these are long ones."""


@pytest.mark.promise("CF-113")
@pytest.mark.parametrize("level", [pytest.param("process", marks=pytest.mark.nightly), "disk"])
def test_whatever_ends_a_process_its_runs_end_once_and_everybody_hears_the_same_of_them(level: str) -> None:
    result = run_lives(level, OF_EACH, "runs", of="run_lives")

    assert result["violations"] == [], f"seed {result['seed']}, kept in {result['kept']}"
    assert result["lives"] == OF_EACH
    assert result["replies"] > OF_EACH
    if OF_EACH >= 150:
        assert {point for point in points_of(level) if not point.endswith(("rename", "remove"))} <= {*result["points"]}
