"""One process that runs agents: their trees, the loop they share, and what they share only with each other."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from asyncio import CancelledError, Task
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextvars import copy_context
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, NoReturn, TypeVar, Union, get_args, get_origin

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import (
    InvalidName,
    NotFound,
    Quarantined,
    SapwoodError,
    Unavailable,
    UnknownAgent,
    UsageError,
    WrongThread,
)
from sapwood.kernel.actor import Actor
from sapwood.kernel.alarms import Alarms, alarms_file, remove_index
from sapwood.kernel.chain import tree_id
from sapwood.kernel.circles import Circles
from sapwood.kernel.circuits import Circuits
from sapwood.kernel.classes import AgentClass, brought_by
from sapwood.kernel.context import Call, current, deadline_of, in_time, until
from sapwood.kernel.far import Far
from sapwood.kernel.following import MovingLine, find
from sapwood.kernel.keeping import Keeper
from sapwood.kernel.offload import Offload
from sapwood.kernel.ports import Gate, Moved
from sapwood.kernel.shards import shard_of
from sapwood.kernel.sockets import GOING_AWAY, RESTARTING, Sockets
from sapwood.kernel.stub import Line, Stub
from sapwood.kernel.tree import DESTROYED, LABEL, Tree
from sapwood.kernel.waking import Waking
from sapwood.kernel.watchdog import Strikes, Watchdog
from sapwood.settings import Settings
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.storage.migrations import NewerData
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

C = TypeVar("C")

TREES = "trees"
REMOVED = ".removed"
COPYING = ".copying"
RESTORED = ".restored"
"""A whole copy that waits to take a tree's place."""
STOPPED = "stopped"
"""A file of this name in the data folder says that the last node ended in good order."""
CLOSING = 0.002
ABOUT_TO = 0.01
MOVED = "Another node runs this tree now."
LEAVING = 30.0
"""Seconds in which all that a node runs is handed to others."""
LAST_WORDS = 5.0
"""Seconds that cancelled work is given to unwind."""


class PuttingAway(NamedTuple):
    """A tree that was closed."""

    kept: asyncio.Event
    """Nothing of it will be written any more: another node may have it."""
    work: Task[None]
    """Done when its files here may be used again."""


class Node:
    """Runs agents on one event loop, with one data folder."""

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
        far: Far | None = None,
        part: str = "",
        pool: str = "",
        restarts: int = 0,
        keeper: Keeper | None = None,
        timings: Timings = DEFAULTS,
    ) -> None:
        self.settings = settings
        self.timings = timings
        self.folder = folder
        self.clock = clock
        self.files = files
        self.gate = gate
        self.deps = deps
        self.far = far
        """The way to the nodes that run other trees of the same folder, or `None` if there are none."""
        self.pool = pool
        """The pool that it runs the trees of; "": of all classes that name none."""
        self.circuits = Circuits() if far is None else far.circuits
        """The circuit breakers of this process."""
        self.restarts = restarts
        """How often its process was started again."""
        self.keeper = keeper
        """Brings the files of trees, or `None` if they lie in the folder, which is all there is of them."""
        self.held: set[int] = set()
        """The shards whose trees it runs, or is about to run, if they come and go."""
        self.crashes: dict[int, float] = {}
        """The shards whose last owner did not shut down cleanly, with when this node took them."""
        self.leave: Callable[[float], Awaitable[None]] | None = None
        """Hands all that this node runs to others, in so many seconds; what is left then is taken from it later."""
        self.is_leaving = False
        """Whether it was asked to stop."""
        self.pass_on: Callable[[int, str, int], bool] | None = None
        """Hands a shard to a node that knows this migration of this owner; False: there is none."""
        self.holds_lease: Callable[[], bool] = lambda: True
        """Whether its trees are its own for certain now."""
        self.authentication: str | None = None
        """How clients are authenticated; `None` means not at all."""
        self.refuses: Callable[[], str | None] = lambda: None
        """Why it cannot keep what is written, or `None` if it can."""
        self.is_over: Callable[[], str | None] = lambda: None
        """Why it can never answer again, so that its process must restart, or `None` if it can."""
        self.loop = asyncio.get_running_loop()
        self.context = copy_context()
        # Only where needed, when an agent of another app started this one: each variable makes every call dearer.
        if current.get() is not None:
            self.context.run(current.set, None)
        if until.get() is not None:
            self.context.run(until.set, None)
        self.roots: Sequence[AgentClass] = ()
        """The classes that may be roots."""
        self.trees: dict[Address, Tree] = {}
        self.born = clock.now()
        self.calls_done = 0
        """How many calls have ended here."""
        self._stopped_mark = folder / f"{STOPPED}{part}"
        self._after_crash = not self._stopped_mark.exists()
        files.remove(self._stopped_mark)
        if keeper is not None:
            remove_index(folder / alarms_file(part), files)  # it is made from what the shards bring
        self.alarms = Alarms(
            folder / alarms_file(part), files=files, gate=gate, clock=clock, loop=self.loop, timings=timings
        )
        """When its trees have something to do."""
        self.waking = Waking(self)
        self.circles = Circles(self.loop, far, self._awaited_by)
        self.begin_due: Callable[[Actor], float | None] = lambda actor: None
        self._woke: Callable[[Actor], None] = lambda actor: None
        self._shared: dict[Any, Any] = {}
        self.sockets = Sockets()
        """The clients that are connected to agents of this node."""
        self.offload = Offload(settings.threads, self.loop)
        self.strikes = Strikes(folder, settings.strikes)
        self.watchdog = Watchdog(self.loop, settings, folder, self._running)
        self.thread = threading.get_ident()
        self._open: OrderedDict[Database, tuple[Tree, float]] = OrderedDict()
        """Open databases, each with when it was last looked at; the first is looked at next."""
        self._may_open = open_databases
        self._checked: set[AgentClass] = set()
        self._background: set[Task[None]] = set()
        self._dying: set[Task[Any]] = set()
        self._stopped: Unavailable | None = None
        self._has_died = False
        self._bringing: dict[Address, Task[None]] = {}
        """The trees whose files are on their way here."""
        self._putting_away: dict[Address, PuttingAway] = {}
        """Those that were closed and whose files are being noted."""
        files.make_folder(folder / TREES)
        if gate.synced:
            files.sync_folder(folder)
        for one in unfinished(folder):
            if not self._left_by_me(one):
                continue
            if one.suffix == RESTORED and not one.with_suffix("").exists() and keeper is None:
                files.rename(one, one.with_suffix(""))
            else:
                self._in_background(self._remove(one))
        self._sweep = self.loop.call_later(settings.sleep_after / 2, self._put_to_sleep)

    def _left_by_me(self, folder: Path) -> bool:
        """Return whether what lies about is from a life of this node before; others may be at work on theirs."""
        if self.far is None or self.keeper is not None:
            return True
        root = _labelled(folder)
        return root is not None and self.owns(root)

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
        if self.keeper is not None:
            self.alarms.complete()
        elif not self.alarms.is_whole:
            known = [root for root in roots_in(self.folder) if self.owns(root)]
            if known:
                self._in_background(self._index(known))
            else:
                self.alarms.complete()
        self.alarms.start(self.waking.look)

    def when_started(self, actor: Actor) -> None:
        """An agent has started: whatever kept an alarm from waking it is over."""
        self.waking.forgive(actor.address)
        self._woke(actor)

    async def _index(self, roots: Sequence[Address]) -> None:
        """Make the index of alarms anew from what the trees say."""
        for root in roots:
            try:
                known, kind = self.waking.root_known_as(root)
            except UnknownAgent:
                known, kind = root, None  # what it has to do waits for its class
            try:
                tree = self.tree(known, kind, only_files=True)
                if tree.destroyed is None and tree.root.exists:
                    due, dead = tree.alarms.summary()
                    if due is not None or dead:
                        self.alarms.earlier(known, due, dead)
            except SapwoodError:
                log.exception("reading the alarms of a tree failed: %s", root, extra={"root": str(root)})
                self.alarms.earlier(root, self.clock.now(), 0)  # so that it is tried again
            await asyncio.sleep(0)
        self.alarms.complete()

    def on_other_thread(self) -> bool:
        return threading.get_ident() != self.thread

    @property
    def has_died(self) -> bool:
        """Whether it ended as a killed process does."""
        return self._has_died

    @property
    def is_ready(self) -> bool:
        """Whether it should be sent work: running, about to go on, and no agent stops all others."""
        return self.unready is None

    @property
    def unready(self) -> str | None:
        """Why it should not be sent work now, or `None` if it should."""
        if self._stopped is not None or self.is_leaving:
            return "shutting down"
        if not self.watchdog.ready:
            return "event loop blocked by an agent (see the log)"
        if (why := self.is_over() or self.refuses()) is not None:
            return why
        return None if self.holds_lease() else "no connection to the cluster"

    def crashed_before(self, root: Address) -> float | None:
        """Return when this node took over a tree from one that did not shut down cleanly, or `None` if that one did."""
        if self.keeper is not None:
            return self.crashes.get(shard_of(root))
        return self.born if self._after_crash else None

    def check_deps(self, kind: AgentClass) -> None:
        """Refuse a class that asks for other dependencies than the app has."""
        if kind in self._checked:
            return
        wanted = kind.annotation("deps")
        if wanted is not None and not _may_be(self.deps, wanted):
            raise UsageError(
                f"{kind.cls.__name__} expects deps of type {getattr(wanted, '__name__', wanted)}, got "
                f"{type(self.deps).__name__}. Pass App(deps=…)."
            )
        self._checked.add(kind)

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
            tree = await self.brought(address, kind)
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
                self._pass_on(address.root, error)
            except Unavailable:
                if self._may_reach(address.root, caller):
                    raise
                raise Moved(address.root) from None  # it was to be woken, and went away; nothing it was asked began
            finally:
                tree.visitors -= 1
            if actor is not None:
                return actor

    def _pass_on(self, root: Address, error: NewerData) -> NoReturn:
        """Have a node run a tree that knows what is in its files; this one must not."""
        if self.pass_on is None:
            raise error
        log.warning("not run on this node: %s", error, extra={"root": str(root)})
        if not self.pass_on(shard_of(root), error.owner, error.number):
            raise Unavailable(f"{error} The cluster has no such node now.") from error
        raise Moved(root) from None

    def _may_reach(self, root: Address, caller: Call | None) -> bool:
        """Return whether a tree may be asked for something: while it is handed over only what runs in it may go on."""
        return self.owns(root) or (caller is not None and caller.actor.address.root == root)

    async def brought(self, address: Address, kind: AgentClass | None = None, *, only_files: bool = False) -> Tree:
        """Return the tree an address belongs to, as `tree` does, once its files are here."""
        root = address.root
        while self.keeper is not None and root not in self.trees:
            self._check_may_open(root, only_files=only_files)
            bringing = self._bringing.get(root)
            if bringing is None:
                aliases = kind.aliases if kind is not None and len(address.segments) == 1 else ()
                bringing = self._bringing[root] = self.loop.create_task(
                    self._bring(self.keeper, root, aliases), context=self.context.copy()
                )
                bringing.add_done_callback(lambda done: self._brought(root, done))
            try:
                await asyncio.shield(bringing)
            except CancelledError:
                me = asyncio.current_task()
                if not bringing.cancelled() or (me is not None and me.cancelling()):
                    raise
                raise Moved(address.root) from None
        return self.tree(address, kind, only_files=only_files)

    async def exists(self, root: Address) -> bool:
        """Return whether a tree has data here, or an agent in memory."""
        tree = self.trees.get(root)
        if tree is None and self.keeper is not None and self.owns(root):
            tree = await self.brought(root, only_files=True)
        if tree is not None and tree.destroyed is not None:
            return False
        folder = tree_folder(self.folder, root)
        return (tree is not None and bool(tree.actors)) or (folder.exists() and not (folder / DESTROYED).exists())

    async def _bring(self, keeper: Keeper, root: Address, aliases: Sequence[str]) -> None:
        former = [Address.root_of(alias, root.name) for alias in aliases]
        for old in former:  # somebody may have looked at it by its old name
            await self._until_put_away(old)
            if (tree := self.trees.get(old)) is not None:
                if not tree.is_quiet or not tree.close():
                    raise Unavailable(f"{root} still runs as {old}.")
                self.put_away(tree)
                await self._until_put_away(old)
        await self._until_put_away(root)
        await keeper.bring(root, tree_folder(self.folder, root), former)
        self._check_may_open(root, only_files=True)
        self._make_tree(root, self._folder_of(root, aliases))

    def _brought(self, root: Address, done: Task[None]) -> None:
        # Not in the task itself: it may be cancelled before its first step.
        if self._bringing.get(root) is done:
            del self._bringing[root]
        if not done.cancelled():
            done.exception()  # whoever wanted it may be gone

    def putting_away(self, is_meant: Callable[[Address], bool]) -> dict[Address, PuttingAway]:
        """Return which of these trees are closed, and how far they are put away."""
        return {root: closed for root, closed in self._putting_away.items() if is_meant(root)}

    def put_away(self, tree: Tree) -> PuttingAway | None:
        """Forget a closed tree, and record its files. `None` means that the files are its only copy."""
        self._forget(tree)
        if self.keeper is None:
            return None
        kept = asyncio.Event()

        def done(_: object) -> None:
            kept.set()
            del self._putting_away[tree.address]

        work = self._in_background(self.keeper.put_away(tree.address, tree.folder, kept.set))
        work.add_done_callback(done)
        closed = self._putting_away[tree.address] = PuttingAway(kept, work)
        return closed

    def _forget(self, tree: Tree) -> None:
        self.trees.pop(tree.address, None)
        for database in tree.databases.values():
            self._open.pop(database, None)

    async def _until_put_away(self, root: Address) -> None:
        if (closed := self._putting_away.get(root)) is not None:
            await asyncio.wait({closed.work})

    async def close(self, tree: Tree, error: SapwoodError) -> None:
        """End a tree in good order: what it wrote is durable when this returns, and its files are being put away."""
        await self._close_tree(tree, error)
        if (closed := self.put_away(tree)) is not None:
            await closed.kept.wait()

    def lose(self, tree: Tree, error: Unavailable | None = None) -> None:
        """Drop a tree as the end of the process does, and whatever lies here of it.

        `error`: why, or `None` if it is another node's.
        """
        self._forget(tree)
        # What its agents said last may have been lost with it.
        self.sockets.close_within(tree.address, RESTARTING, "The agent restarts")
        tree.die(Unavailable(MOVED if error is None else str(error)))
        self.gate.drop(tree.address)
        for database in tree.databases.values():
            database.let_go = True
            self.gate.forget(database)
        if tree.folder.exists():
            self._move_away(tree.folder)

    def forget_alarms_of_others(self) -> None:
        """Wake no tree any more whose shard went elsewhere."""
        self._in_background(self.alarms.let_go(lambda root: shard_of(root) not in self.held))

    def stop_bringing(self, is_meant: Callable[[Address], bool]) -> list[Task[None]]:
        """Bring none of these trees any more; return what still unwinds."""
        tasks = [task for root, task in self._bringing.items() if is_meant(root)]
        for task in tasks:
            task.cancel()
        return tasks

    def _check_may_open(self, root: Address, *, only_files: bool) -> None:
        if self._stopped is not None:
            raise Unavailable(str(self._stopped))
        if not self.owns(root):
            raise Moved(root)
        if not only_files and self.strikes.quarantined(root):
            raise self._quarantined(root)

    def tree(self, address: Address, kind: AgentClass | None = None, *, only_files: bool = False) -> Tree:
        """Return the tree an address belongs to; `only_files`: none of its agents will run, it may be in quarantine."""
        if self.on_other_thread():
            raise WrongThread(
                f"{address} was requested from another thread than the one that its app runs on. Use the app on "
                "its own thread."
            )
        if self._stopped is not None:
            raise Unavailable(str(self._stopped))
        root = address.root
        tree = self.trees.get(root)
        if tree is None:
            self._check_may_open(root, only_files=only_files)
            if self.keeper is not None:
                raise Unavailable(f"{root} does not exist on this node.")  # callers that may wait have it loaded
            aliases = kind.aliases if kind is not None and len(address.segments) == 1 else ()
            tree = self._make_tree(root, self._folder_of(root, aliases))
        elif tree.is_held and not only_files:
            tree.is_held = self.strikes.quarantined(root)
            if tree.is_held:
                raise self._quarantined(root)
        return tree

    def _make_tree(self, root: Address, folder: Path) -> Tree:
        tree = self.trees[root] = Tree(self, self.files, folder, root, self._opened)
        # A root is of one of the app's classes, whichever others have the same type id.
        own = [known for known in self.roots if known.type == root.segments[0].type]
        tree.kinds.update({**brought_by(own), **{known.type: known for known in own}})
        tree.is_held = self.strikes.quarantined(root)
        return tree

    def held_back(self, root: Address) -> Quarantined | None:
        """Return why a tree may not run, or `None` if it may."""
        return self._quarantined(root) if self.strikes.quarantined(root) else None

    def _quarantined(self, root: Address) -> Quarantined:
        return Quarantined(
            f"{root} blocked its process {self.settings.strikes} times within an hour and is in quarantine. The "
            f"folder 'crashes' in the data folder has the stack traces; `sapwood release {root}` releases it."
        )

    def _folder_of(self, root: Address, aliases: Sequence[str]) -> Path:
        folder = tree_folder(self.folder, root)
        if (folder / DESTROYED).exists():
            self._move_away(folder)
        if aliases and not folder.exists():
            for alias in aliases:
                known = Address.root_of(alias, root.name)
                old = tree_folder(self.folder, known)
                if old.exists():
                    if not self.owns(known):  # its class was renamed since those who share the folder began
                        raise Unavailable(f"{root} still runs as {known}, in another process. Restart the server.")
                    tree = self.trees.get(known)
                    if tree is not None and tree.is_quiet and tree.close():
                        del self.trees[known]  # somebody looked at it by its old name
                    self.files.rename(old, folder)
                    self.gate.moved(folder)
                    break
        return folder

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
        kinds = (await self.brought(address, root)).kinds
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
        tree = self.trees.get(agent.root)
        actor = tree.actors.get(agent) if tree is not None else None
        return actor.awaited_by if actor is not None and actor.is_starting else []

    def stub_of(self, actor: Actor) -> Stub:
        line = Line(self, actor)
        if self.far is not None and self.far.moves(actor.address.root):
            return Stub(MovingLine(self, self.far, line.address, line.kind, actor.limits.payload_bytes, line))
        return Stub(line)

    def _opened(self, tree: Tree, database: Database) -> None:
        """Close a database nobody used lately, if too many are open."""
        self._open[database] = (tree, time.monotonic())
        for _ in range(len(self._open)):
            if len(self._open) <= self._may_open:
                return
            oldest, (its_tree, looked_at) = self._open.popitem(last=False)
            if not oldest.is_open:
                continue
            if oldest is database or oldest.last_used > looked_at or not its_tree.close_database(oldest):
                self._open[oldest] = (its_tree, time.monotonic())

    def _put_to_sleep(self) -> None:
        try:
            self.sleep(idle_for=self.settings.sleep_after)
        except Exception:
            log.exception("putting idle agents to sleep failed")
        self._sweep = self.loop.call_later(self.settings.sleep_after / 2, self._put_to_sleep)

    def sleep(self, idle_for: float = 0.0) -> None:
        """Forget agents that were idle for this long; leaves first, so that parents may follow."""
        before = self.loop.time() - idle_for
        for tree in list(self.trees.values()):
            if tree.deletions or tree.stays_awake:
                continue  # deletions still write to the databases of parents
            for actor in sorted(tree.actors.values(), key=lambda actor: -len(actor.address.segments)):
                if actor.is_idle and actor.last_active <= before:
                    tree.sleep(actor)
            if tree.is_quiet and tree.close():
                self.put_away(tree)

    def _running(self, task: Task[Any]) -> tuple[Address, str] | None:
        """Name what a task does. Called by the watchdog, from its own thread, while the loop stands still."""
        for tree in list(self.trees.values()):
            for actor in list(tree.actors.values()):
                for call, running in list(actor.calls.items()):
                    if running is task:
                        return actor.address, call.method
        return None

    async def destroy(self, tree: Tree) -> None:
        """Remove a whole tree. It is gone for good when this returns; its files follow, after the current call."""
        if tree.destroyed is not None:
            return
        tree.slices.commit()
        if tree.folder.exists():
            # First the tombstone: if the disk refuses it, nothing has happened.
            self.files.close(self.files.create(tree.folder / DESTROYED, b""))
        self.sockets.close_within(tree.address, GOING_AWAY, "Agent destroyed")
        gone = tree.destroyed = self.loop.create_future()
        for actor in tree.actors.values():
            actor.detached = True
        me = asyncio.current_task()

        async def tear_down() -> None:
            try:
                await asyncio.wait({named})
                if me is not None:
                    await asyncio.wait({me}, timeout=LAST_WORDS)
                await self._close_tree(tree, NotFound(f"{tree.address} was destroyed.", path=tree.address.segments))
                if tree.folder.exists():
                    self._move_away(tree.folder)
                if named.exception() is None:
                    self.alarms.forget(tree.address)
            finally:
                # Also when it failed: whoever asks for the tree next finds the tombstone, and goes on with it.
                self.trees.pop(tree.address, None)
                gone.set_result(None)

        named = self.loop.create_task(self._name_destroyed(tree))
        named.add_done_callback(lambda named: named.cancelled() or named.exception())  # the caller may be gone
        self._in_background(tear_down())  # whatever becomes of the call that asked
        await asyncio.shield(named)

    async def _name_destroyed(self, tree: Tree) -> None:
        """Return when it is durable that a tree is no more."""
        await self.gate.bury(tree.address, tree.folder if tree.folder.exists() else None)
        if self.keeper is not None:
            self._in_background(self.keeper.destroyed(tree.address))

    async def replace(self, root: Address, folder: Path, error: SapwoodError) -> None:
        """Put another folder in the place of a tree's own. Calls to it wait until then."""
        # Not in the caller's task: half replaced is worse than either, and the caller may be cancelled.
        await asyncio.shield(self._in_background(self._replace(root, folder, error)))

    async def _replace(self, root: Address, folder: Path, error: SapwoodError) -> None:
        # Looked up now, and again after every wait: while files were copied it may have slept and woken anew.
        while (tree := await self.brought(root, only_files=True)).destroyed is not None:
            await asyncio.shield(tree.destroyed)
        done = tree.destroyed = self.loop.create_future()
        self.sockets.close_within(tree.address, RESTARTING, "The agent restarts")
        try:
            await self._close_tree(tree, error)
            self.alarms.earlier(root, self.clock.now(), 0)  # whatever the other one has to do
            whole = tree.folder.with_suffix(RESTORED)
            self.files.rename(folder, whole)
            if tree.folder.exists():
                self._move_away(tree.folder)
            self.files.rename(whole, tree.folder)
            self.gate.moved(tree.folder)
            await self.gate.sync_folder(tree.folder.parent)
            await self.gate.flushed(root)
        finally:
            self.put_away(tree)
            done.set_result(None)
        self.alarms.look_by(root, self.clock.now())

    async def _close_tree(self, tree: Tree, error: SapwoodError) -> None:
        tree.slices.commit()
        tasks = [task for actor in tree.actors.values() for task in actor.calls.values()]
        root = tree.actors.get(tree.address)
        if root is not None:
            tree.drop(root, error)
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        while tree.deletions:  # one may begin another
            await asyncio.wait(tree.deletions)
        await tree.may_remove()
        while not tree.close():  # noqa: ASYNC110 - flushes end soon
            await asyncio.sleep(CLOSING)

    def _move_away(self, folder: Path) -> None:
        away = folder.with_name(f"{folder.name}-{time.time_ns()}{REMOVED}")
        self.files.rename(folder, away)
        self.gate.moved(folder)
        self._in_background(self._remove(away))

    async def _remove(self, folder: Path) -> None:
        await self.gate.sync_folder(folder.parent)
        for number, file in enumerate(_files_in(folder), start=1):
            self.files.remove(file)
            if number % 200 == 0:
                await asyncio.sleep(0)
        self.files.remove_folder(folder)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> Task[None]:
        task = self.loop.create_task(work, context=self.context.copy())
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", exc_info=error)

    async def stop(self) -> None:
        """End in good order: cancel what runs, keep what was written, let go of every file."""
        if self._stopped is not None:
            return
        self._sweep.cancel()
        self.alarms.stop()
        for socket in self.sockets.everyone():
            socket.close(RESTARTING, "The server stops")
        try:
            if waking := self.waking.stop():
                await asyncio.wait(waking, timeout=LAST_WORDS)
            if self.leave is not None:
                await self.leave(LEAVING)
            while self._background:
                await asyncio.wait(self._background)
            self._stopped = Unavailable("The app is not running.")
            await self._end_all(self._stopped)
            for tree in list(self.trees.values()):
                try:
                    await self._close_tree(tree, self._stopped)
                except Exception:
                    log.exception("tree was not closed cleanly: %s", tree.address, extra={"root": str(tree.address)})
                    tree.die(self._stopped)
            self.files.close(self.files.create(self._stopped_mark, b""))
        finally:
            # Also when it was cancelled: nothing may write once the folder is let go.
            self._stopped = self._stopped or Unavailable("The app is not running.")
            for tree in self.trees.values():
                tree.slices.commit()
                tree.die(self._stopped)
            self.trees.clear()
            self.alarms.close()
            self._close_threads()

    async def _end_all(self, error: Unavailable) -> None:
        """End every agent, and wait for their last words at the same time: one that goes on and on costs only once."""
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
        self._stopped = Unavailable("The process crashed.")
        self._has_died = True
        for tree in self.trees.values():
            self._dying.update(tree.deletions, *(actor.calls.values() for actor in tree.actors.values()))
            tree.die(self._stopped)
        self.trees.clear()
        self.alarms.die()
        self._dying.update(self.waking.stop(), self._bringing.values())
        for task in (*self._dying, *self._background):
            task.cancel()

    async def die(self) -> None:
        """Stop as a killed process does, and return when nothing runs any more."""
        self._sweep.cancel()
        self.die_now()
        tasks = [*self._dying, *self._background]
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WORDS)
        self._close_threads()

    def _close_threads(self) -> None:
        self.watchdog.stop()
        self.offload.close()
        self.gate.close()


def roots_in(data: Path) -> Iterator[Address]:
    """Return every tree that has data in a data folder."""
    for folder in sorted((data / TREES).iterdir()):
        if "." not in folder.name and not (folder / DESTROYED).exists():
            root = _labelled(folder)
            if root is not None:
                yield root


def _labelled(folder: Path) -> Address | None:
    """Return whose a folder is; None if it does not say so."""
    try:
        return Address.parse((folder / LABEL).read_text())
    except (FileNotFoundError, InvalidName):
        # The power may have failed at its birth, before the disk had the label: then it holds nothing that counts.
        return None


def unfinished(data: Path) -> list[Path]:
    """Return the folders that something left behind which a crash interrupted, or that is still being done."""
    # There may be many trees: they are listed once, and only the names are looked at.
    names = os.listdir(data / TREES)  # noqa: PTH208 - a path for each would take longer than all the rest
    return [data / TREES / name for name in names if "." in name]


def tree_folder(data: Path, root: Address) -> Path:
    """Return where a tree lies: no name a user chose is part of the path."""
    return data / TREES / tree_id(root)


def _may_be(value: object, annotation: Any) -> bool:
    """Return whether a value may be what an annotation says; only what can be seen at once is held against it."""
    if get_origin(annotation) in (Union, UnionType):
        return any(_may_be(value, member) for member in get_args(annotation))
    wanted = get_origin(annotation) or annotation
    try:
        return isinstance(value, wanted)
    except TypeError:  # Any, or a protocol that cannot be checked at run time
        return True


def _files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())
