"""What the documentation advises is there to be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def section(page: str, heading: str) -> str:
    """Return what a page says below a heading."""
    text = (DOCS / page).read_text()
    found = re.search(rf"(?ms)^#+ {re.escape(heading)}\n(.+?)(?=^#+ |\Z)", text)
    assert found is not None, f"{page} has no section {heading!r}"
    return found[1]


@pytest.mark.promise("A-23")
def test_the_docs_say_when_a_child_stays_and_when_it_does_a_run() -> None:
    said = section("how-to/use-agents.md", "Sub-agent or run?")

    rows = [line for line in said.splitlines() if line.startswith("|")]
    (long_lived,) = [row for row in rows if "any number of long-lived agents" in row]
    assert "chats, documents, sessions, projects" in long_lived
    assert "`sub_agent(Cls, name)`" in long_lived
    (in_a_turn,) = [row for row in rows if "inside a turn" in row]
    assert "`agent_tool(Cls)` if the model decides, `run_agent(Cls, …)` if your code decides" in in_a_turn


@pytest.mark.promise("A-175")
def test_the_docs_advise_on_agents_as_tools() -> None:
    said = section("how-to/use-agents.md", "Best practices")

    advice = dict(re.findall(r"(?ms)^- \*\*(.+?)\*\*(.+?)(?=^- |^$)", said))
    assert "types and defaults" in advice["Declare what goes in and what comes out"]
    assert "`CodeReviewer`, not `Helper` or `Agent1`" in advice["Name agents by what they do"]
    assert "One level is enough" in advice["Stay shallow."]
    assert "Say in `instructions` what the model should do when a helper fails." in advice


def test_the_tests_that_the_docs_name_exist() -> None:
    named = [
        (page.name, file, test)
        for page in sorted(DOCS.rglob("*.md"))
        for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    ]

    assert len(named) > 30
    assert [one for one in named if f"def {one[2]}(" not in (ROOT / one[1]).read_text()] == []
