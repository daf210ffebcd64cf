"""Turns wait for a Temporal server, or a worker, that is not there; Stop does not."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.chats import Talking, cancel, done, say, user
from tests.machine import patience
from tests.temporal.cluster import Temporal, driven

from sapwood.testing import ScriptedModel, text


class AbsentTalker(Talking):
    model = ScriptedModel(text("here I am"), each=True)


async def until(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(patience()):
        while not look():  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.02)


@pytest.mark.nightly
async def test_a_turn_begun_without_temporal_waits_for_it_and_stop_is_as_quick_as_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    temporal = Temporal(tmp_path, tmp_path / "data")
    try:
        async with driven(temporal, tmp_path, AbsentTalker) as one:
            client = await one.one.join("/agents/absent-talker/t")
            await say(client, "r1", user("hi"))
            await done(client, "r1")
            temporal.end(signal.SIGKILL)

            await say(client, "r2", user("are you there?"))
            await until(lambda: "Turns wait" in caplog.text)
            await cancel(client, "r2")
            assert (await done(client, "r2"))["outcome"] == "aborted"  # while Temporal is still away

            await say(client, "r3", user("and now?"))
            temporal.start()
            assert (await done(client, "r3"))["outcome"] == "completed"
            assert "answers again" in caplog.text
            ends = await one.closed(2)
            assert ends["AbsentTalker:t r1"] == ends["AbsentTalker:t r3"] == "COMPLETED"
    finally:
        temporal.end(signal.SIGKILL)


@pytest.mark.nightly
async def test_a_temporal_server_that_begins_anew_and_knows_nothing_is_told_what_it_has_to_know(tmp_path: Path) -> None:
    temporal = Temporal(tmp_path, tmp_path / "data")
    try:
        async with driven(temporal, tmp_path, AbsentTalker) as one:
            client = await one.one.join("/agents/absent-talker/t")
            await say(client, "r1", user("hi"))
            await done(client, "r1")
            temporal.end(signal.SIGKILL)
            for kept in (tmp_path / "data").glob("temporal.db*"):
                kept.unlink()

            await say(client, "r2", user("and now?"))
            temporal.start()

            assert (await done(client, "r2"))["outcome"] == "completed"
    finally:
        temporal.end(signal.SIGKILL)


@pytest.mark.nightly
async def test_without_a_worker_a_turn_waits_and_the_log_says_what_is_missing(
    temporal: Temporal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with driven(temporal, tmp_path, AbsentTalker, patience=0.2, workers=0) as one:
        client = await one.one.join(f"/agents/absent-talker/{one.name}")
        await say(client, "r1", user("hi"))

        await until(lambda: "Check that a worker runs for the queue" in caplog.text)
        one.work()

        assert (await done(client, "r1"))["outcome"] == "completed"


@pytest.mark.nightly
async def test_a_worker_with_the_wrong_token_says_so_in_a_line(temporal: Temporal, tmp_path: Path) -> None:
    async with driven(temporal, tmp_path, AbsentTalker, workers=0) as one:
        client = await one.one.join(f"/agents/absent-talker/{one.name}")
        await say(client, "r1", user("hi"))
        wrong = one.work(token="another")

        await until(lambda: "refused the worker's token" in wrong.log())

        assert "Traceback" not in wrong.log()
        await cancel(client, "r1")
        assert (await done(client, "r1"))["outcome"] == "aborted"
