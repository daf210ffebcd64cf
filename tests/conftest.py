"""What every test has at hand."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Agents run on asyncio; anyio's tests would run on every backend it finds."""
    return "asyncio"
