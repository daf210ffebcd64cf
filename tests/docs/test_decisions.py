"""Every decision has its number in its title, its line in the index and its place in the navigation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs/explanation/decisions"
PAGES = sorted(page.name for page in DECISIONS.glob("[0-9]*.md"))


def test_the_index_and_the_navigation_have_every_decision_in_order() -> None:
    linked = re.findall(r"^\| (\d{4}) \| \[.+\]\(([\w-]+\.md)\) \|", (DECISIONS / "index.md").read_text(), re.MULTILINE)
    placed = re.findall(r'"explanation/decisions/(\d[\w-]+\.md)"', (ROOT / "zensical.toml").read_text())

    assert linked == [(page[:4], page) for page in PAGES]
    assert placed == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_the_title_of_a_decision_starts_with_its_number(page: str) -> None:
    assert (DECISIONS / page).read_text().startswith(f"# {page[:4]}: ")
