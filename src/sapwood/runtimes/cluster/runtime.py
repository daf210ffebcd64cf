"""A node of a cluster: what it consists of, and in which order that begins and ends."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from sapwood.address import Address
from sapwood.clock import Clock, SystemClock
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.log.records import program
from sapwood.kernel.log.replicated_gate import ReplicatedGate
from sapwood.kernel.log.tree_cache import Keeper, Replicas, ShipperPort
from sapwood.kernel.marshal.agent_class import all_classes
from sapwood.kernel.node.data_folder import TREES
from sapwood.kernel.node.node import Node
from sapwood.kernel.node.rpc_server import RpcServer
from sapwood.kernel.node.shard_handover import ShardHandover
from sapwood.kernel.ports.durability import Gate
from sapwood.kernel.ports.log import Archive, Epoch, FencedLog
from sapwood.kernel.rpc.remote import Peers
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.runtimes.cluster.base.layout import Layout
from sapwood.runtimes.cluster.nats.bootstrap import found
from sapwood.runtimes.cluster.nats.nats_connection import connect, disconnect
from sapwood.runtimes.cluster.ownership.ownership import Ownership
from sapwood.runtimes.local import COPIES, databases_that_fit
from sapwood.settings import Settings
from sapwood.storage.files import Files, FolderLock
from sapwood.storage.migrations import framework
from sapwood.timings import DEFAULTS, Timings

HOST_LETTERS = 40
PACKAGES = ("nats", "obstore")
"""What the extra `cluster` brings."""


async def stay(seconds: float) -> None:
    """Leave nothing: the node owns what it owns for good."""


class Ways(NamedTuple):
    """By what a node may write and answer."""

    epoch_of: Callable[[int], Epoch | None]
    holds_lease: Callable[[], bool]
    fenced: Callable[[Collection[int]], None]
    displaced: Callable[[], str | None] = lambda: None
    pass_on: Callable[[int, str, int], bool] = lambda shard, owner, number: False
    leave: Callable[[float], Awaitable[None]] = stay
    status: Callable[[], dict[str, Any]] = lambda: {"nodes": [], "without_owner": []}

    @classmethod
    def of(cls, owners: Ownership) -> Self:
        """Return those of a node that takes its part of the shards."""
        return cls(
            owners.epoch_of,
            owners.holds_lease,
            owners.fenced,
            owners.displaced,
            owners.pass_on,
            owners.leave,
            owners.status,
        )


class NodeCluster:
    """The cluster, as one of its nodes sees it."""

    def __init__(self, ways: Ways, gate: ReplicatedGate, holding: ShardHandover) -> None:
        self._gate = gate
        self.holds_lease = ways.holds_lease
        self.is_over = ways.displaced
        self.pass_on = ways.pass_on
        self.leave = ways.leave
        self.status = ways.status
        self.read_alarms = holding.read_alarms

    def refuses_writes(self) -> str | None:
        return self._gate.full


class Member(NamedTuple):
    """A node, and what its trees are kept by."""

    node: Node
    gate: ReplicatedGate
    keeper: Keeper
    holding: ShardHandover


def make_member(
    settings: Settings,
    *,
    clock: Clock,
    files: Files,
    deps: object,
    log: FencedLog,
    archive: Archive,
    ways: Ways,
    far: Peers | None = None,
    replicas: Replicas | None = None,
    ship: Callable[[int], ShipperPort] | None = None,
    keeper_files: Files | None = None,
    around: Callable[[Gate], Gate] = lambda gate: gate,
    timings: Timings = DEFAULTS,
    random: Random = SYSTEM,
    name: str = "",
) -> Member:
    """Make a node whose trees lie in this log and archive. It owns nothing yet."""

    def refused(roots: Collection[Address], error: Unavailable) -> None:
        holding.refused(roots, error)

    gate = ReplicatedGate(
        log,
        asyncio.get_running_loop(),
        clock,
        epoch_of=ways.epoch_of,
        holds_lease=ways.holds_lease,
        fenced=ways.fenced,
        version=program(),
        refused=refused,
        timings=timings,
        random=random,
    )
    keeper = Keeper(
        log,
        archive,
        gate,
        keeper_files or files,
        clock,
        epoch_of=ways.epoch_of,
        park_after=settings.park_after,
        history=settings.history_seconds,
        replicas=replicas,
        ship=ship,
        timings=timings,
        random=random,
        node=name,
    )
    node = Node(
        settings,
        Path(settings.data),
        clock=clock,
        files=files,
        gate=around(gate),
        deps=deps,
        open_databases=settings.open_databases or databases_that_fit(settings.connections, synced=False),
        far=far,
        keeper=keeper,
        timings=timings,
        random=random,
    )
    holding = ShardHandover(node, log)
    node.join(NodeCluster(ways, gate, holding))
    return Member(node, gate, keeper, holding)


class ClusterRuntime:
    """Joins a cluster, and leaves it."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        files: Files | None = None,
        layout: Layout | None = None,
        archive: Archive | None = None,
        around: Callable[[Gate], Gate] = lambda gate: gate,
        make_owners: Callable[..., Ownership] = Ownership,
        keeper_files: Files | None = None,
        timings: Timings = DEFAULTS,
        random: Random = SYSTEM,
    ) -> None:
        """`layout`: how the cluster is cut if it is founded now. `archive`: in place of the one in the settings.

        What else there is, is for tests.
        """
        self._settings = settings
        self._clock = clock or SystemClock()
        self._random = random
        self._files = files or Files(random)
        self._layout = layout or Layout()
        self._archive = archive
        self._around = around
        self._make_owners = make_owners
        self._keeper_files = keeper_files
        self._timings = timings
        self._lock: FolderLock | None = None
        self._stack = AsyncExitStack()
        self._begin: list[Callable[[], Any]] = []

    async def start(self, deps: object) -> Node:
        """Connect to the cluster; the node owns nothing before `listen`."""
        try:
            return await self._start(deps)
        except ModuleNotFoundError as error:
            self.release()
            if (error.name or "").partition(".")[0] not in PACKAGES:
                raise
            raise UsageError(
                f"A node of a cluster needs {error.name}. Install it with: pip install 'sapwood[cluster]'."
            ) from None
        except BaseException:
            self.release()
            raise

    async def _start(self, deps: object) -> Node:
        from sapwood.runtimes.cluster.copies.archive_identity import OwnArchive, check_archive
        from sapwood.runtimes.cluster.copies.log_shipper import Shipper
        from sapwood.runtimes.cluster.copies.replicas import NatsReplicas
        from sapwood.runtimes.cluster.copies.s3_archive import ArchiveRefused, ObjectArchive
        from sapwood.runtimes.cluster.copies.segment_erasure import SegmentErasure
        from sapwood.runtimes.cluster.nats.nats_log import NatsLog
        from sapwood.runtimes.cluster.nats.nats_owners import NatsOwners
        from sapwood.runtimes.cluster.nats.transport import NatsTransport
        from sapwood.runtimes.cluster.ops.past import ArchivePast
        from sapwood.runtimes.cluster.ops.repair import answer_mending

        settings = self._settings
        self._lock = hold(Path(settings.data), settings.cluster, self._files)
        name = settings.node or node_name(self._random)
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            given = self._archive or ObjectArchive(settings.archive, timings=self._timings)
            connection = await connect(settings.nats, name, timings=self._timings, random=self._random)
            stack.push_async_callback(disconnect, connection)
            names = await found(connection, settings.cluster, self._layout, timings=self._timings)
            archive = OwnArchive(given, lambda: check_archive(connection, names, given, self._timings, self._random))
            try:
                await archive.know()
            except ArchiveRefused as error:
                raise UsageError(str(error)) from None
            except Unavailable as error:
                logging.getLogger(__name__).warning("checking the owner of the archive failed: %s", error)
            ground = NatsOwners(connection, names, name, timings=self._timings, random=self._random)
            owners = self._make_owners(
                ground,
                name,
                version=program(),
                knows=migrations(),
                random=self._random,
                figures=lambda: {} if member.gate.full is None else {"full": 1.0},
            )
            transport = NatsTransport(name, connection, names, self._timings, self._random)
            log = NatsLog(connection, names, timings=self._timings, random=self._random)
            replicas = NatsReplicas(connection, names, archive)
            stack.callback(log.close)
            far = Peers(owners, transport, loop, settings.limits, self._random)
            member = make_member(
                settings,
                clock=self._clock,
                files=self._files,
                deps=deps,
                log=log,
                archive=archive,
                ways=Ways.of(owners),
                far=far,
                replicas=replicas,
                ship=lambda stream: Shipper(
                    connection, names, stream, archive, history=settings.history_seconds, clock=self._clock
                ),
                keeper_files=self._keeper_files,
                around=self._around,
                timings=self._timings,
                random=self._random,
                name=name,
            )
            node, keeper = member.node, member.keeper
            keeper.second_copy = SegmentErasure(connection, archive, names)
            node.past.archive = ArchivePast(connection, names, archive)
            RpcServer(node, far)
            owners.strikes = node.strikes.told
            node.strikes.elsewhere = node.watchdog.elsewhere = owners.struck
            node.strikes.when_released = owners.say

            async def mend(root: str) -> None:
                address = Address.parse(root)
                if address in node.trees:
                    await keeper.snapshot(address)  # which takes the place of what the log has
                else:
                    await node.loader.load(address, only_files=True)

            async def listen() -> None:
                await owners.begin()
                await transport.listen()
                await answer_mending(connection, names, name, mend)
                await owners.join(member.holding)
                keeper.look_after(
                    lambda: list(node.trees.values()), owners.shards, names.layout.streams, node.folder / TREES
                )

            async def hang_up() -> None:
                if node.has_died:
                    await owners.die()
                    await transport.die()
                else:
                    await owners.leave()  # if it joined, and did not begin
                    await transport.close()

            stack.push_async_callback(hang_up)
            stack.push_async_callback(keeper.close)
            self._begin = [listen]
            self._stack = stack.pop_all()
        return node

    async def listen(self) -> None:
        """Take part: answer other nodes, and own what this one should."""
        for begin in self._begin:
            await begin()

    async def hang_up(self) -> None:
        """Take part no more. The node has ended."""
        await self._stack.aclose()

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def hold(folder: Path, cluster: str, files: Files) -> FolderLock:
    """Hold a data folder for a node: what lies in it is only a copy, so it must not be the only one of anything."""
    lock = FolderLock(folder)
    try:
        mark = folder / COPIES
        if mark.exists():
            before = mark.read_text()
            if before != cluster:
                raise UsageError(
                    f"The data folder {str(folder)!r} belongs to a node of the cluster {before!r}. Choose "
                    "another folder."
                )
        elif (folder / TREES).exists() and any((folder / TREES).iterdir()):
            raise UsageError(
                f"The data folder {str(folder)!r} has trees of its own, but the folder of a node holds only "
                "copies. Choose another folder, and move these trees into the cluster with `sapwood restore`."
            )
        else:
            files.close(files.create(mark, cluster.encode()))
    except BaseException:
        lock.release()
        raise
    return lock


def migrations() -> dict[str, int]:
    """Return how many migrations this program has, of whom."""
    own = {kind.type: len(kind.migrations) for kind in all_classes() if kind.migrations}
    return {**own, **framework()}


def node_name(random: Random) -> str:
    """Return a name that no other node has."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:HOST_LETTERS]
    return f"{host or 'node'}-{new_id(random, 3)}"
