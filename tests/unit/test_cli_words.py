"""The words of the command line."""

from __future__ import annotations

import pytest

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
