"""Which loop the tests of a folder run on: one with virtual time, where nothing real is what they are about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sapwood.testing.loop import VirtualLoop

T = TypeVar("T")

FOLDERS = tuple(Path(__file__).parent / folder for folder in ("unit", "conformance", "compat"))
"""Whose tests run in virtual time, unless they are marked `realtime`."""

factory: Callable[[], asyncio.AbstractEventLoop] | None = None
"""Makes the loop of such a test; `None` means a usual one, where agents live in several processes."""


def configure(config: pytest.Config) -> None:
    global factory  # noqa: PLW0603 - one session, one runtime
    is_local = config.getoption("--runtime") == "local" and config.getoption("--driver", "fiber") == "fiber"
    factory = VirtualLoop if is_local else None


def is_virtual(item: pytest.Item) -> bool:
    """Whether a test runs in virtual time."""
    return (
        factory is not None
        and any(folder in item.path.parents for folder in FOLDERS)
        and item.get_closest_marker("realtime") is None
    )


def check_reasons(items: list[pytest.Item]) -> None:
    """Refuse a mark `realtime` that does not say why."""
    for item in items:
        for mark in item.iter_markers("realtime"):
            if len(mark.args) != 1 or not isinstance(mark.args[0], str) or not mark.args[0].strip():
                raise pytest.UsageError(f"{item.nodeid}: `realtime` takes one argument, the reason.")


def play(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, in a test that is no coroutine itself."""
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)
