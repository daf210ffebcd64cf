"""The words of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sapwood.address import Address
from sapwood.admin.audit import kept_lines
from sapwood.cli.agent_commands import acted
from sapwood.cli.quantities import counted


@pytest.mark.parametrize(
    ("count", "what", "said"),
    [
        (0, "agents", "0 agents"),
        (1, "agents", "1 agent"),
        (2, "agents", "2 agents"),
        (1, "dead letters", "1 dead letter"),
        (1, "entries", "1 entry"),
        (2, "entries", "2 entries"),
        (1, "trees with entries", "1 tree with entries"),
    ],
)
def test_a_count_has_the_noun_of_its_number(count: int, what: str, said: str) -> None:
    assert counted(count, what) == said


@pytest.mark.parametrize(
    ("done", "later", "said"),
    [
        (1, [], "Replayed 1 dead letter: it is called now."),
        (1, ["T1"], "Replayed 1 dead letter: it was held, and is called at T1."),
        (2, ["T1"], "Replayed 2 dead letters: 1 call now, and 1 that was held at its time, T1."),
        (2, ["T1", "T2"], "Replayed 2 dead letters: they were held, and are called at their times, the first at T1."),
    ],
)
def test_a_replay_says_when_the_calls_are_made(done: int, later: list[str], said: str) -> None:
    assert acted(done, later, replayed=True) == f"{said} A call that fails again becomes a dead letter again."


def test_the_audit_log_has_one_line_or_several_of_an_agent(tmp_path: Path) -> None:
    file = tmp_path / "operator.jsonl"
    file.write_text('{"address": "Desk:a"}\n')
    assert kept_lines(tmp_path, [Address.parse("Desk:a")]).startswith("1 line of the audit log operator.jsonl names")
    file.write_text('{"address": "Desk:a"}\n' * 2)
    assert kept_lines(tmp_path, [Address.parse("Desk:a")]).startswith("2 lines of the audit log operator.jsonl name")
