"""One connection's talk with an agent: what was asked and not answered yet, the state last heard, messages not read."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any, Protocol
from uuid import uuid4

from sapwood.address import Address, kebab
from sapwood.client.calls import Decoder, RemoteMethod, encode
from sapwood.client.link import Link, Socket
from sapwood.errors import ChildFailed, Refused, SapwoodError, TimedOut, Unavailable
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.call import current, deadline_of
from sapwood.kernel.marshal.exceptions import again
from sapwood.kernel.ports.placement import NotBegun
from sapwood.wire import client_frames, final_errors

log = logging.getLogger(__name__)

KEPT_MESSAGES = 1000
"""Maximum number of unread messages. Above it, the oldest are dropped."""


class Conversation:
    """What a client says to one agent, and hears from it."""

    def __init__(
        self,
        kind: AgentClass,
        address: Address,
        dial: Callable[[], Awaitable[Socket]],
        *,
        id: str,
        timeout: float | None,
        delay: Callable[[int], float],
    ) -> None:
        self.id = id
        self.kind = kind
        self.address = address
        self.name = address.name
        self.agent = kebab(address.type)
        self.link = Link(address, dial, self, delay)
        self._timeout = timeout
        self._waiting: dict[str, PendingRequest] = {}
        self._news = News()
        self._messages: deque[str | bytes] = deque()
        self._dropped = 0
        self._state: Any = None
        self._state_text = b""
        """The state, until the caller first reads it: so what cannot be decoded is an error where it is read."""
        self._states = 0
        self._is_known = False

    def opened(self) -> None:
        self._is_known = False
        if self.kind.overrides("send_protocol_frames"):
            self.link.greeted()  # its agent may send no greeting

    def heard(self, message: str | bytes) -> None:
        frame = client_frames.hear(message) if isinstance(message, str) else None
        match frame:
            case None:
                self._keep_message(message)
            case client_frames.AnswerFrame():
                if (waiting := self._waiting.get(frame.id)) is not None:
                    waiting.answered(frame, self.address)
            case client_frames.Identity():
                self.name, self.agent = frame.name, frame.agent
                self._is_known = True
                if not frame.state_follows:
                    self.link.greeted()
            case client_frames.StateFrame():
                self._know_state(frame.value)
                if self._is_known:
                    self.link.greeted()
            case client_frames.GreetingEnd():
                self.link.greeted()
            case client_frames.StateRefused():
                log.warning("state refused address=%s: %s", self.address, frame.error)

    def lost(self, error: SapwoodError) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.failed(error)

    def ended(self, error: SapwoodError | None) -> None:
        self._news.end(error)

    @cached_property
    def _read_state(self) -> Decoder:
        return Decoder(self.kind.state_type, f"The state of {self.address}")

    def _know_state(self, text: bytes) -> None:
        self._state_text = text
        self._states += 1
        self._news.tell()

    def state(self) -> Any:
        if self._state_text:
            self._state, self._state_text = self._read_state(self._state_text), b""
        return self._state

    async def states(self) -> AsyncGenerator[Any, None]:
        seen = 0
        while True:
            if self._states > seen:
                seen = self._states
                yield self.state()
            elif not await self._news.wait():
                return

    async def set_state(self, state: object) -> None:
        text = encode(state, f"The state of {self.address}")
        call_id = uuid4().hex
        # Known when it is answered, not when it is sent: what others set before is heard before.
        answer = partial(PendingAnswer, lambda _: self._know_state(text), Refused)
        await self._ask(call_id, client_frames.change_state(call_id, text), answer, "set_state")

    def _keep_message(self, message: str | bytes) -> None:
        if len(self._messages) >= KEPT_MESSAGES:
            self._messages.popleft()
            if not self._dropped:
                log.warning("unread messages dropped, oldest first address=%s", self.address)
            self._dropped += 1
        self._messages.append(message)
        self._news.tell()

    async def messages(self) -> AsyncGenerator[str | bytes, None]:
        while True:
            if self._messages:
                yield self._messages.popleft()
            elif not await self._news.wait():
                return

    async def send(self, frame: str | bytes) -> None:
        async with within(self._limit(), lambda: self._late("take a message")):
            await self.link.send(await self.link.ready(), frame)

    async def call(self, method: RemoteMethod, arguments: bytes) -> Any:
        call_id = uuid4().hex
        answer = partial(PendingAnswer, lambda text: method.decode(text) if text else None)
        return await self._ask(call_id, client_frames.call(call_id, method.name, arguments), answer, method.name)

    async def _ask(self, id: str, frame: str, make: Callable[[], PendingAnswer], what: str) -> Any:
        async with within(self._limit(), lambda: self._late(f"answer {what}()")):
            while True:
                try:
                    return await self._ask_once(id, frame, make())
                except NotBegun:
                    pass  # the server stops, and its successor is asked

    async def _ask_once(self, id: str, frame: str, answer: PendingAnswer) -> Any:
        socket: Socket | None = None
        try:
            socket = await self.link.ready()
            self._waiting[id] = answer
            await self.link.send(socket, frame)
            return await answer.value
        finally:
            if self._waiting.pop(id, None) is not None and socket is not None and not answer.has_come:
                self.link.post(socket, client_frames.cancel(id))

    async def stream(self, method: RemoteMethod, arguments: bytes, limit: float | None) -> AsyncGenerator[Any, None]:
        call_id, items = uuid4().hex, Items()
        socket: Socket | None = None
        try:
            async with within(limit, lambda: self._late(f"answer {method.name}()")):
                socket = await self.link.ready()
                self._waiting[call_id] = items
                await self.link.send(socket, client_frames.call(call_id, method.name, arguments))
            while True:
                async with within(limit, lambda: self._late(f"end {method.name}()")):
                    text = await items.next()
                if text is None:
                    return
                yield method.decode(text)
        finally:
            if self._waiting.pop(call_id, None) is not None and socket is not None and not items.ended:
                self.link.post(socket, client_frames.cancel(call_id))

    def _limit(self) -> float | None:
        """Return until when something that begins now has time."""
        limit = deadline_of(current.get())
        if self._timeout is None:
            return limit
        own = asyncio.get_running_loop().time() + self._timeout
        return own if limit is None else min(own, limit)

    def _late(self, what: str) -> TimedOut:
        why = "" if self.link.is_greeted else f" Not connected: {self.link.problem}"
        return TimedOut(f"{self.address} did not {what} in time.{why}", path=self.address.segments)


class PendingRequest(Protocol):
    """Something that was asked and not answered to the end."""

    def answered(self, answer: client_frames.AnswerFrame, address: Address) -> None: ...

    def failed(self, error: SapwoodError) -> None: ...


def _said(answer: client_frames.AnswerFrame, address: Address, kind: type[SapwoodError]) -> SapwoodError:
    text = answer.error or ""
    if answer.code == Unavailable.code:
        return Unavailable(text)
    if (final := final_errors.KINDS.get(answer.code)) is not None:
        return final(text)
    return ChildFailed(text, path=address.segments) if kind is ChildFailed else kind(text)


class PendingAnswer:
    """One answer to come."""

    def __init__(self, read: Callable[[bytes], Any], refusal: type[SapwoodError] = ChildFailed) -> None:
        self.value: Future[Any] = asyncio.get_running_loop().create_future()
        self._read = read
        self._refusal = refusal

    @property
    def has_come(self) -> bool:
        return self.value.done() and not self.value.cancelled()

    def answered(self, answer: client_frames.AnswerFrame, address: Address) -> None:
        if self.value.done():
            return
        if answer.error is not None:
            self.failed(_said(answer, address, self._refusal))
            return
        try:
            self.value.set_result(self._read(answer.value))
        except SapwoodError as error:
            self.failed(error)

    def failed(self, error: SapwoodError) -> None:
        if not self.value.done():
            self.value.set_exception(again(error))
            self.value.exception()  # known, whether or not anybody still waits


class Items:
    """The items of a stream that have come and are not read."""

    def __init__(self) -> None:
        self._items: deque[bytes] = deque()
        self._news = News()
        self.ended = False

    def answered(self, answer: client_frames.AnswerFrame, address: Address) -> None:
        if answer.error is not None:
            self.failed(_said(answer, address, ChildFailed))
            return
        if answer.value:
            self._items.append(answer.value)
        if answer.done:
            self.ended = True
            self._news.end(None)
        else:
            self._news.tell()

    def failed(self, error: SapwoodError) -> None:
        self.ended = True
        self._news.end(error)

    async def next(self) -> bytes | None:
        """Return the next item; None after the last."""
        while not self._items:
            if not await self._news.wait():
                return None
        return self._items.popleft()


class News:
    """Wakes tasks that wait for something new."""

    def __init__(self) -> None:
        self._next: Future[bool] | None = None
        self._error: SapwoodError | None = None
        self._ended = False

    def tell(self) -> None:
        self._wake(True)

    def end(self, error: SapwoodError | None) -> None:
        """End the wait of all tasks: nothing new will come. They get the error, if there is one."""
        if not self._ended:
            self._ended, self._error = True, error
            self._wake(False)

    def _wake(self, more: bool) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(more)

    async def wait(self) -> bool:
        """Return True when there may be something new, False when there never will be again."""
        if not self._ended:
            if self._next is None or self._next.done():
                self._next = asyncio.get_running_loop().create_future()
            if await asyncio.shield(self._next):
                return True
        if self._error is not None:
            raise again(self._error)
        return False


@asynccontextmanager
async def within(limit: float | None, late: Callable[[], TimedOut]) -> AsyncGenerator[None, None]:
    """Raise what `late` returns if the block has not ended by then."""
    timeout = asyncio.timeout_at(limit)
    try:
        async with timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise late() from None
