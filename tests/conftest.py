"""What every test has at hand."""

from __future__ import annotations

import pytest
from tests.needs import skip_where_missing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runtime",
        default="local",
        help="where agents live in tests/conformance: local, workers, movable, replicated or cluster",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_where_missing(items)


@pytest.fixture
def anyio_backend() -> str:
    """Agents run on asyncio; anyio's tests would run on every backend it finds."""
    return "asyncio"
