"""The page of measured figures is what was measured."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KEYS = {"name", "ours", "reference", "ratio", "unit", "n", "bar", "holds"}


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    return [json.loads(text) for text in (ROOT / "benchmarks/last.jsonl").read_text().splitlines()]


def test_the_page_is_made_from_the_last_run(lines: list[dict[str, Any]]) -> None:
    page = runpy.run_path(str(ROOT / "benchmarks/page.py"))["page"]

    assert page(lines) == (ROOT / "docs/explanation/measured.md").read_text()


def test_every_line_says_what_was_measured_and_whether_it_is_good_enough(lines: list[dict[str, Any]]) -> None:
    _machine, *measured = lines

    assert measured
    assert all(line.keys() >= KEYS for line in measured)
