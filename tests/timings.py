"""How much CPU and wall time each test, file and fixture takes: `just timings`, or `pytest --timings FILE`."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROPERTY = "timings"


@dataclass(frozen=True)
class Cost:
    """Seconds of processor (this process and the children it has reaped), and of wall time."""

    cpu: float = 0.0
    wall: float = 0.0

    @classmethod
    def now(cls) -> Cost:
        """Return the reading of both clocks."""
        times = os.times()
        return cls(times.user + times.system + times.children_user + times.children_system, time.perf_counter())

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.wall + other.wall)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu - other.cpu, self.wall - other.wall)


class Recorder:
    """Runs where the tests run: it attaches to each report what its phase cost, and what the fixtures in it cost."""

    def __init__(self) -> None:
        self._fixtures: dict[str, Cost] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        began = Cost.now()
        try:
            return (yield)
        finally:
            known = self._fixtures.get(fixturedef.argname, Cost())
            self._fixtures[fixturedef.argname] = known + (Cost.now() - began)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        self._began = Cost.now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = Cost.now()
        cost, self._began = now - self._began, now
        fixtures, self._fixtures = self._fixtures, {}
        value = {"cpu": cost.cpu, "wall": cost.wall, "fixtures": {k: (c.cpu, c.wall) for k, c in fixtures.items()}}
        item.user_properties.append((PROPERTY, json.dumps(value)))
        report.user_properties = list(item.user_properties)
        return report


class Collector:
    """Runs where the reports arrive: writes down what each test cost as it ends, and the fixtures at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fixtures: defaultdict[str, Cost] = defaultdict(Cost)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":  # the last report of a test carries what all of its phases cost
            return
        total = Cost()
        for facts in (json.loads(str(value)) for name, value in report.user_properties if name == PROPERTY):
            total += Cost(facts["cpu"], facts["wall"])
            for fixture, (cpu, wall) in facts["fixtures"].items():
                self._fixtures[fixture] += Cost(cpu, wall)
        self._write("test", report.nodeid, total)

    def pytest_sessionfinish(self) -> None:
        for name, cost in self._fixtures.items():
            self._write("fixture", name, cost)

    def _write(self, kind: str, name: str, cost: Cost) -> None:
        with self._path.open("a") as file:
            print(
                json.dumps({"kind": kind, "name": name, "cpu": round(cost.cpu, 3), "wall": round(cost.wall, 3)}),
                file=file,
            )
