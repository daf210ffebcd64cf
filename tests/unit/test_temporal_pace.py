"""A pace has steps begin when they are asked for, and its workflow ask, whatever was heard or not."""

from __future__ import annotations

import asyncio
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("temporalio")

from temporalio.client import Client

from sapwood.address import Address
from sapwood.drivers.temporal.driver import TemporalDriver
from sapwood.drivers.temporal.messages import StepAnswer
from sapwood.drivers.temporal.step_runner import TemporalPace
from sapwood.runs.execution.driver import DrivenWork

PART = DrivenWork(Address.parse("Boss:a/Helper:b"), "r", above=(Address.parse("Boss:a"), "t"))


class Told(TemporalDriver):
    """Notes what it would tell Temporal."""

    def __init__(self, answers: asyncio.Event) -> None:
        super().__init__(token="t")
        self._node: Any = SimpleNamespace(loop=asyncio.get_running_loop())
        self.answers = answers
        self.told: list[DrivenWork] = []

    async def ready(self, part: DrivenWork, *, open_since: datetime | None = None) -> None:
        self.told.append(part)
        await self.answers.wait()


async def test_a_part_whose_workflow_has_asked_once_is_not_given_to_the_one_above_again() -> None:
    driver = Told(asyncio.Event())  # Temporal has done it, and its answer is lost
    pace = TemporalPace(driver, PART)
    pace.asked()
    await asyncio.sleep(0)
    pace.step(1)
    pace.stepped("running", waits=True)

    pace.asked()
    await asyncio.sleep(0)
    pace.leave()

    assert [part.is_new for part in driver.told] == [True, False]


async def test_a_workflow_that_is_begun_anew_does_not_wait_for_what_is_over() -> None:
    driver = Told(asyncio.Event())
    pace = TemporalPace(driver, PART)
    pace.asked()
    first = pace.step(1)
    pace.stepped("running", waits=True)
    assert first.result() == StepAnswer("running", waits=True)
    assert pace.step(1).result() == StepAnswer("running", waits=True)  # it was not heard

    begins = pace.asked()
    again = pace.step(1)
    pace.leave()

    assert begins is not None
    assert begins.done()
    assert again.exception() is not None  # it was begun, and nobody does it now


async def test_a_codec_that_cannot_encrypt_now_makes_turns_wait_and_fail_no_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = TemporalDriver(token="t")
    driver._client = cast("Client", object())
    failures = [OSError("the keys are away"), ValueError("no key")]

    async def ask(client: Any) -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert await driver._answered(ask) == "done"
    assert "Turns wait" in caplog.text
