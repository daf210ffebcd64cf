"""A socket that reconnects: when it is lost it is opened again, until the server refuses for good.

A sender waits until the server has greeted the socket. A message sent on a socket that was lost
afterwards is not sent again, because it may have arrived; unless the server reported that it
has not started anything that it did not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import Future, Task
from collections.abc import Awaitable, Callable
from typing import Protocol

from sapwood.address import Address
from sapwood.errors import NotFound, Refused, SapwoodError, Unavailable
from sapwood.kernel.actors.sockets import RESTARTING, SETTLED
from sapwood.kernel.marshal.exceptions import again
from sapwood.kernel.ports.placement import NotBegun
from sapwood.timings import DEFAULTS, Timings
from sapwood.wire import final_errors

log = logging.getLogger(__name__)

LAST_WORDS = 1.0
"""Seconds that frames without a waiter have to leave before the socket is closed."""
FIRST_DELAY = 0.25
"""Seconds until a connection that had lasted is tried again for the first time, at most."""
POLICY = 1008
NO_SUCH_AGENT = 4404


def backoff(attempt: int) -> float:
    """Return how many seconds to wait before the n-th attempt to reconnect; what the npm clients wait."""
    return min(3.0 * 1.3 ** min(attempt - 1, 10), 10.0)


def is_final(code: int) -> bool:
    """Return whether a server that closes with this code means: do not come back."""
    return code == POLICY or 4000 <= code <= 4999


class Socket(Protocol):
    """One open WebSocket."""

    @property
    def is_open(self) -> bool: ...

    async def send(self, message: str | bytes) -> None:
        """Raises OSError if it is closed."""
        ...

    async def receive(self) -> str | bytes | None:
        """Return the next message; None if the socket is closed."""
        ...

    @property
    def closed(self) -> tuple[int, str]:
        """The code and the reason it was closed with."""
        ...

    async def close(self) -> None: ...


class Listener(Protocol):
    """Who is told what happens."""

    def opened(self) -> None:
        """There is a new socket."""
        ...

    def heard(self, message: str | bytes) -> None:
        """A message came."""
        ...

    def lost(self, error: SapwoodError) -> None:
        """What was sent and is not answered will not be."""
        ...

    def ended(self, error: SapwoodError | None) -> None:
        """There will be no socket any more; None if that is what this side wanted."""
        ...


class Link:
    """The way to one agent on a server."""

    def __init__(
        self,
        address: Address,
        dial: Callable[[], Awaitable[Socket]],
        listener: Listener,
        delay: Callable[[int], float],
        timings: Timings = DEFAULTS,
    ) -> None:
        self._address = address
        self._dial = dial
        self._listener = listener
        self._delay = delay
        self._steady_after = timings.client_steady_after
        self._greeted: Future[Socket] = asyncio.get_running_loop().create_future()
        """The socket to send on; fails when there will be none any more."""
        self._socket: Socket | None = None
        self._task: Task[None] | None = None
        self._posting: set[Task[None]] = set()
        self.ended = False
        self.problem = "no attempt yet"
        """Why there is no connection, for callers that waited for one in vain."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    @property
    def is_greeted(self) -> bool:
        return self._greeted.done() and self._greeted.exception() is None and self._greeted.result().is_open

    def greeted(self) -> None:
        """The server has said what it says first: from now on it is sent to."""
        if self._socket is not None and not self._greeted.done():
            self._greeted.set_result(self._socket)

    async def ready(self) -> Socket:
        """Return a socket that was greeted, when there is one; raise why there will be none any more."""
        while True:
            try:
                socket = await asyncio.shield(self._greeted)
            except SapwoodError as error:
                raise again(error) from None
            if socket.is_open:
                return socket
            self._renew()

    async def send(self, socket: Socket, frame: str | bytes) -> None:
        try:
            await socket.send(frame)
        except OSError as error:
            raise lost_by(*socket.closed) from error

    def post(self, socket: Socket, frame: str) -> None:
        """Send a message without waiting for it, if the socket is open."""

        async def posting() -> None:
            with contextlib.suppress(OSError):
                await socket.send(frame)

        if socket.is_open:
            task = asyncio.create_task(posting())
            self._posting.add(task)
            task.add_done_callback(self._posting.discard)

    async def _run(self) -> None:
        attempt = 0
        loop = asyncio.get_running_loop()
        try:
            while not self.ended:
                uptime = await self._live_once(loop)
                if self.ended:
                    return
                attempt = 1 if uptime >= self._steady_after else attempt + 1
                delay = self._delay(attempt)
                if uptime >= self._steady_after:  # most likely the server was replaced, and is there again
                    delay = min(delay, FIRST_DELAY)
                log.info("not connected address=%s (%s), next attempt in %.1f s", self._address, self.problem, delay)
                await asyncio.sleep(delay)
        except SapwoodError as error:
            self._end(error, told=error)
        except Exception as error:
            log.exception("connection failed address=%s", self._address)
            failed = Unavailable(f"The connection to {self._address} failed: {error}")
            self._end(failed, told=failed)

    async def _live_once(self, loop: asyncio.AbstractEventLoop) -> float:
        """Connect, and stay until the socket is lost; return for how long it lasted."""
        try:
            socket = await self._dial()
        except (OSError, TimeoutError) as error:
            self.problem = str(error) or type(error).__name__
            return 0.0
        began = loop.time()
        self._socket = socket
        try:
            self._listener.opened()
            while (message := await socket.receive()) is not None:
                self._listener.heard(message)
        finally:
            self._socket = None
            await socket.close()
        code, reason = socket.closed
        self.problem = closed_text(code, reason)
        if is_final(code):
            final = self._final(code, reason)
            self._end(final, told=final)
        else:
            self._renew()
            self._listener.lost(lost_by(code, reason))
        return loop.time() - began

    def _final(self, code: int, reason: str) -> SapwoodError:
        if (error := final_errors.from_close(code, reason)) is not None:
            return error
        text = f"The server refused the connection to {self._address}: {reason or 'no reason given'} ({code})."
        return NotFound(text, path=self._address.segments) if code == NO_SUCH_AGENT else Refused(text)

    def _renew(self) -> None:
        if self._greeted.done() and not self.ended:
            self._greeted = asyncio.get_running_loop().create_future()

    def _end(self, error: SapwoodError, *, told: SapwoodError | None) -> None:
        if self.ended:
            return
        self._renew()
        self.ended = True
        self._greeted.set_exception(error)
        self._greeted.exception()  # known, whether or not anybody waits
        self._listener.lost(error)
        self._listener.ended(told)

    async def close(self) -> None:
        """Close the socket. Pending calls fail with "Connection closed"."""
        if self._posting:
            await asyncio.wait(self._posting, timeout=LAST_WORDS)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._end(Unavailable("Connection closed."), told=None)


def lost_by(code: int, reason: str) -> Unavailable:
    """Return what those get who wait for an answer that will not come."""
    kind = NotBegun if (code, reason) == (RESTARTING, SETTLED) else Unavailable
    return kind(closed_text(code, reason))


def closed_text(code: int, reason: str) -> str:
    return f"Connection closed ({code}{f': {reason}' if reason else ''})."
