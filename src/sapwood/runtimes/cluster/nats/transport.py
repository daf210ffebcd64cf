"""Exchanges with the other nodes of a cluster, over NATS.

Each life of a node has a unique id, and each connection a subject below it: what was
meant for a process that is gone reaches no process, whichever has its name now.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import itertools
import logging
from asyncio import Task
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from sapwood.kernel.aio import rest_of
from sapwood.kernel.ports.placement import NotBegun
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.nats.nats_connection import heard
from sapwood.runtimes.cluster.nats.reliable_stream import Pipe, farewell
from sapwood.runtimes.workers.link import Link
from sapwood.runtimes.workers.links import Links
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

VERSION = "sapwood nodes 1"
PATIENCE = 3.0
"""Seconds that a node is given to answer the first word."""
SLACK = 1024
"""Bytes that a message may need beside its content."""


class Hello(msgspec.Struct, array_like=True):
    """The first word, and the answer to it."""

    version: str
    node: str
    subject: str
    """The address on which the sender listens for this connection."""


_read_hello = msgspec.msgpack.Decoder(Hello).decode


class NatsTransport(Links):
    """Speaks with the other nodes, and listens to them."""

    def __init__(
        self, here: str, connection: Any, names: Names, timings: Timings = DEFAULTS, random: Random = SYSTEM
    ) -> None:
        super().__init__()
        self._timings = timings
        self._here = here
        self._nats = connection
        self._names = names
        self._mine = f"{names.speech(here)}.{new_id(random, 8)}"
        """Where this life of the node listens; each connection at a number below it."""
        self._numbers = itertools.count(1)
        self._pipes: dict[str, Pipe] = {}
        """By the number of the connection."""
        self._subscriptions: list[Any] = []
        self._listening: asyncio.Lock | None = None
        self._writing: Task[None] | None = None
        self._unwritten: list[tuple[str, bytes, str]] = []
        self._dead = False

    async def listen(self) -> None:
        """Answer the other nodes from now on."""
        await self._hear()
        hello = await self._nats.subscribe(f"{self._names.speech(self._here)}.hello", cb=self._greeted)
        self._subscriptions.append(hello)
        await heard(self._nats)

    async def _hear(self) -> None:
        """Subscribe to the packets of connections."""
        if self._listening is None:
            self._listening = asyncio.Lock()
        async with self._listening:
            if not self._subscriptions:
                self._subscriptions.append(await self._nats.subscribe(f"{self._mine}.>", cb=self._heard))

    async def _connect(self, node: str) -> Link:
        import nats.errors

        await self._hear()
        number = str(next(self._numbers))
        hello = Hello(VERSION, self._here, f"{self._mine}.{number}")
        try:
            answer = await self._nats.request(
                f"{self._names.speech(node)}.hello", msgspec.msgpack.encode(hello), timeout=PATIENCE
            )
        except nats.errors.NoRespondersError:
            raise NotBegun(f"{_shown(node)} is not reachable.") from None
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise NotBegun(f"{_shown(node)} does not answer: {error or type(error).__name__}") from None
        told = _read_hello(answer.data)
        if told.version != VERSION:
            raise NotBegun(f"{_shown(node)} runs another version.")
        link = Link(asyncio.get_running_loop(), _shown(node), None, lambda _: None)
        self._pipe(number, link, told.subject)
        return link

    async def _greeted(self, message: Any) -> None:
        """Another node wants to speak with this one."""
        number = str(next(self._numbers))
        try:
            hello = _read_hello(message.data)
        except msgspec.DecodeError:
            log.warning("handshake refused: the peer is not a node of this cluster")
            return
        answer = Hello(VERSION, self._here, f"{self._mine}.{number}")
        if hello.version == VERSION:
            link = Link(asyncio.get_running_loop(), _shown(hello.node), self._answers, self._incoming.discard)
            link.is_greeted = True
            self._incoming.add(link)
            self._pipe(number, link, hello.subject)
        self._publish(message.reply, msgspec.msgpack.encode(answer), "")

    def _pipe(self, number: str, link: Link, there: str) -> None:
        here = f"{self._mine}.{number}"

        def publish(packet: bytes, which: int) -> None:
            self._publish(there, packet, f"{here}.{which}" if which else "")

        def forget() -> None:
            self._pipes.pop(number, None)

        largest = self._nats.max_payload - SLACK
        self._pipes[number] = Pipe(asyncio.get_running_loop(), link, publish, largest, forget, self._timings)

    async def _heard(self, message: Any) -> None:
        number, _, which = message.subject[len(self._mine) + 1 :].partition(".")
        pipe = self._pipes.get(number)
        if which:  # the reply subject of one packet: an empty reply is the server's, if there is no listener
            if pipe is not None:
                if message.data:
                    pipe.hear(message.data)
                else:
                    pipe.nobody(int(which))
        elif pipe is not None:
            pipe.hear(message.data)
        elif message.reply and not self._dead:
            self._publish(message.reply, farewell(), "")

    def _publish(self, subject: str, packet: bytes, reply: str) -> None:
        """Send a message without waiting; after those before it."""
        if self._dead:
            return
        if self._writing is not None:
            self._unwritten.append((subject, packet, reply))
            return
        writing: Coroutine[Any, Any, None] = self._nats.publish(subject, packet, reply)
        try:
            waits_for: Any = writing.send(None)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - what did not leave is sent again, or the other end is gone
            log.debug("sending a packet failed: %s", error)
            return
        self._writing = asyncio.get_running_loop().create_task(self._write_on(writing, waits_for))

    async def _write_on(self, writing: Coroutine[Any, Any, None], waits_for: Any) -> None:
        try:
            await rest_of(writing, waits_for)
            while self._unwritten:
                waiting, self._unwritten = self._unwritten, []
                for one in waiting:
                    await self._nats.publish(*one)
        except Exception as error:  # noqa: BLE001 - as above
            log.debug("sending a packet failed: %s", error)
        finally:
            self._writing = None
            rest, self._unwritten = self._unwritten, []
            for one in rest:
                self._publish(*one)

    async def die(self) -> None:
        """End all connections as the end of the process does."""
        self._dead = True
        for pipe in list(self._pipes.values()):
            pipe.cut()
        await super().die()

    async def _end(self, end: Callable[[Link], Any]) -> None:
        await super()._end(end)
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            try:
                await subscription.unsubscribe()
            except Exception as error:  # noqa: BLE001 - the way to the servers may be closed already
                log.debug("receiving a packet failed, still listening: %s", error)


def _shown(node: str) -> str:
    return f"Node {node}"
