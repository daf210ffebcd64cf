"""One remote run, as its transport carries it: with timeouts, and with errors that say whether to retry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Protocol, cast

from sapwood.errors import Refused, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.runs.remote.transport import (
    Memo,
    MemoTransport,
    Position,
    QuestionTransport,
    RemoteAnswer,
    RemoteEvent,
    RemoteStatus,
    RunTransport,
)


class RemoteRun:
    """One run of a remote agent. Every call raises `Unavailable` if the connection fails or is silent for too long."""

    def __init__(self, transport: RunTransport, session: str, actor: Actor) -> None:
        self._transport, self._session, self._actor = transport, session, actor
        self._timeout = actor.host.timings.remote_silence_timeout

    async def start(self, input: Any) -> RemoteStatus:
        """Start it; one that is known continues, or has ended."""
        async with self._request():
            return await self._transport.start(self._session, input)

    async def status(self) -> RemoteStatus:
        """Return its status."""
        async with self._request():
            return await self._transport.status(self._session)

    async def cancel(self, reason: str) -> RemoteStatus:
        """Cancel it."""
        async with self._request():
            return await self._transport.cancel(self._session, reason)

    async def answer(self, answer: RemoteAnswer) -> bool:
        """Answer a question of it. Returns `False` if the question is not open any more."""
        if not isinstance(self._transport, QuestionTransport):
            raise Refused("This question cannot be answered from here: the transport has no method `answer`.")
        async with self._request():
            return await self._transport.answer(self._session, answer)

    @asynccontextmanager
    async def _request(self) -> AsyncGenerator[None, None]:
        """Make one request in this block, while the node holds its lease."""
        await self._actor.until_leased()
        with _retryable():
            async with asyncio.timeout(self._timeout):
                yield

    async def stream(self, after: Position) -> AsyncGenerator[Sequence[RemoteEvent], None]:
        """Yield its events after a position."""
        stream = self._transport.stream(self._session, after)
        try:
            while True:
                with _retryable():
                    try:
                        async with asyncio.timeout(self._timeout):
                            batch = await anext(stream)
                    except StopAsyncIteration:
                        return
                yield batch
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()


class RemoteAgent(Protocol):
    """An agent that stands for one of another server. `RemoteSubAgent` is one."""

    url: str

    def transport(self) -> RunTransport: ...


@asynccontextmanager
async def open_run(actor: Actor, agent: RemoteAgent, session: str, memo: Memo) -> AsyncGenerator[RemoteRun, None]:
    """Open the transport of an agent that stands for a remote one, for one run."""
    transport = agent.transport()
    if isinstance(transport, MemoTransport):
        transport.recall(memo)
    async with AsyncExitStack() as stack:
        if isinstance(transport, AbstractAsyncContextManager):
            await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", transport))
        yield RemoteRun(transport, session, actor)


@contextmanager
def _retryable() -> Generator[None, None, None]:
    """Raise `Unavailable` for what the standard library raises if a connection fails."""
    try:
        yield
    except (ConnectionError, TimeoutError) as error:
        why = str(error) or ("nothing arrived in time" if isinstance(error, TimeoutError) else type(error).__name__)
        raise Unavailable(f"The remote agent cannot be reached: {why}.") from error
