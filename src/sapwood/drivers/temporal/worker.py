"""The worker: does for Temporal what workflows ask for, by asking the server where the agent lives.

It holds nothing. It may be killed, and any number of them may run, on any machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any, cast

import httpx2
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sapwood.drivers.temporal.driver import DOOR, TemporalDriver
from sapwood.drivers.temporal.workflow import LOOK, NOT_FOUND, STEP, STOP, Answer, Asked, WorkWorkflow
from sapwood.errors import InvalidArguments

log = logging.getLogger(__name__)

SILENCE = 30.0
"""Seconds after which a server that says nothing is taken for one that is no more; it says something every second."""
CONNECTING = 5.0
LATER = timedelta(seconds=30)
"""After which a server is asked again that does not know us: until somebody has put the token right."""
AT_ONCE = 5000
"""Steps that one worker waits for at once: it is the server that does them."""
TERMINATED = "workflow-terminated"
"""Why something is stopped whose workflow an operator has ended."""
ENDED = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)
UNKNOWN = (401, 403)
GONE = 404
FINAL = (NOT_FOUND, InvalidArguments.code)
"""What agents say that will not change."""


class Door:
    """The way from activities to the agents."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx2.AsyncClient(
            base_url=url.rstrip("/") + DOOR,
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(SILENCE, connect=CONNECTING, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
        )

    @activity.defn(name=STEP)
    async def step(self, asked: Asked) -> Answer:
        """Have the agent do a step, and wait until it has."""
        try:
            return await self._answer("step", asked)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.not_found:
                with suppress(Exception):
                    if await _was_ended():  # by an operator, and nobody else tells
                        await self._answer("stop", Asked(asked.address, asked.id, reason=TERMINATED))
            raise

    @activity.defn(name=STOP)
    async def stop(self, asked: Asked) -> Answer:
        """Have the agent stop a turn or run, and all below it."""
        return await self._answer("stop", asked)

    @activity.defn(name=LOOK)
    async def look(self, asked: Asked) -> Answer:
        """Return how a turn or run stands."""
        return await self._answer("look", asked)

    async def _answer(self, what: str, asked: Asked) -> Answer:
        heard = 0
        try:
            async with self._http.stream("POST", what, json=asdict(asked)) as response:
                if not response.is_success:
                    await response.aread()
                    raise refusal(response)
                async for line in response.aiter_lines():
                    said: dict[str, Any] = json.loads(line)
                    if "status" in said:
                        return Answer(**said)
                    heard += 1
                    activity.heartbeat(heard)
        except (httpx2.TransportError, ValueError) as error:
            raise ApplicationError(f"The server does not answer: {type(error).__name__}", type="unavailable") from None
        raise ApplicationError("The server ended before it had answered.", type="unavailable")

    async def close(self) -> None:
        await self._http.aclose()


async def _was_ended() -> bool:
    """Return whether somebody has ended the workflow of this step; if not, another worker was asked for the step."""
    handle = activity.client().get_workflow_handle(str(activity.info().workflow_id))
    return (await handle.describe()).status in ENDED


def refusal(response: httpx2.Response) -> ApplicationError:
    """Return what Temporal is to make of a refusal, by who has to act."""
    try:
        found: Any = response.json()
    except ValueError:
        found = None
    said = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    code, text = str(said.get("code") or response.status_code), str(said.get("error") or response.reason_phrase)
    if code in FINAL:
        return ApplicationError(text, type=code, non_retryable=True)
    if response.status_code in UNKNOWN:
        log.error("the server refuses the worker's token (%s): start both with the same one", response.url)
    elif response.status_code == GONE:
        log.error(
            "there is no door for drivers at %s: is it the server of an App(driver=TemporalDriver(…))?", response.url
        )
    # Somebody in between may refuse, too: that passes, and ends nothing.
    return ApplicationError(text, type=code, next_retry_delay=LATER if response.is_client_error else None)


async def work(driver: TemporalDriver, url: str, until: asyncio.Event) -> None:
    """Work for a driver's queue, until told to stop."""
    client: Client = await driver.connect()
    door = Door(url, driver.token)
    worker = Worker(
        client,
        task_queue=driver.queue,
        workflows=[WorkWorkflow],
        activities=[door.step, door.stop, door.look],
        workflow_runner=UnsandboxedWorkflowRunner(),  # ours, and the stored histories show what would change it
        max_concurrent_activities=AT_ONCE,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=min(driver.patience, 5.0)),
        max_heartbeat_throttle_interval=timedelta(seconds=driver.patience / 3),
        default_heartbeat_throttle_interval=timedelta(seconds=driver.patience / 3),
    )
    try:
        async with worker:
            await until.wait()
    finally:
        await door.close()
