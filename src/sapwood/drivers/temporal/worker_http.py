"""Where workers come in: `POST /_driver/step`, `stop` and `look`, with the token they share with the app.

With several processes, a worker asks whichever accepts its request; that one has the owner
of the agent answer.

An answer is lines of JSON. While a step is done there is a line now and then, so that the worker knows that the step is
still running; the last line says how it stands.
"""

from __future__ import annotations

import asyncio
import hmac
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from sapwood.address import Address
from sapwood.drivers.temporal.messages import StepAnswer, StepRequest
from sapwood.drivers.temporal.ports import Driver, PacedPart
from sapwood.errors import Aborted, InvalidArguments, NotFound, Quarantined, SapwoodError, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.transport import Transport
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.execution.contract import bounded_reason
from sapwood.runs.execution.driver import RUNNING
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.http.events_http import OpenStreams
from sapwood.runs.tables.runs_table import HARD
from sapwood.web.asgi_types import ASGI, Receive, Scope, Send
from sapwood.web.errors import status_of
from sapwood.web.handoff import Handoff
from sapwood.web.origins import cross_origin_refusal
from sapwood.web.proxy import answer_relayed, relay

DRIVE = "drive"
BEAT = 1.0
"""Seconds between two signs of life, unless a worker asks for shorter ones."""
BEGINNING = 10.0
"""Seconds to wait for a turn or run that is about to continue."""
AT_ONCE = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""What has those in between hand on each line: they are signs of life."""


class WorkerHttp:
    """Answers workers."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._token = f"Bearer {driver.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        given = request.headers.get("authorization", "").encode("latin-1")
        if (refused := cross_origin_refusal(request, self._driver.node.settings)) is not None:
            await refused(scope, receive, send)
            return
        if not hmac.compare_digest(given, self._token):
            response: Response = JSONResponse(
                {"error": "This request needs the driver's token.", "code": "unauthorized"}, 401
            )
        else:
            response = await self._answered(self._read(request))
        await response(scope, receive, send)

    def answer_others(self, transport: Transport) -> None:
        """Answer also what other processes were asked about agents of this one."""
        answer_relayed(transport, DRIVE, self._asked_by_another)

    def _asked_by_another(self, message: bytes) -> ASGI:
        what, asked = msgspec.msgpack.decode(message, type=tuple[str, StepRequest])

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await (await self._answered(self._do(what, asked)))(scope, receive, send)

        return answer

    async def _read(self, request: Request) -> Response:
        what = request.url.path.rpartition("/")[2]
        if request.method != "POST" or what not in ("step", "stop", "look"):
            return JSONResponse({"error": f"Unknown worker request {what!r}."}, 404)
        asked = msgspec.convert(await request.json(), StepRequest)
        root, node = Address.parse(asked.address).root, self._driver.node
        if node.far is None or node.owns(root):
            return await self._do(what, asked)
        return Handoff(partial(relay, node.far.open(DRIVE, root, msgspec.msgpack.encode((what, asked)))))

    async def _do(self, what: str, asked: StepRequest) -> Response:
        address = Address.parse(asked.address)
        if what == "step":
            found = await self._found(address, asked.id)
            answers = found.step(asked.step) if not isinstance(found, StepAnswer) else found
            return StreamingResponse(self._lines(answers), media_type="application/x-ndjson", headers=AT_ONCE)
        if what == "stop":
            await self.stop(address, asked.id, bounded_reason(asked.reason))
        return JSONResponse(asdict(await self._look(address, asked.id)))

    async def _answered(self, answer: Awaitable[Response]) -> Response:
        try:
            return await answer
        except (ValueError, msgspec.ValidationError) as error:
            return _refused(InvalidArguments(f"Malformed worker request: {error}"))
        except SapwoodError as error:
            return _refused(error)

    async def _lines(self, answer: StepAnswer | Future[StepAnswer]) -> AsyncIterator[bytes]:
        if isinstance(answer, Future):
            beat, streams = min(BEAT, self._driver.patience / 4), self._driver.node.shared(OpenStreams)
            reading = _Waiting(answer.get_loop().create_future())
            streams.readers.add(reading)
            try:
                while not answer.done() and not reading.ended.done():
                    await asyncio.wait({answer, reading.ended}, timeout=beat, return_when=asyncio.FIRST_COMPLETED)
                    if not answer.done():
                        yield b"{}\n"
                if not answer.done() or answer.exception() is not None:
                    return  # the worker asks again
                answer = answer.result()
            finally:
                streams.readers.discard(reading)
        yield msgspec.json.encode(answer) + b"\n"

    async def _found(self, address: Address, id: str) -> PacedPart | StepAnswer:
        """Return the pace of a turn or run that is executed now, or its status if it cannot be."""
        driver, key = self._driver, (str(address), id)
        until = asyncio.get_running_loop().time() + BEGINNING
        while (pace := driver.paces.get(key)) is None:
            answer = await self._look(address, id)
            if answer.status != RUNNING or answer.waits:
                return answer
            if key in driver.paces:
                continue
            if (left := until - asyncio.get_running_loop().time()) <= 0:
                raise Unavailable(f"{address} has not resumed {id!r} yet.")
            changed: Future[None] = asyncio.get_running_loop().create_future()
            driver.changed.add(changed)
            await asyncio.wait({changed}, timeout=min(left, 1.0))
            driver.changed.discard(changed)
        return pace

    async def _look(self, address: Address, id: str) -> StepAnswer:
        """Return how a turn or run stands; `NotFound` if there is none."""
        try:
            actor = await self._reach(address)
        except Aborted:
            is_over = await self._is_over_above(address, id)
            # If not, it ends or continues when it is opened again, and reports that.
            return StepAnswer("cancelled") if is_over else StepAnswer(RUNNING, waits=True)
        answer: StepAnswer | None = await _done(actor, _stands, actor, id)
        if answer is None:
            raise NotFound(f"{address} has no turn or run {id!r}.", path=address.segments)
        return answer

    async def _is_over_above(self, address: Address, id: str) -> bool:
        """Return whether a run is over for the agent that gave it."""
        if address.parent is None:
            return False
        try:
            parent = await self._reach(address.parent)
        except Aborted:
            return False
        return await _done(parent, _is_over, parent, address.name, id)

    async def stop(self, address: Address, id: str, reason: str) -> None:
        """Have a turn or run be stopped, and all below it."""
        try:
            actor = await self._reach(address)
        except Aborted:
            if await self._is_over_above(address, id):
                return
            raise
        parent = actor.parent
        if parent is not None and await _done(actor, _does_run, actor, id):
            parent = await self._reach(parent.address)
            await _done(parent, _cancel_run, parent, id, reason)
        else:
            await _done(actor, _cancel, actor, id, reason)

    async def _reach(self, address: Address) -> Actor:
        node = self._driver.node
        if not await node.loader.exists(address.root):
            raise NotFound(f"{address.root} does not exist.", path=address.segments)
        if not (await node.loader.load(address)).has(address):
            raise NotFound(f"{address} does not exist.", path=address.segments)
        try:
            return await node.reach(address, None, None)
        except (Aborted, Quarantined, Unavailable):
            raise
        except Exception as error:
            if isinstance(error, NotFound) and not (await node.loader.load(address)).has(address):
                raise
            # The text of its error must not leave the server: it would be kept in histories.
            raise Unavailable(f"{address} is unavailable: {type(error).__name__}.") from None


class _Waiting:
    """A worker that waits for a step: it is let go when the server ends."""

    def __init__(self, ended: Future[None]) -> None:
        self.ended = ended

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _done(actor: Actor, function: Any, *args: Any) -> Any:
    """Do something as a call of an agent."""
    _, reply = actor.handle("driver", function, *args)
    return await reply


async def _stands(actor: Actor, id: str) -> StepAnswer | None:
    worker = actor.of(RunExecutor).worker
    status = worker.stands(id)
    if status is None:
        return None
    return StepAnswer(status, status in ("queued", "waiting") or worker.rests(id), worker.failure(id))


async def _is_over(parent: Actor, child: str, run: str) -> bool:
    row = parent.of(Runs).registry.get(run)
    return row is not None and row.name == child and row.status in HARD


async def _does_run(actor: Actor, id: str) -> bool:
    """Return whether this is a run; a turn that was one, and continues, is none."""
    row = actor.of(RunExecutor).row(id)
    return row is not None and row.status == RUNNING


async def _cancel(actor: Actor, id: str, reason: str) -> None:
    if await _does_run(actor, id):
        actor.of(RunExecutor).cancel(id, reason)
    else:
        actor.of(RunExecutor).worker.cancel(id, reason)


async def _cancel_run(parent: Actor, id: str, reason: str) -> None:
    parent.of(Runs).cancel(id, reason)


def _refused(error: SapwoodError) -> Response:
    text = (
        ("The work was cancelled.") if isinstance(error, Aborted) else str(error)
    )  # not why: it would be kept in histories
    return JSONResponse({"error": text, "code": error.code}, status_of(error))
