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

    assert (wanted.nodes, wanted.cells, wanted.history, wanted.dollars) == (None, None, None, None)
    assert program["costs"](figures(program)).count("| – |") == 7
    assert program["fall"](figures(program)).count("–") == 2


def test_what_agents_need_follows_from_figures_and_assumptions(program: dict[str, Any]) -> None:
    known = figures(program, LIVE=(100.0, "KiB", ""), COMMITS=(5000.0, "/s", "10000 bytes a message, 8 streams"))
    assumed = program["Assumed"](awake=0.01, commits=1.0, full=0.5, node_memory=2.0)

    wanted = program["need"](1_000_000, known, assumed)

    assert (wanted.awake, wanted.commits) == (10_000, 10_000)
    assert wanted.cells == 4  # 10,000 commits take two of them, half full
    assert wanted.nodes == 4 * 3  # each cell is a cluster, and none has fewer than three
    assert wanted.trees == 30  # a million of 30 KB
    assert wanted.history == pytest.approx(3_000 * 10_000 * 7 * 86400 / 1e9)
    assert wanted.dollars > 12 * assumed.node_price + 12 * assumed.server_price
    assert program["need"](10_000, known, assumed).nodes == 3


def test_a_cluster_has_one_node_more_than_its_share_of_the_agents_needs(program: dict[str, Any]) -> None:
    known = figures(program, LIVE=(100.0, "KiB", ""), COMMITS=(5000.0, "/s", "10000 bytes a message, 8 streams"))

    wanted = program["need"](1_000_000, known, program["Assumed"](node_memory=0.1))

    assert wanted.cells == 4
    assert wanted.nodes == 4 * (1 + 6)  # 1.024 GB of agents, in nodes of 0.1 GB that are half full: 20.48
