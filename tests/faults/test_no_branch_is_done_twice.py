"""Promises 4 and 6, for teams: a branch is done once, losers stop, and every completion is told."""

from __future__ import annotations

import itertools

import pytest
from tests.conformance.teams import POLICIES, Plan, killed
from tests.faults.lives import points_of
from tests.faults.running import LIVES, run_lives

OF_EACH = LIVES * 2 // 5
"""Lives of each level: these are long ones."""


@pytest.mark.parametrize("level", [pytest.param("process", marks=pytest.mark.nightly), "disk"])
def test_whatever_ends_a_process_its_teams_do_everything_once_and_come_to_the_same(level: str) -> None:
    result = run_lives(level, OF_EACH, "teams", of="team_lives")

    assert result["violations"] == [], f"seed {result['seed']}, kept in {result['kept']}"
    assert result["lives"] == OF_EACH
    assert result["replies"] > OF_EACH
    if OF_EACH >= 150:
        assert {point for point in points_of(level) if not point.endswith(("rename", "remove"))} <= {*result["points"]}


@pytest.mark.nightly
@pytest.mark.parametrize("level", ["process", "disk"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: one.__name__)
async def test_killed_at_one_commit_after_the_other_a_fan_out_comes_to_the_same(policy: Plan, level: str) -> None:
    await killed(policy, level, itertools.count(1, 2 if level == "process" else 5))
