"""One process that runs agents: their trees, the loop they share, and what they share only with each other."""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import Task
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import NotFound, SapwoodError, StoredDataError, Unavailable, UnknownAgent
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.erasing import Erasing
from sapwood.kernel.actors.offload import Offload
from sapwood.kernel.actors.quarantine import Strikes
from sapwood.kernel.actors.sockets import RESTARTING, Sockets
from sapwood.kernel.actors.watchdog import Watchdog
from sapwood.kernel.alarms.index_file import alarms_file, remove_index
from sapwood.kernel.alarms.node_index import NodeAlarms
from sapwood.kernel.durability.storage_state import StorageState
from sapwood.kernel.forks.forked_tree import UnfinishedWork
from sapwood.kernel.history.moments import PastSources
from sapwood.kernel.history.recorder import HistoryRecorder
from sapwood.kernel.history.unrecorded import UnrecordedHistory
from sapwood.kernel.log.tree_cache import Keeper
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.marshal.call import Call, context_outside_of_calls, deadline_of, in_time
from sapwood.kernel.marshal.failure_log import FailureLog
from sapwood.kernel.node.alarm_rebuild import AlarmRebuild
from sapwood.kernel.node.arrivals import Arrivals
from sapwood.kernel.node.background import Background
from sapwood.kernel.node.data_folder import labelled
from sapwood.kernel.node.deps_check import DepsCheck
from sapwood.kernel.node.dispatcher import AlarmDispatcher
from sapwood.kernel.node.folder_removal import FolderRemoval
from sapwood.kernel.node.forwards import Forwards
from sapwood.kernel.node.idle_sleep import IdleSleep
from sapwood.kernel.node.open_databases import OpenDatabases
from sapwood.kernel.node.release_record import open_folder
from sapwood.kernel.node.tree_damage import damaged_file, pass_on
from sapwood.kernel.node.tree_loader import TreeLoader
from sapwood.kernel.node.tree_move import resume_moves
from sapwood.kernel.node.tree_removal import LAST_WORDS, TreeRemoval
from sapwood.kernel.node.upgrade_check import Misfit
from sapwood.kernel.ports.cluster import Cluster
from sapwood.kernel.ports.destination import Destinations
from sapwood.kernel.ports.durability import Gate
from sapwood.kernel.ports.erasure import ErasurePort
from sapwood.kernel.ports.file_archive import FileArchive
from sapwood.kernel.ports.file_copies import FileCopies
from sapwood.kernel.ports.history import History
from sapwood.kernel.ports.placement import Forwarded, Moved
from sapwood.kernel.ports.read_models import ReadModels
from sapwood.kernel.ports.shards import shard_of
from sapwood.kernel.rpc.circuits import Circuits
from sapwood.kernel.rpc.remote import Peers
from sapwood.kernel.rpc.reroute import ReroutingRoute, find
from sapwood.kernel.rpc.start_cycles import StartCycleDetector
from sapwood.kernel.rpc.stub import LocalRoute, Stub
from sapwood.kernel.trees.tree import Tree, call_of
from sapwood.randomness import SYSTEM, Random
from sapwood.settings import Settings
from sapwood.storage.availability import StorageUnavailable, refusals
from sapwood.storage.files import Files
from sapwood.storage.integrity import Check
from sapwood.storage.migrations import NewerData
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

C = TypeVar("C")

STOPPED = "stopped"
"""A file of this name in the data folder says that the last node shut down normally."""
ABOUT_TO = 0.01
LEAVING = 30.0
"""Seconds in which all that a node runs is handed to others."""


class Node:
    """Runs agents on one event loop, with one data folder."""

    content_checks: Sequence[Check] = ()
    """What backups and verifications check in each database, beside its integrity."""
    database_checks: Sequence[Check] = ()
    """Those of `content_checks` that do not look for files beside the databases."""
    file_copies: FileCopies | None = None
    """Copies the files of trees that are in the archive."""
    erasures: ErasurePort | None = None
    destinations: Destinations | None = None
    stored_data_check: Callable[[Path, Sequence[AgentClass]], Iterable[Misfit]]
    """Names what is stored in a data folder and does not fit the classes of the app."""
    unfinished_work: Callable[[], UnfinishedWork]
    """Returns what settles the unfinished work of one fork."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        *,
        clock: Clock,
        files: Files,
        gate: Gate,
        deps: object,
        open_databases: int,
        far: Peers | None = None,
        part: str = "",
        pool: str = "",
        restarts: int = 0,
        keeper: Keeper | None = None,
        history: HistoryRecorder | None = None,
        timings: Timings = DEFAULTS,
        random: Random = SYSTEM,
    ) -> None:
        self.settings = settings
        self.timings = timings
        self.folder = folder
        self.clock = clock
        self.random = random
        self.files = files
        self.gate = gate
        self.deps = deps
        self.far = far
        """The way to the nodes that run other trees of the same folder, or `None` if there are none."""
        self.pool = pool
        self.circuits = Circuits() if far is None else far.circuits
        self.restarts = restarts
        self.keeper = keeper
        """Brings the files of trees, or `None` if they lie in the folder, which is all there is of them."""
        self.file_archive: FileArchive | None = None if keeper is None else keeper.file_archive
        self.history: History = history or UnrecordedHistory(folder, files)
        self.held: set[int] = set()
        """The shards whose trees it runs, or is about to run, if they come and go."""
        self.crashes: dict[int, float] = {}
        """The shards whose last owner did not shut down cleanly, with when this node took them."""
        self.cluster: Cluster | None = None
        """The cluster that it is a node of."""
        self.holds_lease: Callable[[], bool] = lambda: True
        """Whether its trees are its own for certain now."""
        self.past = PastSources()
        self.read_models = ReadModels()
        self.is_leaving = False
        self.authentication: str | None = None
        """How clients are authenticated; `None` means not at all."""
        self.loop = asyncio.get_running_loop()
        self.failures = FailureLog(self.loop.time, random)
        """Logs what fails again and again."""
        self.storage = StorageState(folder, self.loop, timings)
        """Whether the data folder can be written."""
        self.damage: dict[Path, StoredDataError] = {}
        """The databases that were found damaged, until their tree is replaced."""
        self.context = context_outside_of_calls()
        self.roots: Sequence[AgentClass] = ()
        """The classes that may be roots."""
        self.trees: dict[Address, Tree] = {}
        self.erasing = Erasing()
        self.forwards, self.arrivals = Forwards(folder, files), Arrivals(folder, files)
        """The former addresses of roots that were moved, and the trees that other servers send."""
        self.born = clock.now()
        self.calls_done = 0
        self._stopped_mark = folder / f"{STOPPED}{part}"
        self._after_crash = not self._stopped_mark.exists()
        files.remove(self._stopped_mark)
        self.alarms = self._open_alarms(folder / alarms_file(part))
        """When its trees have something to do."""
        self.alarms.when_refused = self.storage.refused
        self.waking = AlarmDispatcher(self)
        self.circles = StartCycleDetector(self.loop, far, self._awaited_by)
        self.begin_due: Callable[[Actor], float | None] = lambda actor: None
        self._woke: Callable[[Actor], None] = lambda actor: None
        self._shared: dict[Any, Any] = {}
        self.sockets = Sockets(self.loop.time)
        """The clients that are connected to agents of this node."""
        self.offload = Offload(settings.threads, self.loop)
        self.strikes = Strikes(folder, settings.strikes, clock)
        self.watchdog = Watchdog(self.loop, settings, folder, partial(call_of, self.trees), clock=clock)
        self.thread = threading.get_ident()
        self._deps_check = DepsCheck(deps)
        self._dying: set[Task[Any]] = set()
        self.stopped: Unavailable | None = None
        """Why it runs no tree any more, or `None` if it does."""
        self.has_died = False
        """Whether it ended as a killed process does."""
        self.background = Background(self.loop, self.context)
        folders = FolderRemoval(files, gate, self.background, self.damage)
        self._databases = OpenDatabases(
            open_databases, self.alarms, loop=self.loop, failures=self.failures, timings=timings
        )
        self.loader = TreeLoader(self, self._databases, folders)
        self.removal = TreeRemoval(self, self.loader, folders)
        self._idle_sleep = IdleSleep(self, self.loader)
        self._alarm_rebuild = AlarmRebuild(self, self.loader, self.waking)
        self._prepare_folder(folders)
        self._idle_sleep.start()
        self._databases.start()

    def _open_alarms(self, path: Path) -> NodeAlarms:
        if self.keeper is not None:
            remove_index(path, self.files)  # it is made from what the shards bring
        return NodeAlarms(
            path, files=self.files, gate=self.gate, clock=self.clock, loop=self.loop, timings=self.timings
        )

    def _prepare_folder(self, folders: FolderRemoval) -> None:
        """Create the folder of the trees, and finish what a life before left half removed or half restored."""
        # In a cluster it holds copies, and other nodes run what is newer.
        open_folder(self.folder, self.files, synced=self.gate.synced, has_data=self.keeper is None)
        folders.finish(self.folder, self._is_own, restores=self.keeper is None)

    def _is_own(self, folder: Path) -> bool:
        """Return whether what lies about is from a life of this node before; others may be at work on theirs."""
        if self.far is None or self.keeper is not None:
            return True
        root = labelled(folder)
        return isinstance(root, Address) and self.owns(root)

    def begin(
        self,
        roots: Sequence[AgentClass],
        *,
        begin_due: Callable[[Actor], float | None],
        when_started: Callable[[Actor], None],
    ) -> None:
        """Take up work: from now on trees are woken when they have something to do."""
        self.roots = roots
        self.begin_due = begin_due
        self._woke = when_started
        self.alarms.when_lost = self._alarm_rebuild.start
        if self.keeper is not None:
            self.alarms.complete()
        elif roots and not self.alarms.is_whole:  # without classes no tree can be woken: the next start rebuilds it
            self._alarm_rebuild.start()
        if self.keeper is None:
            resume_moves(self)
        self.alarms.start(self.waking.look)

    def when_started(self, actor: Actor) -> None:
        """An agent has started: whatever kept an alarm from waking it is over."""
        self.waking.forgive(actor.address)
        self._woke(actor)

    def on_other_thread(self) -> bool:
        return threading.get_ident() != self.thread

    @property
    def is_ready(self) -> bool:
        """Whether it should be sent work: it runs, is not about to stop, and no agent blocks all others."""
        return self.unready is None

    @property
    def unready(self) -> str | None:
        """Why it should not be sent work now, or `None` if it should."""
        if self.stopped is not None or self.is_leaving:
            return "shutting down"
        if not self.watchdog.ready:
            return "event loop blocked by an agent (see the log)"
        refuses = None if self.cluster is None else self.cluster.refuses_writes()
        if (why := self.is_over() or refuses or self.storage.reason) is not None:
            return why
        return None if self.holds_lease() else "no connection to the cluster"

    def is_over(self) -> str | None:
        """Return why it can never answer again, so that its process must restart, or `None` if it can."""
        return None if self.cluster is None else self.cluster.is_over()

    def join(self, cluster: Cluster) -> None:
        """Be a node of a cluster from now on."""
        self.cluster = cluster
        self.holds_lease = cluster.holds_lease

    def crashed_before(self, root: Address) -> float | None:
        """Return when this node took over a tree from one that did not shut down cleanly, or `None` if that one did."""
        if self.keeper is not None:
            return self.crashes.get(shard_of(root))
        return self.born if self._after_crash else None

    def check_deps(self, kind: AgentClass) -> None:
        """Refuse a class that asks for other dependencies than the app has."""
        self._deps_check.check(kind)

    def sleep(self, idle_for: float = 0.0) -> None:
        """Forget agents that were idle for this long; leaves first, so that parents may follow."""
        self._idle_sleep.sleep(idle_for)

    def shared(self, kind: Callable[..., C]) -> C:
        """Return the node's one instance of something, made with its settings and clock when first asked for."""
        found = self._shared.get(kind)
        if found is None:
            found = self._shared[kind] = kind(self.settings, self.clock)
        return found

    async def reach_alone(self, address: Address) -> Actor:
        """Return the live, started agent at this address, without starting those above it."""
        return await self.reach(address, None, None, alone=True)

    async def reach(
        self, address: Address, kind: AgentClass | None, caller: Call | None, *, alone: bool = False
    ) -> Actor:
        """Return the live, started agent at this address."""
        given: dict[str, AgentClass] = {}
        while True:
            self.erasing.check(address)
            try:
                tree = await self.loader.load(address, kind)
            except Forwarded as moved:
                there = moved.follow(address)
                if there is None or not self.owns(there.root):
                    raise
                address = there
                continue
            if self.far is not None and not self._may_reach(address.root, caller):
                raise Moved(address.root)
            # What the classes are called outlives the tree that was told.
            given = tree.kinds = {**given, **tree.kinds}
            if tree.destroyed is not None:
                if alone or (caller is not None and caller.actor.address.root == tree.address):
                    raise NotFound(f"{tree.address} was destroyed.", path=tree.address.segments)
                await asyncio.shield(tree.destroyed)
                continue
            tree.visitors += 1
            try:
                actor = await tree.reach(address, kind, caller, alone=alone)
            except NewerData as error:
                pass_on(self.cluster, address.root, error)
            except Unavailable:
                if self._may_reach(address.root, caller):
                    raise
                raise Moved(address.root) from None  # it was to be woken, and went away; nothing it was asked began
            finally:
                tree.visitors -= 1
            if actor is not None:
                return actor

    def _may_reach(self, root: Address, caller: Call | None) -> bool:
        """Return whether a tree may be asked for something: while it is handed over, only what runs in it may."""
        return self.owns(root) or (caller is not None and caller.actor.address.root == root)

    def damaged(self, root: Address, file: str, how: str) -> SapwoodError:
        """Return the error to raise for a damaged file of a tree. A copy of what the log has is dropped."""
        return damaged_file(self, self.removal.lose, root, file, how)

    def forget_alarms_of_others(self) -> None:
        """Wake no tree any more whose shard went elsewhere."""
        self.background.start(self.alarms.let_go(lambda root: shard_of(root) not in self.held))

    def owns(self, root: Address) -> bool:
        """Return whether the tree is run here."""
        return self.far is None or self.far.directory.is_here(root)

    async def until_owned(self, root: Address) -> bool:
        """Return whether the tree is run here; if it is about to be, once it is."""
        while not self.owns(root):
            if shard_of(root) not in self.held:
                return False
            await asyncio.sleep(ABOUT_TO)
        return True

    async def stub(self, path: Sequence[tuple[AgentClass, str]], caller: Call | None) -> Stub:
        """Return a stub of the agent at the end of this path, started; below the root it has to exist."""
        (root, name), *below = path
        if root not in self.roots:
            roots = ", ".join(known.cls.__name__ for known in self.roots) or "none"
            raise UnknownAgent(
                f"{root.type} is not a root of this app. Add it to App(agents=[…]), or get it through its parent. "
                f"Roots: {roots}."
            )
        address = Address.root_of(root.type, name)
        if self.far is not None:
            if self.far.moves(address):
                return await find(self, self.far, path, caller)
            if not self.far.directory.is_here(address):
                for kind, child in below:
                    address = address.child(kind.type, child)
                return await self.far.stub(path, address, caller)
        return await self.stub_here(path, caller)

    async def stub_here(self, path: Sequence[tuple[AgentClass, str]], caller: Call | None) -> Stub:
        """Return a stub of the agent at the end of this path, which this node runs."""
        (root, name), *below = path
        address = Address.root_of(root.type, name)
        try:
            kinds = (await self.loader.load(address, root)).kinds
        except Forwarded as moved:
            if (there := moved.follow(address)) is None:
                raise
            return await self.stub([(root, there.name), *below], caller)
        kinds[root.type] = root
        for kind, child in below:
            address = address.child(kind.type, child)
            kinds[kind.type] = kind
        async with in_time(deadline_of(caller), address):
            return self.stub_of(await self.reach(address, path[-1][0], caller))

    def awake(self, address: Address) -> Actor | None:
        """Return the agent at this address if it is in memory."""
        tree = self.trees.get(address.root)
        return None if tree is None else tree.actors.get(address)

    def _awaited_by(self, agent: Address) -> list[Address]:
        actor = self.awake(agent)
        return actor.awaited_by if actor is not None and actor.is_starting else []

    def stub_of(self, actor: Actor) -> Stub:
        line = LocalRoute(self, actor)
        if self.far is not None and self.far.moves(actor.address.root):
            return Stub(ReroutingRoute(self, self.far, line.address, line.kind, actor.limits.payload_bytes, line))
        return Stub(line)

    async def stop(self) -> None:
        """Shut down: cancel what runs, keep what was written, close every file."""
        if self.stopped is not None:
            return
        self._idle_sleep.stop()
        self._databases.stop()
        self.alarms.stop()
        self._alarm_rebuild.stop()
        for socket in self.sockets.everyone():
            socket.close(RESTARTING, "The server stops")
        try:
            if waking := self.waking.stop():
                await asyncio.wait(waking, timeout=LAST_WORDS)
            if self.cluster is not None:
                await self.cluster.leave(LEAVING)
            await self.background.wait()
            self.stopped = Unavailable("The app is not running.")
            await self._end_all(self.stopped)
            until = self.loop.time() + LAST_WORDS
            for tree in list(self.trees.values()):
                try:
                    if self.keeper is None and self.loop.time() < until:
                        tree.empty_logs()
                    await self.removal.end(tree, self.stopped)
                except Exception as error:  # noqa: BLE001 - the others are to be closed
                    text, root = "tree was not closed cleanly: %s", tree.address
                    self.failures.report(
                        log, logging.ERROR, text, root, error=error, about=root, traceback=error, root=str(root)
                    )
                    tree.die(self.stopped)
            try:
                with refusals():
                    self.files.close(self.files.create(self._stopped_mark, b""))
            except StorageUnavailable as error:
                log.warning("cannot record the clean stop, so the next start recovers as after a crash: %s", error)
        finally:
            # Also if it was cancelled: nothing may write once the folder is let go.
            self.stopped = self.stopped or Unavailable("The app is not running.")
            for tree in self.trees.values():
                tree.slices.commit()
                tree.die(self.stopped)
            self.trees.clear()
            self.alarms.close()
            self.failures.flush(all=True)
            self._close_threads()

    async def _end_all(self, error: Unavailable) -> None:
        """End every agent, and wait for all of them at the same time: those that do not end cost only one timeout."""
        tasks: set[Task[Any]] = set()
        for tree in list(self.trees.values()):
            tree.slices.commit()
            root = tree.actors.get(tree.address)
            if root is not None:
                tasks.update(task for actor in tree.actors.values() for task in actor.calls.values())
                tree.drop(root, error)
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)

    def die_now(self) -> None:
        """Stop as a killed process does: uncommitted writes are lost, and no hook runs."""
        self.stopped = Unavailable("The process crashed. Get the agent again.")
        self.has_died = True
        for tree in self.trees.values():
            self._dying.update(tree.deletions, *(actor.calls.values() for actor in tree.actors.values()))
            tree.die(self.stopped)
        self.trees.clear()
        self.alarms.die()
        self._dying.update(self.waking.stop(), self.loader.stop_loading(lambda root: True))
        for task in (*self._dying, *self.background.tasks):
            task.cancel()

    async def die(self) -> None:
        """Stop as a killed process does, and return when nothing runs any more."""
        self._idle_sleep.stop()
        self._databases.stop()
        self.die_now()
        tasks = [*self._dying, *self.background.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        self._close_threads()

    def _close_threads(self) -> None:
        self.storage.stop()
        self.watchdog.stop()
        self.offload.close()
        self.gate.close()
