"""Promises 4 and 6, for runs three levels deep and at another server, while both servers are killed."""

from __future__ import annotations

import pytest
from tests.faults.running import LIVES, run_lives

PAIRS = max(LIVES // 20, 1)
"""Pairs of servers: each lives for about fifteen seconds."""


@pytest.mark.promise("B-14", "B-34", "A-198")
def test_whichever_server_is_killed_nested_runs_end_with_their_reason_and_never_for_silence() -> None:
    result = run_lives("process", PAIRS, "nested", of="nested_lives")

    assert result["violations"] == [], f"seed {result['seed']}, kept in {result['kept']}"
    assert result["lives"] == PAIRS
