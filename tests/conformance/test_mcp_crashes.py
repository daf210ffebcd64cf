"""A tool call of MCP in a process that dies at each of its commits, one after the other: it is one run, paid once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.conformance.mcp_clients import FORMS, WITH_TASKS, Mcp, Stream, held, mcp_served
from tests.conformance.served import Served
from tests.conformance.test_mcp_tasks import YES, McpClerk, app, who

MESSAGE = {"message": "a printer"}


def is_dead(one: Served) -> bool:
    return one.world.points.ended


def message_with(call: Stream, name: str) -> dict[str, Any] | None:
    return next((one for one in call.messages if name in one), None)


async def told(one: Served, call: Stream, *, is_asked: bool = False) -> None:
    """Return when the call is over, the process has died or, unless it is asked already, there is a question."""
    while not (call.is_over or is_dead(one) or (not is_asked and message_with(call, "method") is not None)):
        await one.world.clock.advance(0.1)  # a run whose caller does not start it again is given up after a while
        await asyncio.sleep(0.001)


async def called(one: Served, client: Mcp) -> tuple[dict[str, Any], bool]:
    """Make one request, and repeat it if the process has died, until it has a result; return whether it has died."""
    was_killed = False
    while True:
        call = held(one, client, "office", MESSAGE, id=1)
        await told(one, call)
        if not is_dead(one) and (asked := message_with(call, "method")) is not None:
            await client.respond(asked["id"], YES)
            await told(one, call, is_asked=True)
        was_killed = was_killed or is_dead(one)
        if (done := message_with(call, "result")) is not None and not is_dead(one):
            return done["result"], was_killed
        await one.world.crash()


@pytest.mark.nightly
@pytest.mark.slow
async def test_a_request_of_a_session_that_is_repeated_after_each_crash_is_one_run() -> None:
    nth, was_killed = 0, True
    while was_killed:
        nth += 1
        async with mcp_served(app(authenticate=who)) as one:
            client = await Mcp(one, FORMS, who="ann").begun()
            one.world.crash_at("committed", nth)
            result, was_killed = await called(one, client)
            assert result["content"][0]["text"], nth
            assert len(McpClerk.paid) <= 1, nth
            assert len((await client.ask("resources/list"))["resources"]) == 1, nth
    assert nth > 10


NOT_STARTED = ("This call has no run", "The run had not started")
"""What a call is told that may be made again."""


def told_not_started(call: Stream) -> bool:
    return any(text in json.dumps(call.messages) for text in NOT_STARTED)


async def continued(one: Served, client: Mcp) -> tuple[dict[str, Any], bool, bool]:
    """Make one call, and continue its stream if the process has died; return its result, and what was needed.

    A call that had not started is made again, as another request.
    """
    was_killed, is_again, last, id = False, False, "", 1
    while True:
        call = held(one, client, after=last) if last else held(one, client, "office", MESSAGE, id=id)
        await told(one, call)
        if not is_dead(one) and (asked := message_with(call, "method")) is not None:
            await client.respond(asked["id"], YES)
            await told(one, call, is_asked=True)
        if not is_dead(one) and told_not_started(call):
            assert McpClerk.paid == []
            last, is_again, id = "", True, id + 1
            continue
        if (done := message_with(call, "result")) is not None and not is_dead(one):
            return done["result"], was_killed, is_again
        last = call.ids[-1] if call.ids else last
        was_killed = True
        await one.world.crash()


@pytest.mark.nightly
@pytest.mark.slow
async def test_the_stream_of_a_call_is_continued_after_each_crash_or_says_that_it_had_not_started() -> None:
    nth, was_killed, again = 0, True, 0
    while was_killed:
        nth += 1
        async with mcp_served(app(authenticate=who)) as one:
            client = await Mcp(one, FORMS, who="ann").begun()
            one.world.crash_at("committed", nth)
            result, was_killed, is_again = await continued(one, client)
            again += is_again
            assert not result.get("isError"), nth
            assert len(McpClerk.paid) <= 1, nth  # a tool that was interrupted before it paid is not repeated
    assert nth > 10
    assert 0 < again < nth


@pytest.mark.nightly
async def test_a_task_whose_id_the_client_has_is_answered_once_whenever_the_process_dies() -> None:
    nth, was_killed = 0, True
    while was_killed:
        nth += 1
        async with mcp_served(app(authenticate=who)) as one:
            client = Mcp(one, WITH_TASKS, who="ann")
            task = (await client.call("office", MESSAGE))["taskId"]
            one.world.crash_at("committed", nth)
            was_killed = False
            done: dict[str, Any] = {"status": "working"}
            while done["status"] in ("working", "input_required"):
                if is_dead(one):
                    was_killed = True
                    await one.world.crash()
                answer = await client.post("tasks/get", taskId=task)
                done = answer.json().get("result", done) if answer.status == 200 else done
                if done["status"] == "input_required":
                    responses = dict.fromkeys(done["inputRequests"], YES)
                    await client.post("tasks/update", taskId=task, inputResponses=responses)
                else:
                    await one.world.clock.advance(1)
            assert done["status"] == "completed", (nth, done)
            assert len(McpClerk.paid) <= 1, nth
    assert nth > 10
