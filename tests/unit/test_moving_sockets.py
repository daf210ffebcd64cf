"""A socket goes with its tree from node to node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.machine import patience

from sapwood import Agent
from sapwood.kernel.actors.sockets import Socket
from sapwood.kernel.marshal.agent_class import resolve
from sapwood.kernel.marshal.values import pack
from sapwood.types import Address
from sapwood.web.relay_messages import MOVED, TAKEN, OpenSocket, RelayedConnection
from sapwood.web.socket_migration import HeldSocket, PipeEnd, pair
from sapwood.web.socket_sessions import SocketSessions, Taken, TreeMoves
from sapwood.web.target import UrlTarget


class MovingCounter(Agent):
    pass


ROOT = Address.parse("MovingCounter:a")
DOOR = cast("Any", SimpleNamespace(has_user=lambda scope: False))
KEPT = OpenSocket("id", [], "m", "Counter", "/", "", [], None, [], b"", False, True, 0, 1, 0)


class Owners:
    """Whoever runs the tree, one after the other; what each is told of the socket."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[PipeEnd] = asyncio.Queue()
        self.directory = self
        self.told: list[RelayedConnection] = []
        self.waited = 0

    async def until_moved(self, shard: int, seconds: float) -> None:
        self.waited += 1

    def is_here(self, root: Address) -> bool:
        return False

    async def open(self, verb: str, root: Address, message: bytes) -> PipeEnd:
        mine, other = pair()
        other.send(b"")
        self.told.append(msgspec.msgpack.decode(message, type=RelayedConnection))
        self.ends.put_nowait(other)
        return mine

    async def follow(self, root: Address, open: Any) -> PipeEnd:
        return await open()


async def test_a_client_that_was_not_told_that_it_is_connected_connects_where_its_tree_went() -> None:
    owners = Owners()
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    heard: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        heard.append(message)

    said.put_nowait({"type": "websocket.connect"})
    place = UrlTarget(resolve("MovingCounter"), "a", "")
    holding = HeldSocket(DOOR, cast("Any", owners), ROOT, place, {"type": "websocket"}, said.get, send)
    held = asyncio.create_task(holding.hold())
    first = await owners.ends.get()
    assert b"websocket.connect" in (await first.receive() or b"")
    first.send(pack({"type": TAKEN, "count": 1}))
    first.send(pack({"type": MOVED, "socket": msgspec.msgpack.encode(KEPT)}))

    second = await owners.ends.get()

    assert owners.told[1].kept is None
    assert b"websocket.connect" in (await second.receive() or b"")
    second.send(pack({"type": "websocket.accept"}))
    second.send(pack({"type": MOVED, "socket": msgspec.msgpack.encode(KEPT)}))
    third = await owners.ends.get()
    assert owners.told[2].kept == KEPT
    third.end()
    await held
    assert heard == [{"type": "websocket.accept"}]


async def test_whoever_is_sent_on_and_knows_not_where_to_does_not_ask_without_a_pause() -> None:
    owners = Owners()
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(message: Any) -> None:
        raise AssertionError(message)

    place = UrlTarget(resolve("MovingCounter"), "a", "")
    holding = HeldSocket(DOOR, cast("Any", owners), ROOT, place, {"type": "websocket"}, said.get, send)
    held = asyncio.create_task(holding.hold())
    for _ in range(3):
        (await owners.ends.get()).send(pack({"type": MOVED, "socket": b""}))
    (await owners.ends.get()).end()
    await held

    assert owners.waited == 3


async def test_a_client_that_was_let_in_as_its_tree_left_follows_it() -> None:
    node = SimpleNamespace(settings=None, owns=lambda root: False)
    wire = cast("Any", None)
    socket = Socket("id", ROOT, resolve("MovingCounter"), wire, path="/", query="", headers=cast("Any", {}), user=None)
    conversations = SocketSessions(cast("Any", node), cast("Any", None), cast("Any", None))

    async with asyncio.timeout(patience()):
        with pytest.raises(TreeMoves):
            await conversations._next(socket, asyncio.Queue[Any]().get, Taken(1, 0, wire))
