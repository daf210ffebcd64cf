"""Where the agents of this folder's tests live, as `pytest --runtime` says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.conformance.replicated import running_replicated
from tests.conformance.three_nodes import running_on_three_nodes
from tests.conformance.two_nodes import running_on_two_nodes, running_with_movable_trees

from sapwood import App
from sapwood.testing import World
from sapwood.testing import running as running_here

RUNTIMES: dict[str, Callable[..., AbstractAsyncContextManager[World]]] = {
    "local": running_here,
    "workers": running_on_two_nodes,
    "movable": running_with_movable_trees,
    "replicated": running_replicated,
    "cluster": running_on_three_nodes,
}
chosen = "local"


def running(app: App, **options: Any) -> AbstractAsyncContextManager[World]:
    """Run an app for a test."""
    return RUNTIMES[chosen](app, **options)
