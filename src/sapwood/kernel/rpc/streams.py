"""Async generators that run in another agent.

The generator runs in a task of its own agent and fills a bounded buffer; every item is
copied and passes the gate. A reader that stops, by breaking off, being cancelled or
dropping the iterator, closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import CancelledError, Future, Task
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from sapwood.errors import SapwoodError, UsageError
from sapwood.kernel.actors.actor import CANCELLED_INSIDE, THE_END, Actor
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.exceptions import again, crossing, describe

BUFFER = 16


class Channel:
    """The buffer between a generator and its reader."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.items: deque[Any] = deque()
        self.end: Future[object] = loop.create_future()
        """Done when no further item will come; its exception is what the reader gets."""
        self.end.add_done_callback(self._ended)
        self.closed = False
        self._reader: Future[None] | None = None
        self._room: Future[None] | None = None
        self._source: tuple[Actor, Call] | None = None

    def _ended(self, end: Future[object]) -> None:
        if not end.cancelled():
            end.exception()
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def start(self, actor: Actor, call: Call, generator: AsyncGenerator[Any, None], copy: Callable[[Any], Any]) -> None:
        actor.check_use()
        call.reply = self.end
        actor.spawn(call, self._pump(actor, call, generator, copy))
        self._source = (actor, call)
        if call.deadline is not None:
            actor.watch_deadline(call, call.deadline, self.end)

    async def _pump(
        self, actor: Actor, call: Call, generator: AsyncGenerator[Any, None], copy: Callable[[Any], Any]
    ) -> None:
        call.enter()
        try:
            try:
                await actor.until_leased(call)
                async for item in generator:
                    copied = copy(item)
                    await actor.leave()
                    await self.put(copied)
                await actor.leave()
            finally:
                # In this task and its context, whether it is parked at a yield or was cancelled inside.
                await generator.aclose()
            if not self.end.done():
                self.end.set_result(None)
        except CancelledError:
            if self.closed or self.end.done():
                self.end.cancel()
                raise
            if actor.dropped is not None:
                self.end.set_exception(again(actor.dropped))  # cut off is not the same as finished
                raise
            self._fail(actor, RuntimeError(CANCELLED_INSIDE))
        except THE_END:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            self._fail(actor, error)
        finally:
            actor.finished(call)

    def _fail(self, actor: Actor, error: BaseException) -> None:
        actor.last_error = describe(error)
        if not self.end.done():
            self.end.set_exception(crossing(error, actor.address.segments, actor.limits.payload_bytes))

    async def put(self, item: Any) -> None:
        """Take an item; wait while there is no room for it."""
        while len(self.items) >= BUFFER:
            self._room = self.loop.create_future()
            await self._room
        self.items.append(item)
        self._wake()

    @property
    def is_being_read(self) -> bool:
        return self._reader is not None and not self._reader.done()

    async def next(self) -> Any:
        while not self.items:
            if self.end.done():
                if not self.end.cancelled() and (error := self.end.exception()) is not None:
                    raise again(error) if isinstance(error, SapwoodError) else error
                raise StopAsyncIteration
            self._reader = self.loop.create_future()
            await self._reader
        item = self.items.popleft()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return item

    def close(self) -> Task[None] | None:
        """Stop the generator; return its task while it still unwinds."""
        self.closed = True
        self.items.clear()
        if self._source is None:
            return None
        actor, call = self._source
        return actor.cancel(call)


class Readable(Protocol):
    """Where a stream is read from."""

    loop: asyncio.AbstractEventLoop
    end: Future[object]
    closed: bool

    @property
    def is_being_read(self) -> bool: ...

    async def next(self) -> Any: ...

    def close(self) -> Task[None] | None: ...


R = TypeVar("R", bound=Readable)


class Stream(AsyncIterator[Any]):
    """What a stub returns for an async generator: read it with ``async for``."""

    def __init__(self, channel: R, begin: Callable[[R], Coroutine[Any, Any, None]]) -> None:
        # The generator's task knows the channel, never this object: so letting go of it can be noticed.
        self._channel: Readable = channel
        self._begin: Callable[[Any], Coroutine[Any, Any, None]] | None = begin

    def __await__(self) -> Generator[Any, None, None]:
        raise UsageError("This method returns a stream: read it with `async for`, without await.")

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        if self._channel.closed:
            raise StopAsyncIteration
        if self._channel.is_being_read:
            raise UsageError("A stream can be read by one task at a time.")
        try:
            if self._begin is not None:
                begin, self._begin = self._begin, None
                await begin(self._channel)
            return await self._channel.next()
        except BaseException:
            self._channel.close()
            raise

    async def aclose(self) -> None:
        """Stop reading; return when the generator has unwound."""
        self._begin = None
        task = self._channel.close()
        if task is not None:
            await asyncio.wait({task})

    def __del__(self) -> None:
        channel = self._channel
        if not channel.closed and not channel.end.done():
            with contextlib.suppress(RuntimeError):  # the loop is gone, and the generator with it
                channel.loop.call_soon_threadsafe(channel.close)
