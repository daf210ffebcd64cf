"""Promises 1 to 5 and 8 where several workers share a folder and are killed under load; and nobody else notices."""

from __future__ import annotations

import pytest
from tests.faults.running import LIVES, run_lives

OF_EACH = max(LIVES // 2, 10)
MUTANT_LIVES = 150


@pytest.mark.alone  # it measures how long those wait for an answer who needed nobody that was killed
def test_whichever_worker_is_killed_nothing_acknowledged_is_lost_and_nobody_else_notices() -> None:
    result = run_lives("process", OF_EACH, "workers", of="worker_lives")

    assert result["violations"] == [], f"seed {result['seed']}, kept in {result['kept']}"
    assert result["lives"] >= OF_EACH
    assert result["replies"] > 20 * OF_EACH


@pytest.mark.mutant
@pytest.mark.parametrize(
    ("mutant", "sentence"),
    [
        ("replied-first", "was acknowledged, and is gone"),
        ("asked-again", "is there 2 times"),
        ("alarms-left", "rang when somebody came"),
        ("early", "rang too early"),
        ("two-owners", "closed with"),
        ("frames-lost", "came as"),
        ("all-for-one", "somebody noticed who should not have"),
        ("steps-again", "was completed, and ran again"),
        ("drained-alone", "had begun when the server was told to end"),
    ],
)
def test_workers_broken_on_purpose_are_found_out(mutant: str, sentence: str) -> None:
    result = run_lives("process", MUTANT_LIVES, "mutants", of="worker_lives", mutant=mutant, until=sentence)

    assert any(sentence in violation for violation in result["violations"]), result["violations"][:3]
