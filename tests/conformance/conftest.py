"""A world for each test, at each level of durability."""

from __future__ import annotations

import tomllib
from collections.abc import Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.conformance import runtimes
from tests.conformance.drivers import driven_by, running
from tests.conformance.three_nodes import few_shards
from tests.conformance.works import Bench
from tests.conformance.worlds import Probe, Run

from sapwood import Agent, App
from sapwood.testing import World, world

# Nothing here takes longer than that in another thread or process. Where an agent of a test waits for the test,
# the usual patience of a fifth of a second is all spent, at every step of the clock.
world.PATIENCE = 0.03
# Four processes that share two cores with others: what holds up a loop here is mostly that it is not its turn.
world.SLOW = 3.0

EXCLUSIONS = Path(__file__).with_name("exclusions.toml")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--driver", choices=("fiber", "temporal"), default="fiber", help="who drives turns and runs")
    parser.addoption("--core", action="store_true", help="only the tests marked `core` for this runtime or driver")


MOST_CORE = 250
"""How many tests `.ci/run` has room for on each runtime and driver; `just nightly` runs all of them."""
FAMILIES = ("workers", "cluster", "temporal")


def core_of(family: str, items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests whose subject differs on a runtime or driver."""

    def is_core(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("core")  # a test's own counts, and not its module's
        return mark is not None and family in mark.args and not item.get_closest_marker("disk")

    chosen = [item for item in items if is_core(item)]
    if len(chosen) > MOST_CORE:
        raise pytest.UsageError(f"{len(chosen)} tests are marked core({family!r}); there is room for {MOST_CORE}.")
    return chosen


def choose_core(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests whose subject differs on this runtime or driver."""
    family = config.getoption("driver") if runtimes.chosen == "local" else runtimes.chosen
    chosen = core_of(str(family), items)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("disk") and not item.get_closest_marker("storage"):
            item.add_marker(pytest.mark.nightly)
    for family in FAMILIES:
        core_of(family, items)  # so that `just check` notices what has no room in `.ci/run`
    if config.getoption("core"):
        choose_core(config, items)
    if config.getoption("driver") != "fiber":
        for item in items:
            for mark in item.iter_markers("fiber"):
                item.add_marker(pytest.mark.skip(mark.args[0]))
    if runtimes.chosen in runtimes.IN_A_LOG:
        excluded: dict[str, dict[str, str]] = tomllib.loads(EXCLUSIONS.read_text())
        for item in items:
            reason = excluded.get(item.nodeid.partition("::")[0], {}).get(getattr(item, "originalname", item.name))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason))


@pytest.fixture(scope="session", autouse=True)
def driver(request: pytest.FixtureRequest) -> Generator[None, None, None]:
    """Have the apps of these tests be driven as pytest was told."""
    with driven_by(str(request.config.getoption("driver"))):
        yield


def pytest_configure(config: pytest.Config) -> None:
    runtimes.chosen = config.getoption("--runtime")
    if runtimes.chosen == "cluster":
        few_shards()
        world.PATIENCE = 0.15  # nodes and the log are asked over the network, by programs that want the same cores


@pytest.fixture(params=["process", pytest.param("disk", marks=pytest.mark.disk)])
def level(request: pytest.FixtureRequest) -> str:
    """What "kept" means in this run of the test."""
    return request.param


@pytest.fixture
def run(level: str) -> Run:
    """Return what runs an app with the given roots."""

    def run(*roots: type[Agent[Any]], deps: Any = None, **settings: Any) -> AbstractAsyncContextManager[World]:
        # These tests are about what is true, not how fast: a busy machine must not fail them.
        return running(App(agents=roots, deps=deps), slow_slices="allow", durability=level, **settings)

    return run


@pytest.fixture
def probe() -> Probe:
    """Return what agents of a test write to and wait for; hand it to the app as deps."""
    return Probe()


@pytest.fixture
def bench() -> Bench:
    """Return what the workers of a test do; hand it to the app as deps."""
    return Bench()


@pytest.fixture(params=[0, 3])
def depth(request: pytest.FixtureRequest) -> int:
    """How far below the root the agent of this test is: the root itself, or one whose parent is not the root."""
    return request.param
