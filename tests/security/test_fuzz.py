"""A small run of the fuzzer, on one process and on workers; `just fuzz` runs it in full."""

from __future__ import annotations

import json

import pytest
from tests.security.fuzz import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("workers", [None, pytest.param(2, marks=pytest.mark.nightly)])
def test_every_input_is_answered_and_breaks_nothing(workers: int | None) -> None:
    result = fuzz(2000, seed=4711, workers=workers)
    assert result["ok"], json.dumps(result, indent=1)
    assert result["http"] >= result["inputs"] / 3
    assert result["frames"] > 500
