"""What the documentation advises is there to be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


def section(page: str, heading: str) -> str:
    """Return what a page says below a heading."""
    text = (DOCS / page).read_text()
    found = re.search(rf"(?ms)^#+ {re.escape(heading)}\n(.+?)(?=^#+ |\Z)", text)
    assert found is not None, f"{page} has no section {heading!r}"
    return found[1]


@pytest.mark.promise("A-23")
def test_the_docs_say_when_a_child_stays_and_when_it_does_a_run() -> None:
    said = section("how-to/use-agents.md", "Sub-agent or run?")

    for way in ("sub_agent(Cls, name)", "agent_tool(Cls)", "run_agent(Cls, …)"):
        assert way in said


@pytest.mark.promise("A-175")
def test_the_docs_advise_on_agents_as_tools() -> None:
    said = section("how-to/use-agents.md", "Best practices")

    for advice in ("what goes in and what comes out", "Name agents by what they do", "Stay shallow", "fails"):
        assert advice in said
