"""The page about capacity is what follows from what was measured, and what was not is not made up."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/capacity.md"


@pytest.fixture
def program() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks/capacity.py"))


def figures(program: dict[str, Any], **measured: tuple[float, str, str]) -> Any:
    lines = [
        {"name": program[name], "ours": ours, "unit": unit, "note": note}
        for name, (ours, unit, note) in measured.items()
    ]
    return program["Figures"](lines)


def test_the_tables_of_the_page_are_made_from_the_last_run(program: dict[str, Any]) -> None:
    lines = [json.loads(text) for text in (ROOT / "benchmarks/last.jsonl").read_text().splitlines()]

    assert program["page"](PAGE.read_text(), lines, program["Assumed"]()) == PAGE.read_text()


def test_what_was_not_measured_is_a_dash_and_so_is_what_follows_from_it(program: dict[str, Any]) -> None:
    wanted = program["need"](10_000, figures(program, LIVE=(80.0, "KiB", "")), program["Assumed"]())

    assert (wanted.nodes, wanted.cells, wanted.dollars) == (None, None, None)
    assert program["costs"](figures(program)).count("| – |") == 7


def test_what_agents_need_follows_from_figures_and_assumptions(program: dict[str, Any]) -> None:
    known = figures(program, LIVE=(100.0, "KiB", ""), COMMITS=(5000.0, "/s", "10000 bytes a message, 8 streams"))
    assumed = program["Assumed"](awake=0.01, commits=1.0, full=0.5, node_memory=2.0)

    wanted = program["need"](1_000_000, known, assumed)

    assert (wanted.awake, wanted.commits) == (10_000, 10_000)
    assert wanted.nodes == 1 + 4  # 10,000 commits take two of them, half full
    assert wanted.cells == 4
    assert wanted.stored > 30  # a million of 30 KB, and a week of the log
    assert wanted.dollars > 5 * assumed.node_price + 12 * assumed.server_price
    assert program["need"](10_000, known, assumed).nodes == 3
