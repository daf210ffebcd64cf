"""What every test has at hand."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests import loops
from tests.needs import skip_where_missing
from tests.timings import Collector, Recorder

# How long it takes to make an example, and to run it, says how busy the machine is.
hypothesis.settings.register_profile("sapwood", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("sapwood")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runtime",
        default="local",
        help="where agents live in tests/conformance: local, workers, movable, replicated or cluster",
    )
    parser.addoption(
        "--order-seed",
        metavar="SEED",
        default=os.environ.get("SAPWOOD_ORDER_SEED"),
        help="shuffle the files, and the tests within each file",
    )
    parser.addoption("--timings", metavar="FILE", help="append the CPU and wall time of each test and fixture to FILE")


def pytest_configure(config: pytest.Config) -> None:
    loops.configure(config)
    if file := config.getoption("--timings"):
        config.pluginmanager.register(Recorder())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Collector(Path(file)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what is imported and collected: it lasts until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> str | tuple[str, dict[str, Any]]:
    """Agents run on asyncio; anyio's tests would run on every backend it finds."""
    return ("asyncio", {"loop_factory": loops.factory}) if loops.is_virtual(request.node) else "asyncio"


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("--order-seed")
    return [f"order seed: {seed}"] if seed else []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_where_missing(items)
    loops.check_reasons(items)
    if seed := config.getoption("--order-seed"):
        chance = random.Random(seed)
        files: dict[str, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        shuffled = chance.sample(list(files.values()), len(files))
        items[:] = [item for tests in shuffled for item in chance.sample(tests, len(tests))]
