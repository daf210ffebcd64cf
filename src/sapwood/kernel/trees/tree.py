"""A root with all its descendants: what is placed, written in order, limited and destroyed as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sapwood.address import Address
from sapwood.errors import (
    Aborted,
    NotFound,
    SapwoodError,
    StoredDataError,
    Unavailable,
)
from sapwood.kernel.actors.actor import Actor, Host
from sapwood.kernel.actors.children_table import ChildrenTable
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import RESTARTING, TRY_AGAIN
from sapwood.kernel.alarms.tree_index import TreeAlarms
from sapwood.kernel.marshal.agent_class import AgentClass, resolve
from sapwood.kernel.marshal.call import Call
from sapwood.kernel.marshal.disclosure import internal_error
from sapwood.kernel.marshal.exceptions import again
from sapwood.kernel.ports.durability import Commit
from sapwood.kernel.trees.deletion import Deletion, child_stem
from sapwood.kernel.trees.former_addresses import birthplace, within
from sapwood.kernel.trees.pending_questions import TreeQuestions
from sapwood.kernel.trees.run_quota import RunQuota
from sapwood.kernel.trees.tree_files import ROOT_STEM, TreeFiles
from sapwood.kernel.trees.usage import UsageMeter
from sapwood.settings import Limits
from sapwood.storage.availability import StorageUnavailable
from sapwood.storage.database import Database
from sapwood.storage.files import Files
from sapwood.wire.final_errors import CLOSE_CODE, close_reason, final_code

log = logging.getLogger(__name__)

DESTROYED = "destroyed"
"""A file of this name in a tree's folder is the tombstone of the whole tree."""


class Tree(TreeFiles):
    """The live agents of one tree, and its databases."""

    def __init__(
        self,
        host: Host,
        files: Files,
        folder: Path,
        address: Address,
        opened: Callable[[Tree, Database], None],
        closed: Callable[[Database], None],
        *,
        has_marks: bool,
    ) -> None:
        """`has_marks`: its files are the truth about it, and not copies of what a log has."""
        super().__init__(host, files, folder, address, opened, closed, has_marks=has_marks)
        self.actors: dict[Address, Actor] = {}
        self.aborted: dict[Address, Aborted] = {}
        """Agents that were aborted, until `sub_agent` asks for them again."""
        self.kinds: dict[str, AgentClass] = {}
        """The class each type id meant when it was last used here."""
        self.destroyed: asyncio.Future[None] | None = None
        """Set once the whole tree has a tombstone, or is being replaced; done when nothing is left of it."""
        self.is_replaced = False
        """Whether other files take the place of its own."""
        self.is_held = False
        """Whether it was in quarantine when it was last called."""
        self.deletions: set[asyncio.Task[None]] = set()
        self.visitors = 0
        """Number of callers on their way to this tree's agents. It may not be forgotten until they arrive: they would
        continue in a second tree over the same files."""
        self.root_registry = ChildrenTable(self.root, host.clock)
        self.spending = UsageMeter(self.root, self.slices, host.gate)
        self.givers = RunQuota(self.root, self.slices, host.gate)
        self.alarms = TreeAlarms(address, self.root, self.slices, host.alarms, host.gate)
        self.questions = TreeQuestions(self.root, self.slices, host.gate)
        self.kept_awake: dict[object, Actor] = {}
        """Who asked that the tree stay awake, by what they hold."""
        self.calls_done = 0
        """How many calls have ended in it."""
        self._birthplace: Address | None = None
        """The first address of its root, if it was moved."""
        self._knows_birthplace = False

    def birthplace_of(self, address: Address) -> Address:
        """Return the first address of an agent of this tree."""
        if not self._knows_birthplace:
            self._birthplace = birthplace(self.root) if self.root.exists else None
            self._knows_birthplace = True
        return within(address, self._birthplace)

    def lost(self, database: Database, error: BaseException) -> None:
        self.slices.forget(database)
        if database is self.databases[ROOT_STEM]:
            self.ledger.reload()
        if isinstance(error, StoredDataError):
            self.host.damage[database.path] = error
        for actor in list(self.actors.values()):
            if actor.database is database:
                # Even if it has no clients itself: its parent's clients are notified through it.
                if self.host.sockets.number_of(actor.address) or actor.found(Outbox) is not None:
                    actor.of(Outbox).lose(*self._closing(actor, error))
                self._restart(actor, error)
                # What it had done by the clock may be undone, and due again.
                self.host.alarms.look_again(self.address)

    def _closing(self, actor: Actor, error: BaseException) -> tuple[int, str]:
        """Return the code and the reason that the sockets of an agent are closed with that lost a transaction."""
        if isinstance(error, StorageUnavailable):
            return TRY_AGAIN, "Service Unavailable"
        if not (code := final_code(error)):
            return RESTARTING, "The agent restarts"
        reference = self.host.failures.report(
            log,
            logging.ERROR,
            "stored data is damaged agent=%s: %s",
            actor.address,
            error,
            error=error,
            about=actor.address,
            with_reference=True,
            address=str(actor.address),
        )
        return CLOSE_CODE, close_reason(code, internal_error(reference, code))

    def _restart(self, actor: Actor, error: BaseException) -> None:
        """End an incarnation whose writes were undone; the next call starts another one."""
        if isinstance(error, StorageUnavailable):
            # The whole tree, as a crash does: a parent that continued would take it for a failure of its child.
            self.drop(self.actors.get(self.address, actor), again(error))
        elif isinstance(error, StoredDataError):
            self.drop(actor, again(error))
        else:
            self.drop(actor, Unavailable(f"{actor.address} lost a transaction and restarts: {error}"))

    async def reach(
        self, address: Address, kind: AgentClass | None, caller: Call | None, *, alone: bool = False
    ) -> Actor | None:
        """Return the live, started agent at this address; wake it, parents first, if it sleeps.

        `alone`: those above it are in memory then, but not started. None: the tree was destroyed or
        replaced in between, and the caller has to find the next one.
        """
        while self.destroyed is None:
            actor = self.actors.get(address) or await self._load(address, kind, caller, alone)
            if actor is not None and (actor.ready or await actor.started(caller)):
                return actor
        return None

    async def _load(self, address: Address, kind: AgentClass | None, caller: Call | None, alone: bool) -> Actor | None:
        """Return the agent at this address, about to start, or `None` if the tree may have changed during an await."""
        parent_address = address.parent
        if parent_address is None:
            return self.make_root(kind)
        if alone:
            parent = self.actors.get(parent_address) or await self._load(parent_address, None, caller, alone)
        else:
            parent = await self.reach(parent_address, None, caller)
        if parent is None or parent.dropped is not None:
            return None
        return self.actors.get(address) or await self._wake_child(parent, address, kind)

    def has(self, address: Address) -> bool:
        """Return whether an agent was made and not deleted; none is woken."""
        stem = ROOT_STEM
        for step in address.segments[1:]:
            kind = self.kinds.get(step.type)
            aliases = kind.aliases if kind is not None else ()
            registry = ChildrenTable(self.database(stem, self.limits), self.host.clock)
            row = registry.find((step.type, *aliases), step.name) if self.destroyed is None else None
            if row is None:
                return False
            stem = child_stem(stem, row.generation)
        return self.destroyed is None and self.root.exists

    @property
    def stays_awake(self) -> bool:
        """Whether it was asked for."""
        for hold in [hold for hold, actor in self.kept_awake.items() if actor.dropped is not None]:
            del self.kept_awake[hold]
        return bool(self.kept_awake)

    def make_root(self, kind: AgentClass | None) -> Actor:
        kind = kind or self.kind_of(self.address.type)
        self.kinds[kind.type] = kind
        self.limits = limits = self._limits(kind, self.host.settings.limits)
        database = self.database(ROOT_STEM, limits)
        database.limit(limits.database_bytes)
        actor = Actor(
            self,
            self.address,
            kind,
            parent=None,
            stem=ROOT_STEM,
            generation=0,
            created_at=0.0,
            limits=limits,
            database=database,
        )
        self.actors[self.address] = actor
        return actor

    async def _wake_child(self, parent: Actor, address: Address, kind: AgentClass | None) -> Actor | None:
        """Return the child, about to start, or `None` if the tree may have changed during an await."""
        aborted = self.aborted.get(address)
        if aborted is not None:
            raise again(aborted)
        kind = kind or parent.kind.brought(address.type) or self.kinds.get(address.type)
        aliases = kind.aliases if kind is not None else ()
        row = parent.registry.find((address.type, *aliases), address.name)
        if row is None:
            raise NotFound(
                f"{parent.address} has no {address.type} named {address.name!r}. "
                f"Only {parent.address.type} can create it, with sub_agent().",
                path=address.segments,
            )
        if (waiting := self.until_named(parent, row.generation)) is not None:
            await waiting
            # Not waited for again: under steady writing there would be no end.
            if parent.dropped is not None or address in self.actors or address in self.aborted:
                return None
            if parent.registry.find((row.type,), row.name) != row:
                return None
        return self.make_child(
            parent, kind or self.kind_of(address.type, parent.kind), row.name, row.generation, row.created_at
        )

    def until_named(self, parent: Actor, generation: int) -> asyncio.Future[None] | None:
        """Return what to await before this child may have a file: under `disk` none outlives the row that names it."""
        if not self.host.gate.synced or (self.folder / f"{child_stem(parent.stem, generation)}.db").exists():
            return None
        return parent.to_leave()

    def make_child(
        self, parent: Actor, kind: AgentClass, name: str, generation: int, created_at: float, *, new: bool = False
    ) -> Actor:
        self.kinds[kind.type] = kind
        address = parent.address.child(kind.type, name)
        stem = child_stem(parent.stem, generation)
        limits = self._limits(kind, parent.limits)
        database = self.database(stem, limits, new=new)
        # Code that opened it while the agent slept did not know its class's limits.
        database.limit(limits.database_bytes)
        actor = Actor(
            self,
            address,
            kind,
            parent=parent,
            stem=stem,
            generation=generation,
            created_at=created_at,
            limits=limits,
            database=database,
        )
        self.actors[address] = actor
        parent.children[address.segments[-1]] = actor
        return actor

    def kind_of(self, type_id: str, parent: AgentClass | None = None) -> AgentClass:
        """Return the class that a type id means here, or as a child of this class, which may name those it uses."""
        brought = None if parent is None else parent.brought(type_id)
        return brought or self.kinds.get(type_id) or resolve(type_id)

    def _limits(self, kind: AgentClass, above: Limits) -> Limits:
        return above if kind.limits is None else kind.limits.within(above)

    def drop(self, actor: Actor, error: SapwoodError) -> None:
        """End this incarnation and those below it, at once; what they committed stays."""
        doomed = self.detach(actor)
        for one in doomed:
            one.end(error)
            one.children.clear()
            self.slices.leave_next_commit(one.database)
        if any(call.work is not None for one in doomed for call in one.calls):
            # What they did is due still, if they are not gone for good.
            self.host.alarms.look_again(self.address)
        me = self.whose_slice()
        # First all are marked, then all are told: no call unwinds into a neighbour that still believes it lives.
        for one in doomed:
            for call, task in list(one.calls.items()):
                if task is me:
                    continue  # it learns of it by the exception it is about to get
                reply = call.reply
                inside = call.caller is not None and call.caller.actor in doomed
                if reply is not None and not reply.done() and not inside:
                    reply.set_exception(again(error))
                    reply.exception()
                one.cancel(call)

    def drop_unstarted(self, actor: Actor, error: SapwoodError) -> None:
        """End an incarnation that could not start. Those below it continue: an alarm may have woken them without it."""
        children = dict(actor.children)
        actor.children.clear()
        self.drop(actor, error)
        if not children:
            return
        # They need a parent, which is started by the next call to it.
        if actor.parent is None:
            anew = self.make_root(actor.kind)
        else:
            anew = self.make_child(actor.parent, actor.kind, actor.address.name, actor.generation, actor.created_at)
        anew.children = children
        for child in children.values():
            child.parent = anew

    def detach(self, actor: Actor) -> list[Actor]:
        """Make an agent and those below it unreachable, and return them; what runs in them runs on."""
        found = self.live_below(actor)
        for one in found:
            one.ready = False
            one.detached = True
            if self.actors.get(one.address) is one:
                del self.actors[one.address]
        siblings = actor.parent.children if actor.parent is not None else {}
        if siblings.get(actor.address.segments[-1]) is actor:
            del siblings[actor.address.segments[-1]]
        return found

    def live_below(self, actor: Actor) -> list[Actor]:
        """Return this agent and its descendants in memory, lowest first."""
        found: list[Actor] = []
        for child in list(actor.children.values()):
            found.extend(self.live_below(child))
        found.append(actor)
        return found

    def abort(self, address: Address, reason: object) -> None:
        """Stop an agent and those below it; they answer again once `sub_agent` asks for it again."""
        error = Aborted(reason, path=address.segments)
        self.aborted[address] = error
        actor = self.actors.get(address)
        if actor is not None:
            self.drop(actor, error)

    def vacuum(self, database: Database) -> None:
        """Write a database again without what was deleted from it. Nothing of it may be under way."""
        before = database.frames
        database.vacuum()
        self.host.gate.committed(Commit(self.address, database, before + 1, database.frames))

    def forget_aborts(self, address: Address) -> None:
        """An agent is being deleted: no abort of it, or of one below it, is remembered."""
        for one in [one for one in self.aborted if one == address or one.is_below(address)]:
            del self.aborted[one]

    def sleep(self, actor: Actor) -> None:
        """Forget an idle agent; its next call wakes it."""
        self.slices.commit()
        actor.asleep = True
        self.drop(actor, Unavailable(f"{actor.address} is asleep. Get it again with sub_agent() or get_agent()."))
        if self.close_database(actor.database) and actor.parent is not None:
            self.databases.pop(actor.stem).let_go = True

    def close_unused(self, before: float) -> None:
        """Close the databases of sleeping agents that were not read since this time of the loop. Reading opens them."""
        in_memory = {self.root, *(actor.database for actor in self.actors.values())}
        for database in self.databases.values():
            if database.is_open and database not in in_memory and database.last_used <= before:
                self.close_database(database)

    @contextmanager
    def visited(self) -> Generator[None, None, None]:
        """Keep the tree from being forgotten: a task that still uses it would open its files a second time."""
        self.visitors += 1
        try:
            yield
        finally:
            self.visitors -= 1

    @property
    def is_quiet(self) -> bool:
        busy = self.actors or self.deletions or self.aborted or self.visitors or self._copies
        return not busy and self.destroyed is None

    def die(self, error: SapwoodError) -> None:
        """Forget everything that was not committed, and let go of the files, as the end of a process does."""
        self.slices.ended = error
        for database in self.databases.values():
            self.slices.forget(database)
        for actor in list(self.actors.values()):
            self.drop(actor, error)
        for database in self.databases.values():
            database.close()

    def resume_deletions(self, actor: Actor) -> None:
        """Resume deletions that a crash interrupted."""
        for row in actor.registry.buried():
            self.delete_in_background(actor, row.generation, actor.address.child(row.type, row.name))

    def delete_in_background(self, parent: Actor, generation: int, address: Address) -> asyncio.Task[None]:
        task = self.host.loop.create_task(
            Deletion(self).finish(parent, generation, address), context=self.host.context.copy()
        )
        self.deletions.add(task)
        task.add_done_callback(self._deleted)
        return task

    def _deleted(self, task: asyncio.Task[None]) -> None:
        self.deletions.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("deletion interrupted: %s", self.address, extra={"root": str(self.address)}, exc_info=error)


def call_of(trees: Mapping[Address, Tree], task: asyncio.Task[Any]) -> tuple[Address, str] | None:
    """Name what a task does. Called by the watchdog, from its own thread, while the loop stands still."""
    for tree in list(trees.values()):
        for actor in list(tree.actors.values()):
            for call, running in list(actor.calls.items()):
                if running is task:
                    return actor.address, call.method
    return None


def tree_of(actor: Actor) -> Tree:
    """Return the tree that an agent belongs to."""
    tree = actor.home
    assert isinstance(tree, Tree)
    return tree
