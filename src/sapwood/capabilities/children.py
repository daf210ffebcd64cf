"""Sub-agents: made, found, aborted and deleted by the agent they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sapwood.address import Address, checked_name
from sapwood.capabilities.child_states import ChildStates
from sapwood.clock import Clock
from sapwood.errors import NotFound, OverLimit, SapwoodError, Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.children_table import ChildrenTable, ChildRow, SubAgent
from sapwood.kernel.actors.pending_work import PendingWork, pending_work
from sapwood.kernel.actors.sockets import GOING_AWAY
from sapwood.kernel.marshal.agent_class import AgentClass, known, with_tool_classes
from sapwood.kernel.marshal.call import current, deadline_of, in_time
from sapwood.kernel.marshal.exceptions import again
from sapwood.kernel.node.tree_removal import LAST_WORDS
from sapwood.kernel.ports.history import MomentKind
from sapwood.kernel.trees.deletion import child_stem
from sapwood.kernel.trees.tree import Tree, tree_of
from sapwood.settings import Settings

DELETED = "Sub-agent deleted"


def check_approvers(kinds: Iterable[AgentClass]) -> None:
    """Refuse classes, in an app that has users, with a tool whose approvals do not say who may give them."""
    for kind in with_tool_classes(kinds):
        kind.hooks.check_approvers(kind.cls)


class CheckedClasses:
    """The classes of sub-agents that a node has checked: once is enough."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._checked: set[type] = set()

    def check(self, kind: AgentClass) -> None:
        """Check the approvals of a class and of the classes that it uses as tools."""
        if kind.cls not in self._checked:
            check_approvers([kind])
            self._checked.add(kind.cls)


@dataclass(frozen=True, slots=True)
class SubAgentStatus:
    """The status of a sub-agent."""

    state: Literal["sleeping", "starting", "idle", "busy", "aborted"]
    """`sleeping` means not in memory: the next call wakes it. `aborted` lasts until the next `sub_agent` call."""
    created_at: float
    """Seconds since the epoch, UTC."""
    calls: int
    """Running calls."""
    idle_seconds: float | None
    """Seconds since its last call ended; `None` unless it is idle."""
    children: int
    """The number of its own sub-agents."""
    database_bytes: int
    """The size of its database."""
    last_error: str | None
    """The last exception that a call raised since it was loaded into memory."""
    sockets: int
    """Open sockets of clients."""
    queued_calls: int
    """Calls in its queues, the running ones included."""
    runs: int
    """Unfinished runs that it started."""
    fibers: int
    """Unfinished fibers, sleeping ones included."""
    next_schedule_at: float | None
    """When its next scheduled call is due, in seconds since the epoch, UTC. `None` if it has none."""


@dataclass(frozen=True, slots=True)
class Subtree:
    """Totals of an agent and everything below it."""

    agents: int
    """The number of agents, in memory or not."""
    live: int
    """The number of agents in memory."""
    busy: int
    """The number of agents with a running call."""
    database_bytes: int
    """The total size of their databases."""
    deepest: int
    """Levels below this agent."""
    calls: int
    """Running calls."""
    sockets: int
    """Open sockets of clients."""
    queued_calls: int
    """Calls in their queues, the running ones included."""
    runs: int
    """Unfinished runs that they started."""
    fibers: int
    """Unfinished fibers, sleeping ones included."""
    next_schedule_at: float | None
    """When the next scheduled call of any of them is due, in seconds since the epoch, UTC."""


class Children:
    """The sub-agents of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    @property
    def _tree(self) -> Tree:
        return tree_of(self._actor)

    async def get(self, cls: type, name: str, *, create: bool = True) -> Actor:
        """Return the child of this class and name, started. If there is none, make it, or raise `NotFound`."""
        self._actor.check_use()
        kind = known(cls)
        address = self._actor.address.child(kind.type, name)
        self._actor.host.erasing.check(address)
        self._tree.aborted.pop(address, None)
        made: int | None = None
        named: int | None = None
        while True:
            if (aborted := self._tree.aborted.get(address)) is not None:
                raise again(aborted)
            child = self._tree.actors.get(address)
            if child is None:
                row = self._find(kind, name)
                if row is None and not create:
                    raise NotFound(f"{address} was deleted.", path=address.segments)
                if row is None:
                    if self._actor.host.authentication is not None:
                        self._actor.host.shared(CheckedClasses).check(kind)
                    row = self._register(kind, name)
                    made = row.generation
                # Once is enough: the row is on the disk then, whatever else is written at the same time.
                if named != row.generation and (waiting := self._tree.until_named(self._actor, row.generation)):
                    await waiting
                    named = row.generation
                    self._actor.check_live()
                    continue
                child = self._tree.make_child(
                    self._actor, kind, row.name, row.generation, row.created_at, new=made == row.generation
                )
            if child.ready:
                return child
            async with in_time(deadline_of(current.get()), address):
                try:
                    if await child.started(current.get()):
                        return child
                except Exception:
                    if made is not None and self._actor.dropped is None and address not in self._tree.aborted:
                        # It never lived: only the caller has seen it.
                        await self.delete(cls, name)
                    raise

    def _find(self, kind: AgentClass, name: str) -> ChildRow | None:
        row = self._actor.registry.find(kind.type_ids, name)
        if row is not None and row.type != kind.type:
            self._actor.registry.retype(row.generation, kind.type)
        return row

    def _register(self, kind: AgentClass, name: str) -> ChildRow:
        self._actor.database.refuse_in_block("Creating a sub-agent")
        actor, limits = self._actor, self._actor.limits
        depth = len(actor.address.segments)
        if depth > limits.depth:
            raise self._over("depth", f"it would be {depth} levels below its root", limits.depth)
        count = actor.registry.count()
        if count >= limits.children:
            raise self._over("children", f"it has {count} sub-agents", limits.children)
        if self._descendants(count) >= limits.descendants and self._descendants_exactly() >= limits.descendants:
            raise self._over("descendants", "its tree is full", limits.descendants)
        row = actor.registry.add(kind.type, name, trace=None)
        self._account()
        return row

    def _over(self, limit: str, what: str, allowed: int) -> OverLimit:
        return OverLimit(
            f"{self._actor.address} cannot create a sub-agent: {what}, and the limit is Limits({limit}={allowed}).",
            path=self._actor.address.segments,
            limit=limit,
        )

    def _descendants(self, count: int) -> int:
        """Return how many agents the tree has below its root, this agent's uncommitted ones included."""
        tree = self._tree
        below = tree.ledger.below_children()
        if self._actor.parent is None:
            return count + below
        return tree.root_registry.count() + below + count - tree.ledger.held(self._actor.stem)

    def _descendants_exactly(self) -> int:
        tree = self._tree
        for holder in tree.ledger.holders():
            if holder != self._actor.stem:
                database = tree.database(holder, self._actor.limits)
                tree.ledger.hold(
                    holder, ChildrenTable(database, self._actor.host.clock).count() if database.exists else 0
                )
        return self._descendants(self._actor.registry.count())

    def _account(self) -> None:
        """Have the root's ledger say how many children this agent has, before the commit that says so here."""
        if self._actor.parent is not None:
            self._tree.slices.before_commit(
                self._actor.stem, lambda: self._tree.ledger.hold(self._actor.stem, self._actor.registry.count())
            )

    def abort(self, cls: type, name: str, reason: object) -> None:
        self._actor.check_use()
        kind = known(cls)
        if self._find(kind, name) is not None:
            self._tree.abort(self._actor.address.child(kind.type, name), reason)

    async def delete(self, cls: type, name: str) -> None:
        self._actor.check_use()
        kind = known(cls)
        address = self._actor.address.child(kind.type, name)
        self._tree.forget_aborts(address)
        row = self._find(kind, checked_name(name))
        if row is None:
            return
        self._actor.database.refuse_in_block("Deleting a sub-agent")
        removal = self._bury(kind.type, row)
        await asyncio.shield(removal)

    def bury(self, types: tuple[str, ...], name: str) -> asyncio.Task[None] | None:
        """Have a child be deleted, from this moment; return what does it. None: there is none.

        The first of the types is what its class is called now; there may be no such class any more.
        """
        row = self._actor.registry.find(types, name)
        return None if row is None else self._bury(types[0], row)

    def _mark_deletion(self, address: Address) -> None:
        self._actor.host.history.mark(self._actor.address, MomentKind.BEFORE_DELETION, str(address))

    def _bury(self, type: str, row: ChildRow) -> asyncio.Task[None]:
        address = self._actor.address.child(type, row.name)
        self._mark_deletion(address)
        self._actor.registry.bury(row.generation)
        self._actor.of(ChildStates).forget(row.generation)
        self._tree.slices.commit()
        self._actor.check_live()  # a commit that failed drops the agent, and there is no tombstone
        self._tree.alarms.forget_below(address)
        self._tree.questions.forget_below(address, self._actor)
        if self._actor.parent is not None:
            self._tree.ledger.hold(self._actor.stem, self._actor.registry.count())
        child = self._tree.actors.get(address)
        if child is not None:
            self._tree.drop(child, NotFound(f"{address} was deleted.", path=address.segments))
        self._actor.host.sockets.close_within(address, GOING_AWAY, DELETED)
        return self._tree.delete_in_background(self._actor, row.generation, address)

    async def delete_after(self, child: Actor) -> None:
        """Delete a child that asked for it itself: the tombstone now, the rest when its current call has ended."""
        tree, actor = self._tree, self._actor
        self._mark_deletion(child.address)
        if not actor.registry.bury(child.generation):
            return
        tree.detach(child)
        tree.forget_aborts(child.address)
        me = asyncio.current_task()

        async def tear_down() -> None:
            try:
                if me is not None:
                    await asyncio.wait({me}, timeout=LAST_WORDS)
            finally:
                # First of all, and whatever became of the tombstone, also if the node lets go of the tree during it:
                # it is detached, and must not write beside a new one.
                if child.dropped is None:
                    tree.drop(child, NotFound(f"{child.address} was deleted.", path=child.address.segments))
            actor.host.sockets.close_within(child.address, GOING_AWAY, DELETED)
            if actor.database.removed or all(child.generation != row.generation for row in actor.registry.buried()):
                return  # the parent went too, or the commit of the tombstone failed
            if actor.parent is not None:
                tree.ledger.hold(actor.stem, actor.registry.count())
            tree.delete_in_background(actor, child.generation, child.address)

        task = actor.host.loop.create_task(tear_down(), context=actor.host.context.copy())
        tree.deletions.add(task)
        task.add_done_callback(tree.deletions.discard)
        # Last, so that the rest follows whatever happens in this await, and the parent does not go to sleep before it.
        try:
            await actor.leave()
        except SapwoodError as error:
            # No tombstone: it lives on, but in its next incarnation.
            if child.dropped is None:
                tree.drop(child, Unavailable(f"{child.address} could not be deleted and restarts: {error}"))
            raise

    def has(self, cls: type | str, name: str) -> bool:
        self._actor.check_use()
        return self._actor.registry.has(_ids(cls), name)

    def list(self, cls: type | str | None, *, after: int, limit: int) -> list[SubAgent]:
        self._actor.check_use()
        page = self._actor.registry.page
        if cls is None:
            return page(None, after, limit)
        found = [child for id_ in _ids(cls) for child in page(id_, after, limit)]
        return sorted(found, key=lambda child: child.generation)[:limit]

    def status(self, cls: type, name: str) -> SubAgentStatus:
        self._actor.check_use()
        kind = known(cls)
        address = self._actor.address.child(kind.type, name)
        row = self._find(kind, name)
        if row is None:
            raise NotFound(f"{self._actor.address} has no {kind.type} named {name!r}.", path=address.segments)
        child = self._tree.actors.get(address)
        stem = child_stem(self._actor.stem, row.generation)
        if child is None:
            database = self._tree.database(stem, self._actor.limits)
            state, calls, idle, error = "aborted" if address in self._tree.aborted else "sleeping", 0, None, None
        else:
            database = child.database
            calls = len(child.calls)
            state = "starting" if child.is_starting else "busy" if calls else "idle"
            idle = child.host.loop.time() - child.last_active if state == "idle" else None
            error = child.last_error
        work = pending_work(database)
        return SubAgentStatus(
            state=state,
            created_at=row.created_at,
            calls=calls,
            idle_seconds=idle,
            children=ChildrenTable(database, self._actor.host.clock).count(),
            database_bytes=database.used_bytes() if database.exists else 0,
            last_error=error,
            sockets=self._actor.host.sockets.number_of(address),
            queued_calls=work.queued_calls,
            runs=work.runs,
            fibers=work.fibers,
            next_schedule_at=work.next_schedule_at,
        )

    async def subtree(self) -> Subtree:
        """Add up this agent and everything below it, asleep or awake."""
        self._actor.check_use()
        tree, clock = self._tree, self._actor.host.clock
        live = tree.live_below(self._actor)
        agents = size = deepest = 0
        pending: list[PendingWork] = []
        left: list[tuple[str, int]] = [(self._actor.stem, 0)]
        while left:
            stem, depth = left.pop()
            database = tree.database(stem, self._actor.limits)
            agents, deepest = agents + 1, max(deepest, depth)
            if not database.exists:
                continue
            size += database.used_bytes()
            pending.append(pending_work(database))
            after = 0
            while page := ChildrenTable(database, clock).generations(after, 1000):
                left.extend((child_stem(stem, generation), depth + 1) for generation, alive in page if alive)
                after = page[-1][0]
            await asyncio.sleep(0)
            self._actor.check_live()
        return Subtree(
            agents=agents,
            live=len(live),
            busy=sum(bool(actor.calls) for actor in live),
            database_bytes=size,
            deepest=deepest,
            calls=sum(len(actor.calls) for actor in live),
            sockets=sum(1 for _ in self._actor.host.sockets.within(self._actor.address)),
            queued_calls=sum(work.queued_calls for work in pending),
            runs=sum(work.runs for work in pending),
            fibers=sum(work.fibers for work in pending),
            next_schedule_at=min((at for work in pending if (at := work.next_schedule_at) is not None), default=None),
        )


def _ids(cls: type | str) -> tuple[str, ...]:
    """Return the type ids that children of this class may be stored under."""
    if isinstance(cls, str):
        return (cls,)
    return known(cls).type_ids
