"""Which trees this node runs: the shards it owns, and who owns the others.

Who should own a shard follows from the names of the nodes that live. That is a wish: nothing is unsafe
while nodes see different ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from sapwood.address import Address
from sapwood.clock import boot_time
from sapwood.errors import Unavailable
from sapwood.kernel.actors.quarantine import StrikeReport
from sapwood.kernel.aio import cancel_all
from sapwood.kernel.ports.log import Epoch
from sapwood.kernel.ports.placement import ShardHost
from sapwood.kernel.ports.shards import SHARDS, shard_of
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.runtimes.cluster.base.ground import FETCH, Ground, Held
from sapwood.runtimes.cluster.base.leases import LEASE, MARGIN, RENEWAL, Life, NodeLease, Now
from sapwood.runtimes.cluster.base.placement import wished
from sapwood.runtimes.cluster.ownership.membership import Membership, settle
from sapwood.runtimes.cluster.ownership.shard_moves import ShardMoves
from sapwood.runtimes.cluster.ownership.shard_table import ShardTable, wished_owners

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that a caller waits for a shard to have an owner."""
MOVES = 6000
"""Shards that a node hands over per minute while all are well, so that others get their share."""
GROUP = 32
"""Shards that are handed over together: their trees pause during it."""
JOINING = 120.0
"""Seconds that a node tries to take part while the servers elect the leaders of its streams."""
TELL_AGAIN = 5.0
"""Seconds between two lines in the log about the same trouble."""
LOOK = 2.0
"""Seconds between looks at the owners; news come at once unless they get lost."""


class Ownership:
    """The directory of a cluster, seen from one node."""

    def __init__(
        self,
        ground: Ground,
        node: str,
        *,
        version: str = "",
        url: str = "",
        labels: Mapping[str, str] | None = None,
        figures: Callable[[], dict[str, float]] = dict,
        knows: Mapping[str, int] | None = None,
        lease: float = LEASE,
        renewal: float = RENEWAL,
        margin: float = MARGIN,
        moves_per_minute: float = MOVES,
        patience: float = PATIENCE,
        now: Now = boot_time,
        random: Random = SYSTEM,
    ) -> None:
        self._ground = ground
        self._node = node
        self.strikes: Callable[[], StrikeReport] = lambda: StrikeReport({}, {})
        """Returns what trees did to this node."""
        self.life = new_id(random, 8)
        self._table = ShardTable(node, self.life)
        self._pause = GROUP * 60 / moves_per_minute
        self._patience = patience
        self._now = now
        self._membership = Membership(
            ground,
            NodeLease(node, self.life, 0, version, url=url, labels=dict(labels or {}), knows=dict(knows or {})),
            lease=lease,
            renewal=renewal,
            margin=margin,
            now=now,
            tell=lambda: {"shards": len(self._table.owned()), "figures": figures(), **self.strikes()._asdict()},
            changed=self._members_changed,
            displaced=lambda: self._drop(self._table.owned()),
        )
        self._lease = self._membership.lease
        self._nodes = self._membership.nodes
        self._moves = ShardMoves(
            ground, self._table, self._membership, node, self.life, learn=self._learn, opened=self._tell_waiting
        )
        self._has_begun = False

        self._asked: dict[str, float] = {}
        """Who was asked for shards, and when to ask again."""
        self._live: tuple[str, ...] = ()
        self._next_asking = 0.0
        self._tell_again = 0.0

        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._has_looked = asyncio.Event()
        self._loops: list[asyncio.Task[None]] = []
        self._acts: set[asyncio.Task[None]] = set()

    # What the kernel asks.

    @property
    def here(self) -> str:
        """The name of this node."""
        return self._node

    def is_here(self, root: Address) -> bool:
        """Return whether this node may run the tree."""
        return self.has(shard_of(root))

    def has(self, shard: int) -> bool:
        """Return whether this node may run the trees of a shard."""
        return self._table.is_open(shard)

    def fixed_owner(self, root: Address) -> str | None:
        """Return `None`: trees move."""
        return None

    async def owner(self, root: Address) -> str:
        """Return the node that runs the tree; wait while no node does. `Unavailable` if that takes too long."""
        shard = shard_of(root)
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    node = self._table.runs(shard, self._nodes.is_dead)
                    if node:
                        return node
                    if self._membership.state == "left":
                        raise Unavailable("The app is not running: this node has left its cluster.")
                    await self._news()
        except TimeoutError:
            raise Unavailable("No node runs this tree now.") from None

    async def until_moved(self, shard: int, seconds: float) -> None:
        """Return as soon as a shard has another owner than now, after so many seconds at the latest."""
        before = self._table.held(shard)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._table.held(shard) is before:
                    await self._news()

    async def _news(self) -> None:
        """Return when something is known of owners that was not."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    async def everybody(self) -> Iterable[str]:
        """Return all nodes that live, this one included."""
        return sorted({*self._nodes.live(), self._node})

    def pool_of(self, node: str) -> str:
        """Return the pool that a node is for: there are none here."""
        return ""

    def lock_of(self, node: str) -> str:
        """Return the name of the file in the data folder that has the id of a node's process: only of our own."""
        return "lock" if node == self._node else ""

    # Queries of the code that writes and that answers.

    def epoch_of(self, shard: int) -> Epoch | None:
        """Return our ownership of a shard, or `None` if it is not ours."""
        return self._table.epoch_of(shard)

    def displaced(self) -> str | None:
        """Return why this node can never answer again, or `None` if it can."""
        return "Another process is this node now: two had the same name." if self._membership.is_displaced else None

    def holds_lease(self) -> bool:
        """Return whether anything may leave this node now."""
        return self._lease.is_valid()

    def heard_wrong(self, shard: int) -> None:
        """The known owner turned out to be wrong: read the current one."""
        if self._table.doubt_other(shard):
            self._wake.set()

    def fenced(self, shards: Collection[int]) -> None:
        """The log refused what we wrote, or did not answer: drop these; take again what is still ours."""
        log.warning("dropped %d shards: another owner, or no answer from the log", len(shards))
        self._table.doubt(shards)
        self._drop(shards)
        self._wake.set()

    def pass_on(self, shard: int, owner: str, number: int) -> bool:
        """Hand a shard to a node that has this migration, and do not want it back; False: no such node lives."""
        live = self._nodes.live().items()
        newer = [node for node, lease in live if node != self._node and lease.knows.get(owner, 0) >= number]
        if not newer:
            return False
        self._table.pass_on(shard, wished(shard, newer))
        return True

    def struck(self) -> list[StrikeReport]:
        """Return what trees did to other nodes."""
        leases = self._nodes.leases().values()
        told = [lease for lease in leases if (lease.strikes or lease.released) and lease.life != self.life]
        return [StrikeReport(lease.strikes, lease.released) for lease in told]

    def say(self) -> None:
        """Tell other nodes soon what this one has to tell."""
        self._membership.say()

    def shards(self) -> list[int]:
        """Return what this node owns."""
        return self._table.owned()

    def versions(self) -> dict[str, str]:
        """Return the version of the program on every node that lives."""
        return {node: lease.version for node, lease in self._nodes.live().items()}

    def status(self) -> dict[str, Any]:
        """Return the nodes, what each owns, and the shards without an owner."""
        at = self._now()
        owned: dict[Life, int] = {}
        nobodys: list[int] = []
        for shard in range(SHARDS):
            owner = self._table.owner(shard)
            life = Life(owner.node, owner.life)
            if not owner.node or self._nodes.is_dead(life):
                nobodys.append(shard)
            else:
                owned[life] = owned.get(life, 0) + 1
        nodes = [
            {
                "node": lease.node,
                "life": lease.life,
                "version": lease.version,
                "state": "dead" if self._nodes.is_dead(Life(lease.node, lease.life)) else lease.state,
                "age": max(0.0, self._nodes.age(Life(lease.node, lease.life), at)),
                "shards": owned.get(Life(lease.node, lease.life), 0),
                "url": lease.url,
                "labels": lease.labels,
                "figures": lease.figures,
            }
            for lease in self._nodes.leases().values()
            if lease.state != "left"
        ]
        return {"nodes": sorted(nodes, key=lambda node: str(node["node"])), "without_owner": nobodys}

    # Coming and going.

    async def join(self, holder: ShardHost) -> None:
        """Take part: return when this node has a lease and owns the free shards that it should own."""
        self._moves.holder = holder
        if not self._has_begun:
            await self.begin()
        await self._ground.listen(self._node, self._membership.heard, self._heard_owners, self._heard_question)
        end = asyncio.get_running_loop().time() + JOINING
        self._loops = [
            asyncio.ensure_future(self._always(self._membership.renew_for_ever)),
            asyncio.ensure_future(self._always(self._act_for_ever)),
            asyncio.ensure_future(self._always(self._hand_over_for_ever)),
        ]
        try:
            async with asyncio.timeout_at(end):
                await self._has_looked.wait()
                if self._acts:
                    await asyncio.wait(list(self._acts))
        except TimeoutError:
            self._membership.state = "left"
            self._lease.end()
            self._drop(self._table.owned())
            await self._stop()
            raise Unavailable("The node could not join the cluster: its streams do not answer.") from None

    async def begin(self) -> None:
        """Find out who had our name before, before anything is heard by it; `UsageError` if that one still lives."""
        end = asyncio.get_running_loop().time() + JOINING
        while True:
            try:
                await self._membership.begin()
                self._has_begun = True
                return
            except Unavailable as error:
                if asyncio.get_running_loop().time() > end:
                    self._membership.state = "left"
                    raise
                log.info("streams of the cluster do not answer yet: %s", error)
                await asyncio.sleep(0.5)

    async def leave(self, patience: float = PATIENCE) -> None:
        """Hand over everything, each shard to its next owner, and leave the cluster."""
        if self._membership.state == "left" or not self._loops:  # it never joined, or could not
            await self._stop()
            return
        self._membership.state = "leaving"
        self._table.forget_promises()
        try:
            async with asyncio.timeout(patience):
                if self._acts:  # what is being gained has to be let go too
                    _, hanging = await asyncio.wait(list(self._acts), timeout=1)
                    await cancel_all(hanging)
                others = [node for node in self._nodes.live() if node != self._node]
                await self.hand_over({shard: wished(shard, others) for shard in self._table.owned()})
                self._membership.state = "left"
                self._lease.end()
                await self._membership.look()
        except TimeoutError:
            log.warning(
                "%d shards not handed over within %.0f seconds: the cluster does not answer, or its log is full. "
                "Other nodes take them when the lease expires.",
                self._table.count_written(),
                patience,
            )
        finally:
            self._membership.state = "left"
            self._lease.end()
            self._drop(self._table.owned())
            await self._stop()

    async def die(self) -> None:
        """Take part no more as the end of the process does: nothing is said or written."""
        self._membership.state = "left"
        self._lease.end()
        await self._stop()

    async def _stop(self) -> None:
        await cancel_all([*self._loops, *self._acts])
        self._tell_waiting()
        self._loops = []
        await self._ground.close()

    async def _always(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something until it returns, again whenever it raises."""
        while True:
            try:
                await act()
                return
            except Unavailable as error:
                if self._now() >= self._tell_again:  # it is tried four times a second
                    self._tell_again = self._now() + TELL_AGAIN
                    log.warning("streams of the cluster do not answer: %s", error)
            except Exception:
                log.exception("ownership loop failed, continuing")
            await asyncio.sleep(0.25)

    def _start(self, act: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(act)
        self._acts.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._acts.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Unavailable):
            log.warning("moving shards failed, retrying: %s", error)
        elif error is not None:
            log.error("moving shards failed", exc_info=error)
        self._wake.set()

    # What is known of owners.

    def _members_changed(self, died: bool) -> None:
        if died:
            self._table.unsettle()
        self._wake.set()

    def _heard_owners(self, owners: Mapping[int, Held]) -> None:
        self._learn(owners)
        self._wake.set()

    def _learn(self, owners: Mapping[int, Held]) -> None:
        lost, lives = self._table.learn(owners)
        self._nodes.watch(lives)
        if lost:
            log.warning("lost %d shards to other nodes", len(lost))
            self._drop(lost)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        settle(waiting)

    def _drop(self, shards: Collection[int]) -> None:
        dropped = self._table.drop(shards)
        if dropped and self._moves.holder is not None:
            self._moves.holder.lost(dropped)

    # The loop that decides.

    async def _act_for_ever(self) -> None:
        next_look = 0.0
        while True:
            self._wake.clear()
            if doubted := self._table.doubted():
                self._learn(await self._ground.read(doubted))
                self._table.trust(doubted)
                self._tell_waiting()
            if self._now() >= next_look or not self._lease.is_checked:
                lapses = self._lease.lapses
                self._learn(await self._ground.changes())
                # All of it was read after the renewal that ended the lapse: no node that counted us as dead
                # can have taken anything that we do not know of, unless it sees that we live again.
                if lapses:
                    self._lease.checked(lapses)
                next_look = self._now() + LOOK
            wait = self._decide()
            if self._lease.is_valid():
                self._has_looked.set()
            try:
                async with asyncio.timeout(max(0.01, min(wait, next_look - self._now()))):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _decide(self) -> float:
        """Take what may be taken, and ask for what others should not have; return when to decide again."""
        if self._membership.state != "here" or not self._lease.is_valid():
            return LOOK
        live = tuple(sorted({*self._nodes.live(), self._node}))
        take, wait = self._table.takeable(live, self._now(), self._nodes.is_dead, LOOK)
        self._table.reserve(take)
        for shards in self._moves.by_stream(take):
            self._start(self._moves.take(shards))
        at = self._now()
        if live != self._live or at >= self._next_asking:
            self._live = live
            self._next_asking = at + LOOK
            for node, shards in self._table.wanted(live).items():
                if self._asked.get(node, 0.0) <= at:
                    self._asked[node] = at + 5 * LOOK
                    self._start(self._ask_for(node, shards))
            owners = self._table.lives()
            self._nodes.forget([life for life in self._nodes.dead() if life not in owners | {*self._moves.former}])
        return min(wait, max(0.0, self._next_asking - at))

    # Handing over.

    async def _ask_for(self, node: str, shards: Sequence[int]) -> None:
        if not await self._ground.ask(node, shards, "give"):
            self._asked[node] = self._now() + LOOK  # it does not know us yet, or is about to leave

    async def _heard_question(self, node: str, shards: Sequence[int], question: str, trees: Sequence[str] = ()) -> bool:
        if question == "taken":
            self._learn(await self._ground.read(shards))
            return not any(map(self._table.owns, shards))
        if question == FETCH:
            if self._moves.holder is not None and self._membership.state == "here":
                await self._moves.holder.fetch(map(Address.parse, trees))
            return True
        if self._membership.state != "here" or not self._lease.is_valid():
            return False
        if node not in self._nodes.live():
            await self._membership.look()
        live = tuple(sorted({*self._nodes.live(), self._node}))
        wish = wished_owners(live)
        for shard in shards:
            if wish[shard] == node:
                self._table.promise(shard, node)
        return node in live

    async def _hand_over_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            if self._membership.state != "here" or not self._lease.is_valid():
                continue  # what is promised stays promised, and is not reserved for an act that does not begin
            if group := self._table.next_group(self._nodes.live(), self._ground.stream_of, GROUP):
                self._start(self.hand_over(group))

    async def hand_over(self, shards: Mapping[int, str]) -> None:
        """Let go of shards, each for whom it is named with."""
        try:
            await self._moves.hand_over(shards)
        finally:
            self._wake.set()
