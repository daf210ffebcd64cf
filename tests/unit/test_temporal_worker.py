"""How a worker of Temporal's asks the server, and what it tells it when Temporal has forgotten its activity."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("temporalio")

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from tests.conformance.serving import serving

from sapwood.drivers.temporal.messages import StepAnswer, StepRequest
from sapwood.drivers.temporal.worker import StepClient


class Temporal:
    """Knows how the workflow stands."""

    def __init__(self, status: WorkflowExecutionStatus) -> None:
        self.status = status

    def get_workflow_handle(self, _: str) -> Temporal:
        return self  # whatever run is the last: one that is reset has another

    async def describe(self) -> Any:
        return SimpleNamespace(status=self.status)


@pytest.mark.parametrize(
    ("status", "stopped"), [(WorkflowExecutionStatus.TERMINATED, ["stop"]), (WorkflowExecutionStatus.RUNNING, [])]
)
async def test_a_step_is_stopped_if_its_workflow_was_ended_and_not_if_it_only_took_too_long(
    status: WorkflowExecutionStatus, stopped: list[str]
) -> None:
    begun, asked = asyncio.Event(), list[str]()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        what = Request(scope, receive).url.path.rpartition("/")[2]
        asked.append(what)

        async def steps() -> AsyncIterator[bytes]:
            yield b"{}\n"
            begun.set()
            await asyncio.Event().wait()

        response: Response = StreamingResponse(steps()) if what == "step" else JSONResponse({"status": "cancelled"})
        await response(scope, receive, send)

    async with serving(answer) as site:
        door = StepClient(f"http://127.0.0.1:{site.port}", "secret")
        activity = ActivityEnvironment(client=cast("Client", Temporal(status)))
        doing = asyncio.ensure_future(activity.run(door.step, StepRequest("Boss:b", "t1", 1)))
        await begun.wait()
        activity.cancel(ActivityCancellationDetails(not_found=True))
        with contextlib.suppress(asyncio.CancelledError):
            await doing
        await door.close()

    assert asked == ["step", *stopped]


async def test_one_connection_is_used_for_one_step_after_the_other() -> None:
    connections = set[Any]()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        connections.add(tuple(scope["client"]))

        async def steps() -> AsyncIterator[bytes]:
            yield b"{}\n"
            yield b'{"status": "running"}\n'

        await StreamingResponse(steps())(scope, receive, send)

    async with serving(answer) as site:
        door, activity = StepClient(f"http://127.0.0.1:{site.port}", "secret"), ActivityEnvironment()
        answers = [await activity.run(door.step, StepRequest("Boss:b", "t1", step)) for step in range(3)]
        await door.close()

    assert answers == [StepAnswer("running")] * 3
    assert len(connections) == 1


async def test_a_server_that_is_somewhere_else_after_it_was_away_is_found_there() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"status": "running"})(scope, receive, send)

    async with serving(answer) as before:
        where = [f"http://127.0.0.1:{before.port}"]
        door, activity = StepClient(where[0], "secret", lambda: where[0]), ActivityEnvironment()
        assert await activity.run(door.look, StepRequest("Boss:b", "t1")) == StepAnswer("running")
    async with serving(answer) as after:
        where[0] = f"http://127.0.0.1:{after.port}"
        with pytest.raises(ApplicationError):
            await activity.run(door.look, StepRequest("Boss:b", "t1"))

        assert await activity.run(door.look, StepRequest("Boss:b", "t1")) == StepAnswer("running")
        await door.close()
