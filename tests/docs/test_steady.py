"""The picture of a server's memory over time is drawn from what was measured."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_picture_shows_the_measured_samples() -> None:
    program = runpy.run_path(str(ROOT / "benchmarks/steady.py"))
    samples = [json.loads(line) for line in program["MEASURED"].read_text().splitlines()]

    assert program["picture"](samples) == program["PICTURE"].read_text()
    assert {sample["load"] for sample in samples} == set(program["NAMES"])
