"""Cases of one test that are fast each, and slow together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow(cases: Iterable[Any]) -> list[Any]:
    """Return cases that only `.ci/run` tries. `just check` tries those before them, which show the same promise."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in cases]
