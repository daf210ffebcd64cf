"""The reference of the figures is complete, and nothing in it is made up."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sapwood import App
from sapwood.testing import running
from sapwood.web import metrics
from sapwood.web.metrics import Metrics
from sapwood.web.stats import QUEUES

PAGE = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, flags=re.MULTILINE))


@pytest.mark.skipif(metrics.prometheus is None or sys.platform != "linux", reason="not all figures are there")
async def test_every_figure_is_in_the_reference_with_its_kind_and_nothing_else_is() -> None:
    async with running(App(agents=[])) as world:
        text = Metrics(world.app.node).figures().decode()

    found = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, flags=re.MULTILINE))
    assert {name: kind for name, kind in ROWS.items() if name not in QUEUES} == found
    assert set(re.findall(r'^sapwood_waiting\{queue="(\w+)"\}', text, flags=re.MULTILINE)) == set(QUEUES)


def test_every_queue_is_in_the_reference_as_it_is_counted() -> None:
    assert {name: text for name, text in ROWS.items() if name in QUEUES} == QUEUES
