"""What every test has at hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests import loops


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runtime",
        default="local",
        help="where agents live in tests/conformance: local, workers, movable, replicated or cluster",
    )


def pytest_configure(config: pytest.Config) -> None:
    loops.configure(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("realtime"):
            if len(mark.args) != 1 or not isinstance(mark.args[0], str) or not mark.args[0].strip():
                raise pytest.UsageError(f"{item.nodeid}: `realtime` takes one argument, the reason.")


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    """Agents run on asyncio; anyio's tests would run on every backend it finds."""
    return ("asyncio", {"loop_factory": loops.factory}) if loops.is_virtual(request.node) else "asyncio"
