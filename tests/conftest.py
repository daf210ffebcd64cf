"""What every test has at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sapwood.testing.loop import VirtualLoop


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runtime",
        default="local",
        help="where agents live in tests/conformance: local, workers, movable, replicated or cluster",
    )


VIRTUAL = tuple(Path(__file__).parent / folder for folder in ("unit", "conformance"))
"""The folders whose tests run in virtual time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("realtime"):
            if len(mark.args) != 1 or not isinstance(mark.args[0], str) or not mark.args[0].strip():
                raise pytest.UsageError(f"{item.nodeid}: `realtime` takes one argument, the reason.")


def is_virtual(item: pytest.Item) -> bool:
    """Whether a test runs in virtual time: on one node, driven by fibers, and nothing real is what it is about."""
    options = item.config.option
    return (
        any(folder in item.path.parents for folder in VIRTUAL)
        and options.runtime == "local"
        and getattr(options, "driver", "fiber") == "fiber"
        and item.get_closest_marker("realtime") is None
    )


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    """Agents run on asyncio; anyio's tests would run on every backend it finds."""
    return ("asyncio", {"loop_factory": VirtualLoop}) if is_virtual(request.node) else "asyncio"
