"""What is left out of the conformance suite in a cluster exists, and says why."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_excluded_test_exists_and_has_a_reason() -> None:
    excluded = tomllib.loads((ROOT / "tests/conformance/exclusions.toml").read_text())

    for file, tests in excluded.items():
        text = (ROOT / file).read_text()
        for name, reason in tests.items():
            assert f"async def {name}(" in text, f"{file} has no {name}"
            assert len(reason) > 20, name
