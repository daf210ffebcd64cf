"""The worker: does for Temporal what workflows ask for, by asking the server where the agent lives.

It holds nothing. It may be killed, and any number of them may run, on any machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from importlib.metadata import version
from typing import Any, cast

import httpx2
import msgspec
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from sapwood.drivers.temporal.driver import DOOR, TemporalDriver, waits
from sapwood.drivers.temporal.messages import LOOK, NOT_FOUND, STEP, STOP, StepAnswer, StepRequest
from sapwood.drivers.temporal.workflow import WorkWorkflow
from sapwood.errors import InvalidArguments

log = logging.getLogger(__name__)

SILENCE = 30.0
"""Seconds after which a server that says nothing is taken for one that is no more; it says something every second."""
CONNECTING = 5.0
IDLE = 2.0
"""Seconds for which a connection is kept for the next step: less than servers keep theirs."""
LATER = timedelta(seconds=30)
"""The delay between retries at a server that refuses the token, until an operator has corrected it."""
AT_ONCE = 5000
"""Steps that one worker waits for at once: it is the server that does them."""
TERMINATED = "workflow-terminated"
"""Why something is stopped whose workflow an operator has ended."""
ENDED_BY_OTHERS = (WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.TIMED_OUT)
UNKNOWN = (401, 403)
GONE = 404
FINAL = (NOT_FOUND, InvalidArguments.code)
"""What agents say that will not change."""
WELL = 1.0
"""Seconds after which a worker seems to be accepted: one that is not is told at once."""


class StepClient:
    """The way from activities to the agents."""

    def __init__(self, url: str, token: str, find: Callable[[], str] | None = None) -> None:
        self._url = url
        self._find = find
        """Says where the server is now, if it may be somewhere else after it was away."""
        self._is_silent = False
        """Whether the server did not answer when last asked."""
        self._http = httpx2.AsyncClient(
            base_url=_door_of(url),
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(SILENCE, connect=CONNECTING, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=IDLE),
        )

    @activity.defn(name=STEP)
    async def step(self, asked: StepRequest) -> StepAnswer:
        """Have the agent do a step, and wait until it has."""
        try:
            return await self._answer("step", asked)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.not_found:
                with suppress(Exception):
                    if await _is_terminated():  # by an operator, and no other code reports it
                        await self._answer("stop", StepRequest(asked.address, asked.id, reason=TERMINATED))
            raise

    @activity.defn(name=STOP)
    async def stop(self, asked: StepRequest) -> StepAnswer:
        """Have the agent stop a turn or run, and all below it."""
        return await self._answer("stop", asked)

    @activity.defn(name=LOOK)
    async def look(self, asked: StepRequest) -> StepAnswer:
        """Return how a turn or run stands."""
        return await self._answer("look", asked)

    async def _answer(self, what: str, asked: StepRequest) -> StepAnswer:
        heard, answer = 0, None
        try:
            async with self._http.stream("POST", what, json=asdict(asked)) as response:
                self._heard(None)
                if not response.is_success:
                    await response.aread()
                    raise refusal(response)
                async for line in response.aiter_lines():
                    said: dict[str, Any] = json.loads(line)
                    if "status" in said:
                        # It is read to its end, so that the connection can be used again.
                        answer = msgspec.convert(said, StepAnswer)
                        continue
                    heard += 1
                    activity.heartbeat(heard)
        except (httpx2.TransportError, ValueError) as error:
            if answer is None:
                self._heard(error)
                raise _silent(f"The server does not answer: {type(error).__name__}") from None
        if answer is None:
            raise _silent("The server closed the connection before it answered.")
        return answer

    def _heard(self, error: Exception | None) -> None:
        """Log that the server does not answer any more, or does again."""
        if error is not None and not self._is_silent:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            log.warning("server at %s does not answer (%s), retrying", self._url, why)
        elif error is None and self._is_silent:
            log.warning("the server at %s answers again", self._url)
        self._is_silent = error is not None
        if error is not None and self._find is not None and (now := self._find()) != self._url:
            log.warning("server moved to %s", now)
            self._url, self._http.base_url = now, _door_of(now)

    async def close(self) -> None:
        await self._http.aclose()


def _door_of(url: str) -> str:
    return url.rstrip("/") + DOOR


async def _is_terminated() -> bool:
    """Return whether Temporal does not know this activity because it has ended the workflow.

    Nor does it know one that it has given up because it did not hear of it for a while: then another is under way.
    """
    info = activity.info()
    assert info.workflow_id is not None
    workflow = activity.client().get_workflow_handle(info.workflow_id)  # its last run: it may have been reset
    return (await workflow.describe()).status in ENDED_BY_OTHERS


def _silent(text: str) -> ApplicationError:
    """Return what Temporal is to make of a server that says nothing: it asks again."""
    return ApplicationError(text, type="unavailable", category=ApplicationErrorCategory.BENIGN)


def refusal(response: httpx2.Response) -> ApplicationError:
    """Return what Temporal is to make of a refusal, by who has to act."""
    try:
        found: Any = response.json()
    except ValueError:
        found = None
    said = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    code, text = str(said.get("code") or response.status_code), str(said.get("error") or response.reason_phrase)
    if code in FINAL:
        log.warning("step refused permanently: %s Check that no other server uses this Temporal queue.", text)
        return ApplicationError(text, type=code, non_retryable=True, category=ApplicationErrorCategory.BENIGN)
    if response.status_code in UNKNOWN:
        log.error(
            "server refused the worker's token url=%s. Start the server and the worker with the same token.",
            response.url,
        )
    elif response.status_code == GONE:
        log.error(
            "no driver endpoint at %s. Check that the URL belongs to a server of an App(driver=TemporalDriver(…)).",
            response.url,
        )
    # A proxy in between may refuse, too: that passes, and ends nothing.
    again = LATER if response.is_client_error else None
    return ApplicationError(text, type=code, next_retry_delay=again, category=ApplicationErrorCategory.BENIGN)


async def work(driver: TemporalDriver, url: str, until: asyncio.Event, find: Callable[[], str] | None = None) -> None:
    """Work for a driver's queue, until told to stop; wait for a Temporal server that is not there yet."""
    door, said = StepClient(url, driver.token, find), ""
    try:
        for wait in waits():
            if until.is_set():
                return
            try:
                await _work(await driver.connect(), driver, door, until)
            except RuntimeError as error:  # all that Temporal's client says of a server it cannot work for
                if str(error) != said:
                    where = f"{driver.target}, namespace {driver.namespace!r}"
                    why = str(error).rstrip(".")
                    log.warning("connecting to Temporal at %s failed, retrying: %s", where, why)
                said = str(error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(until.wait(), wait)
    finally:
        await door.close()


async def _work(client: Client, driver: TemporalDriver, door: StepClient, until: asyncio.Event) -> None:
    worker = Worker(
        client,
        task_queue=driver.queue,
        workflows=[WorkWorkflow],
        activities=[door.step, door.stop, door.look],
        workflow_runner=UnsandboxedWorkflowRunner(),  # ours, and the stored histories show what would change it
        build_id=f"sapwood {version('sapwood')}",  # the usual one takes a second: a hash of all code that is loaded
        max_concurrent_activities=AT_ONCE,
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=min(driver.patience, 5.0)),
        max_heartbeat_throttle_interval=timedelta(seconds=driver.patience / 3),
        default_heartbeat_throttle_interval=timedelta(seconds=driver.patience / 3),
    )
    where = ("worker polls the queue %r of Temporal at %s", driver.queue, driver.target)
    saying = asyncio.get_running_loop().call_later(WELL, log.info, *where)
    try:
        async with worker:
            await until.wait()
    finally:
        saying.cancel()
