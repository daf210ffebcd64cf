"""Wakes the agents that have something to do, each independently of the others.

A tree that is due is looked at: its index names the agents, and each of them is woken in
a task of its own, without starting those above it. One that cannot be woken is tried
again later and later, and delays no other agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol

from sapwood.address import Address, PathSegment
from sapwood.clock import Clock
from sapwood.errors import MovedAway, NotFound, SapwoodError, UnknownAgent, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.alarms.node_index import FOREVER, NodeAlarms
from sapwood.kernel.marshal.agent_class import AgentClass, resolve
from sapwood.kernel.marshal.failure_log import FailureLog
from sapwood.kernel.node.tree_loader import TreeLoader
from sapwood.kernel.ports.placement import Forwarded
from sapwood.kernel.trees.tree import Tree

log = logging.getLogger(__name__)

PAGE = 200
AT_ONCE = 128
"""How many agents may be starting for an alarm at once."""
BEGUN_AT_ONCE = 100
"""How many calls may be started for alarms before other tasks have a turn."""
PATIENCE = 5.0
"""Seconds after which one that is still starting no longer counts among those."""
LONGEST_BACK_OFF = 300.0


class Woods(Protocol):
    """What waking asks of the node."""

    loop: asyncio.AbstractEventLoop
    context: Context
    clock: Clock
    alarms: NodeAlarms
    failures: FailureLog
    roots: Sequence[AgentClass]
    loader: TreeLoader
    begin_due: Callable[[Actor], float | None]
    """Begins what an agent has to do by now; returns when it has more."""

    async def until_owned(self, root: Address) -> bool:
        """Return whether a tree is this node's; if it is about to be, once it is."""
        ...

    async def reach_alone(self, address: Address) -> Actor: ...


class Throttle:
    """Lets only so much begin in one turn of the loop, first come, first served: others want their turn too."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._most = self._left = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._renewing = False

    async def wait(self) -> None:
        """Return when something may begin; the caller reports with `take` how much it was."""
        if self._left > 0 and not self._waiting:
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            self.take(0)  # perhaps it was let in just now: the next one is
            raise

    def take(self, much: int) -> None:
        """So much has begun."""
        self._left -= much
        if not self._renewing:
            self._renewing = True
            self._loop.call_soon(self._renew)  # behind what has begun
        self._let_in()

    def _renew(self) -> None:
        self._renewing = False
        self._left = self._most
        self._let_in()

    def _let_in(self) -> None:
        while self._left > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break


class AlarmDispatcher:
    """Answers the alarms of one node."""

    def __init__(self, woods: Woods) -> None:
        self._woods = woods
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._turns = Throttle(woods.loop, BEGUN_AT_ONCE)
        self._busy: dict[Address, asyncio.Task[None]] = {}
        """The agents that are being woken."""
        self._failures: dict[Address, tuple[int, float]] = {}
        """Agents that could not be woken: the number of failures, and when to try again."""
        self._unseen: dict[Address, tuple[int, float]] = {}
        """Trees that could not be read, likewise. Not the same: others may be woken in a tree whose root cannot be."""
        self.looking = 0
        """How many trees are being looked at."""

    @property
    def is_quiet(self) -> bool:
        """Whether no agent is being woken right now."""
        return not self.looking and not self._busy

    @property
    def waiting(self) -> int:
        """How many agents are being woken, or wait for it."""
        return len(self._busy)

    def look(self, root: Address) -> None:
        """Look at a tree that is due."""
        self.looking += 1
        self._spawn(self._look(root))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._woods.loop.create_task(work, context=self._woods.context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self) -> set[asyncio.Task[None]]:
        """Stop waking agents; return what still unwinds."""
        for task in self._tasks:
            task.cancel()
        return self._tasks

    async def _look(self, root: Address) -> None:
        alarms = self._woods.alarms
        try:
            until = await self._wake_due(root)
            if until is not None:
                alarms.hold(root, until)
        except Exception as error:  # noqa: BLE001 - whatever it is, this tree must not take the others along
            alarms.hold(root, self._later(self._unseen, root, error))
        finally:
            self.looking -= 1

    async def _wake_due(self, root: Address) -> float | None:
        """Wake the agents that are due in a tree; return when to look at it again, or `None` for the stored time."""
        now = self._woods.clock.now()
        if self._unseen.get(root, (0, 0.0))[1] > now:
            return self._unseen[root][1]
        if not await self._woods.until_owned(root):
            self._woods.alarms.lose(root)
            return None
        known, kind = self.root_known_as(root)
        try:
            while (tree := await self._woods.loader.load(known, kind)).destroyed is not None:
                await asyncio.shield(tree.destroyed)
        except (Forwarded, MovedAway):  # the process that it was moved to wakes it
            self._woods.alarms.forget(root)
            return None
        _tell(tree, known, [kind])
        if known != root:
            # Its class has another type id by now, and the tree another address.
            self._woods.alarms.earlier(known, now, 0)
            self._woods.alarms.forget(root)
            return None
        if not tree.root.exists:
            self._woods.alarms.forget(root)
            return None
        with tree.visited():
            return await self._wake_in(tree, now)

    async def _wake_in(self, tree: Tree, now: float) -> float | None:
        following = FOREVER
        after = (-FOREVER, "")
        while page := tree.alarms.due(now, after, PAGE):
            for text, _ in page:
                owner = Address.parse(text)
                until = self._failures.get(owner, (0, 0.0))[1]
                if until > now:
                    following = min(following, until)
                elif owner not in self._busy:
                    self._busy[owner] = self._spawn(self._wake(tree, owner))
            after = (page[-1][1], page[-1][0])
            await asyncio.sleep(0)
            if tree.destroyed is not None:
                return now  # whatever comes after it is looked at then
            if len(page) < PAGE:
                break
        self._unseen.pop(tree.address, None)
        if not after[1]:
            await tree.alarms.tell_node()
            return None
        return min(following, tree.alarms.next_after(now))

    async def _wake(self, tree: Tree, owner: Address) -> None:
        with tree.visited():
            try:
                await self._wake_one(tree, owner)
            except Exception as error:  # noqa: BLE001 - the user's on_start may raise anything
                if isinstance(error, NotFound) and not tree.has(self._known_as(owner, tree.kinds)[0]):
                    await self._forget(tree, owner)
                else:
                    self._woods.alarms.look_by(tree.address, self._later(self._failures, owner, error))
            finally:
                self._busy.pop(owner, None)

    async def _wake_one(self, tree: Tree, owner: Address) -> None:
        known, kinds = self._known_as(owner, tree.kinds)
        _tell(tree, known, kinds)
        following = await self._begin(tree, known)
        self._failures.pop(owner, None)
        if known != owner and tree.destroyed is None:
            tree.alarms.exactly(owner, None, 0)
        if following is not None:
            self._woods.alarms.look_by(tree.address, following)

    async def _forget(self, tree: Tree, owner: Address) -> None:
        """Forget an agent that was deleted without notice, unless it was created again since."""
        self._failures.pop(owner, None)
        if tree.destroyed is not None:
            await asyncio.shield(tree.destroyed)
            self._woods.alarms.look_by(tree.address, self._woods.clock.now())  # there may be another in its place
        elif owner not in tree.actors:
            tree.alarms.forget_below(owner)
            await tree.alarms.tell_node()

    async def _begin(self, tree: Tree, owner: Address) -> float | None:
        """Wake an agent and begin what it has to do, once it is its turn; return when it has more."""
        while True:
            actor = tree.actors.get(owner)
            if actor is None or not actor.ready:
                actor = await self._reach(owner)
            await self._turns.wait()
            before = len(actor.calls)
            try:
                if tree.destroyed is not None:
                    raise NotFound(path=tree.address.segments)
                if actor.ready:
                    return self._woods.begin_due(actor)
            finally:
                self._turns.take(len(actor.calls) - before)

    async def _reach(self, owner: Address) -> Actor:
        reaching = self._woods.loop.create_task(self._woods.reach_alone(owner), context=self._woods.context.copy())
        try:
            async with self._slots:
                await asyncio.wait({reaching}, timeout=PATIENCE)
            return await reaching
        finally:
            reaching.cancel()

    def _later(self, failures: dict[Address, tuple[int, float]], who: Address, error: BaseException) -> float:
        failed = failures.get(who, (0, 0.0))[0] + 1
        wait = min(2.0 ** (failed - 1), LONGEST_BACK_OFF)
        until = self._woods.clock.now() + wait
        failures[who] = (failed, until)
        self._woods.failures.report(
            log,
            logging.WARNING,
            "waking %s for an alarm failed, retry in %.0f s: %s",
            who,
            wait,
            error,
            error=error,
            about=who,
            traceback=None if isinstance(error, SapwoodError) else error,
            address=str(who),
        )
        return until

    def forgive(self, who: Address) -> None:
        """An agent was woken by other means: the next alarm of it is tried at once."""
        self._failures.pop(who, None)

    def root_known_as(self, root: Address) -> tuple[Address, AgentClass | None]:
        """Return the address of a root with the type id that its class has now, and that class."""
        known, (kind,) = self._known_as(root, {})
        return known, kind

    def _known_as(self, address: Address, told: Mapping[str, AgentClass]) -> tuple[Address, list[AgentClass | None]]:
        """Return an address with the type ids that its classes have now, and those classes."""
        steps: list[PathSegment] = []
        kinds: list[AgentClass | None] = []
        for step in address.segments:
            try:
                kind = told.get(step.type) or resolve(step.type, self._woods.roots)
            except UnknownAgent:
                raise
            except UsageError:
                kind = None  # several classes have it
            steps.append(step if kind is None else step._replace(type=kind.type))
            kinds.append(kind)
        return Address(tuple(steps)), kinds


def _tell(tree: Tree, address: Address, kinds: list[AgentClass | None]) -> None:
    """Have a tree know the classes on the way to an agent, which is stored under a former id perhaps."""
    for step, kind in zip(address.segments, kinds, strict=True):
        if kind is not None:
            tree.kinds.setdefault(step.type, kind)
