"""Nodes in one process, over real NATS, whose shards go from one to the other by command.

They share a data folder: a tree is closed before it moves, as it is in a cluster.
"""

from __future__ import annotations

import asyncio
from asyncio import Queue
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.machine import patience

from sapwood import App
from sapwood.address import Address
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.shard_handover import ShardHandover
from sapwood.kernel.ports.log import Epoch
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.runtimes.cluster.base.layout import Layout, Names
from sapwood.runtimes.cluster.nats.nats_connection import connect
from sapwood.runtimes.cluster.nats.transport import NatsTransport
from sapwood.runtimes.local import LocalRuntime
from sapwood.settings import Settings
from sapwood.storage.files import FolderLock


class Client:
    """Speaks ASGI with an app, as a server does."""

    def __init__(self, app: App, path: str, id: str) -> None:
        self.up: Queue[dict[str, Any]] = Queue()
        self.down: Queue[Any] = Queue()
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": f"_pk={id}".encode(),
            "headers": [],
            "subprotocols": [],
        }
        self.task = asyncio.create_task(app(scope, self.up.get, self.down.put))
        self.up.put_nowait({"type": "websocket.connect"})

    def say(self, text: str) -> None:
        self.up.put_nowait({"type": "websocket.receive", "text": text})

    async def hear(self) -> Any:
        """Return the next frame of the agent's own, or the close."""
        while True:
            message = await asyncio.wait_for(self.down.get(), patience())
            if message["type"] == "websocket.close":
                return message
            if message["type"] == "websocket.send" and not message.get("text", "").startswith("{"):
                return message["text"]

    async def leave(self) -> None:
        self.up.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(self.task, patience())


class Owners:
    """Who has which shard. None: it is on its way."""

    def __init__(self, first: str) -> None:
        self.of: dict[int, str | None] = dict.fromkeys(range(SHARDS), first)
        self.epochs: dict[int, int] = dict.fromkeys(range(SHARDS), 1)
        self.wrong = 0


class ByCommand:
    """One node's view of it; what it believes of others it learns late."""

    def __init__(self, here: str, owners: Owners, names: Sequence[str]) -> None:
        self.here = here
        self._owners = owners
        self._names = names
        self._believed: dict[int, str] = {}

    def is_here(self, root: Address) -> bool:
        return self._owners.of[shard_of(root)] == self.here

    def fixed_owner(self, root: Address) -> str | None:
        return None

    async def owner(self, root: Address) -> str:
        shard = shard_of(root)
        if self.is_here(root):
            return self.here
        if shard not in self._believed:
            while (owner := self._owners.of[shard]) is None:  # noqa: ASYNC110 - a test's own
                await asyncio.sleep(0.002)
            self._believed[shard] = owner
        return self._believed[shard]

    def epoch_of(self, shard: int) -> Epoch | None:
        return Epoch(self._owners.epochs[shard], 0)

    def heard_wrong(self, shard: int) -> None:
        self._owners.wrong += 1
        self._believed.pop(shard, None)

    async def until_moved(self, shard: int, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def everybody(self) -> Iterable[str]:
        return self._names

    def pool_of(self, node: str) -> str:
        return ""

    def lock_of(self, node: str) -> str:
        return f"lock-{node}"


class Side:
    """What one of the nodes has."""

    pool = ""
    restarts = 0

    def __init__(self, directory: ByCommand, connection: Any) -> None:
        self.directory = directory
        self.part = f"-{directory.here}"
        self.connection = connection
        self.transport = NatsTransport(directory.here, connection, Names("moving", Layout()))

    def hold(self, folder: Path) -> FolderLock:
        return FolderLock(folder, self.directory.lock_of(self.directory.here))

    async def listen(self) -> None:
        await self.transport.listen()

    async def hang_up(self) -> None:
        await self.transport.close()


class Cluster:
    """Some nodes."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self.apps: dict[str, App] = {}
        self.sides: dict[str, Side] = {}

    def node(self, name: str) -> Node:
        return self.apps[name].node

    async def move(self, root: Address, to: str) -> None:
        """Hand the tree's shard over."""
        shard = shard_of(root)
        old = self.owners.of[shard]
        assert old is not None
        if old == to:
            return
        self.owners.of[shard] = None
        await self.holding(old).let_go({shard})
        self.node(to).held.add(shard)
        self.node(to).sockets.gained({shard})
        self.owners.epochs[shard] += 2
        self.owners.of[shard] = to

    async def until_followed(self, name: str, sockets: int) -> None:
        """Return when so many sockets have followed their trees to a node."""
        async with asyncio.timeout(patience()):
            while self.node(name).sockets.count < sockets:  # noqa: ASYNC110 - a test's own
                await asyncio.sleep(0.002)

    def holding(self, name: str) -> ShardHandover:
        nothing: Any = None
        return ShardHandover(self.node(name), nothing)

    async def die(self, name: str, heir: str) -> None:
        """End a node as the end of its process does; another takes what it had."""
        await self.sides[name].transport.die()
        await self.node(name).die()
        for shard, owner in self.owners.of.items():
            if owner == name:
                self.owners.of[shard] = heir
                self.node(heir).held.add(shard)


@asynccontextmanager
async def cluster(
    urls: str, folder: Path, names: Sequence[str], agents: Sequence[type], **settings: Any
) -> AsyncGenerator[Cluster, None]:
    """Run nodes of these names; the first has every tree."""
    owners = Owners(names[0])
    made = Cluster(owners)
    async with AsyncExitStack() as stack:
        for name in names:
            connection = await connect(urls, name)
            stack.push_async_callback(connection.close)
            side = Side(ByCommand(name, owners, names), connection)
            told = Settings(data=str(folder), **settings)
            app = App(agents=list(agents), settings=told, runtime=LocalRuntime(told, share=side))
            made.apps[name], made.sides[name] = app, side
            await stack.enter_async_context(app)
            app.node.held.update(range(SHARDS) if name == names[0] else ())
        yield made
