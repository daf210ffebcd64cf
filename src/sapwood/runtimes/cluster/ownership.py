"""Which trees this node runs: the shards it owns, and who owns the others.

A shard is taken by writing its next owner message, which only one of several can. It is never taken from a node that
may still answer: only after its owner wrote that it released it, or is dead beyond doubt. What runs here follows: first
the message, then the holder of the trees is told, then calls are let in; and on the way out calls are stopped first,
and the message is last.

Who should own a shard follows from the names of the nodes that live. That is a wish: nothing is unsafe
while nodes see different ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.cancelling import cancel_all
from sapwood.kernel.ports import Epoch, Full, Holder
from sapwood.kernel.shards import SHARDS, shard_of
from sapwood.kernel.watchdog import Struck
from sapwood.runtimes.cluster.leases import LEASE, MARGIN, RENEWAL, Life, NodeLease, Now, now
from sapwood.runtimes.cluster.membership import Membership, settle
from sapwood.runtimes.cluster.nats_owners import FETCH, NOBODY, Ground, Held
from sapwood.runtimes.cluster.owners import Owner, turn_of, wished

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds that a caller waits for a shard to have an owner."""
MOVES = 6000
"""Shards that a node hands over per minute while all are well, so that others get their share."""
GROUP = 32
"""Shards that are handed over together: their trees pause during it."""
FETCHING, LEAVING = 30.0, 2.0
"""Seconds that the next owner is given to fetch large trees while they still run here; and if this node has to stop."""
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
        now: Now = now,
    ) -> None:
        self._ground = ground
        self._node = node
        self.strikes: Callable[[], Struck] = lambda: Struck({}, {})
        """Returns what trees did to this node."""
        self.life = uuid.uuid4().hex[:16]
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
            tell=lambda: {"shards": len(self._mine), "figures": figures(), **self.strikes()._asdict()},
            changed=self._members_changed,
            displaced=lambda: self._drop(list(self._mine)),
        )
        self._lease = self._membership.lease
        self._nodes = self._membership.nodes
        self._holder: Holder | None = None
        self._has_begun = False

        self._known: dict[int, Held] = {}
        """Who owns what, as far as this node was told."""
        self._mine: dict[int, Epoch] = {}
        """What this process owns."""
        self._here = bytearray(SHARDS)
        """Which of those calls may come to."""
        self._busy: set[int] = set()
        """Those that are being gained or let go."""
        self._doubted: set[int] = set()
        """Those whose owner has to be read before anything is made of them."""
        self._unsettled = set(range(SHARDS))
        """Those that may be without an owner."""
        self._free_since: dict[int, float] = {}
        self._promised: dict[int, str] = {}
        """What is to be handed over to whom, as soon as the pace allows."""
        self._passed_on: set[int] = set()
        """What this node must not run, because a newer program has written it."""
        self._asked: dict[str, float] = {}
        """Who was asked for shards, and when to ask again."""
        self._live: tuple[str, ...] = ()
        self._former: list[Life] = []
        """Those from whom something is being taken."""
        self._next_asking = 0.0
        self._tell_again = 0.0

        self._writing: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By stream: what was just written is known when more is."""
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
        return bool(self._here[shard])

    def fixed_owner(self, root: Address) -> str | None:
        """Return `None`: trees move."""
        return None

    async def owner(self, root: Address) -> str:
        """Return the node that runs the tree; wait while no node does. `Unavailable` if that takes too long."""
        shard = shard_of(root)
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    node = self._runs(shard)
                    if node:
                        return node
                    if self._membership.state == "left":
                        raise Unavailable("The app is not running: this node has left its cluster.")
                    await self._news()
        except TimeoutError:
            raise Unavailable("No node runs this tree now.") from None

    async def until_moved(self, shard: int, seconds: float) -> None:
        """Return as soon as a shard has another owner than now, after so many seconds at the latest."""
        before = self._known.get(shard)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._known.get(shard) is before:
                    await self._news()

    async def _news(self) -> None:
        """Return when something is known of owners that was not."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _runs(self, shard: int) -> str:
        if self._here[shard]:
            return self._node
        if shard in self._doubted or shard in self._mine:
            return ""
        owner = self._known.get(shard, NOBODY).owner
        if owner.life == self.life or self._nodes.is_dead(Life(owner.node, owner.life)):
            return ""
        return owner.node

    async def everybody(self) -> Iterable[str]:
        """Return all nodes that live, this one included."""
        return sorted({*self._nodes.live(), self._node})

    def pool_of(self, node: str) -> str:
        """Return the pool that a node is for: there are none here."""
        return ""

    def lock_of(self, node: str) -> str:
        """Return the name of the file in the data folder that has the id of a node's process: only of our own."""
        return "lock" if node == self._node else ""

    # What whoever writes and answers asks.

    def epoch_of(self, shard: int) -> Epoch | None:
        """Return our ownership of a shard, or `None` if it is not ours."""
        return self._mine.get(shard)

    def displaced(self) -> str | None:
        """Return why this node can never answer again, or `None` if it can."""
        return "Another process is this node now: two had the same name." if self._membership.is_displaced else None

    def holds_lease(self) -> bool:
        """Return whether anything may leave this node now."""
        return self._lease.is_valid()

    def heard_wrong(self, shard: int) -> None:
        """The known owner turned out to be wrong: read the current one."""
        if shard not in self._mine and shard not in self._busy:
            self._doubted.add(shard)
            self._wake.set()

    def fenced(self, shards: Collection[int]) -> None:
        """The log refused what we wrote, or did not answer: drop these; take again what is still ours."""
        log.warning("dropped %d shards: another owner, or no answer from the log", len(shards))
        self._doubted.update(shards)
        self._drop(shards)
        self._wake.set()

    def pass_on(self, shard: int, owner: str, number: int) -> bool:
        """Hand a shard to a node that has this migration, and do not want it back; False: no such node lives."""
        live = self._nodes.live().items()
        newer = [node for node, lease in live if node != self._node and lease.knows.get(owner, 0) >= number]
        if not newer:
            return False
        self._passed_on.add(shard)
        if shard in self._mine:
            self._promised[shard] = wished(shard, newer)
        return True

    def struck(self) -> list[Struck]:
        """Return what trees did to other nodes."""
        leases = self._nodes.leases().values()
        told = [lease for lease in leases if (lease.strikes or lease.released) and lease.life != self.life]
        return [Struck(lease.strikes, lease.released) for lease in told]

    def say(self) -> None:
        """Tell other nodes soon what this one has to tell."""
        self._membership.say()

    def shards(self) -> list[int]:
        """Return what this node owns."""
        return sorted(self._mine)

    def versions(self) -> dict[str, str]:
        """Return the version of the program on every node that lives."""
        return {node: lease.version for node, lease in self._nodes.live().items()}

    def status(self) -> dict[str, Any]:
        """Return the nodes, what each owns, and the shards without an owner."""
        at = self._now()
        owned: dict[Life, int] = {}
        nobodys: list[int] = []
        for shard in range(SHARDS):
            owner = self._known.get(shard, NOBODY).owner
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

    async def join(self, holder: Holder) -> None:
        """Take part: return when this node has a lease and owns the free shards that it should own."""
        self._holder = holder
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
            self._drop(list(self._mine))
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
        self._promised.clear()
        try:
            async with asyncio.timeout(patience):
                if self._acts:  # what is being gained has to be let go too
                    _, hanging = await asyncio.wait(list(self._acts), timeout=1)
                    await cancel_all(hanging)
                others = [node for node in self._nodes.live() if node != self._node]
                await self.hand_over({shard: wished(shard, others) for shard in self._mine})
                self._membership.state = "left"
                self._lease.end()
                await self._membership.look()
        except TimeoutError:
            log.warning(
                "%d shards not handed over within %.0f seconds: the cluster does not answer, or its log is full. "
                "Other nodes take them when the lease expires.",
                sum(1 for held in self._known.values() if held.owner.node and held.owner.life == self.life),
                patience,
            )
        finally:
            self._membership.state = "left"
            self._lease.end()
            self._drop(list(self._mine))
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
        """Go on with something whatever happens to it."""
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
            self._unsettled.update(range(SHARDS))
        self._wake.set()

    def _heard_owners(self, owners: Mapping[int, Held]) -> None:
        self._learn(owners)
        self._wake.set()

    def _learn(self, owners: Mapping[int, Held]) -> None:
        lost: list[int] = []
        lives: set[Life] = set()
        for shard, held in owners.items():
            if held.sequence <= self._known.get(shard, NOBODY).sequence:
                continue
            self._known[shard] = held
            self._unsettled.add(shard)
            self._free_since.pop(shard, None)
            if held.owner.life != self.life:
                if held.owner.node:
                    lives.add(Life(held.owner.node, held.owner.life))
                if shard in self._mine:
                    lost.append(shard)
        self._nodes.watch(lives)
        if lost:
            log.warning("lost %d shards to other nodes", len(lost))
            self._drop(lost)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        settle(waiting)

    def _drop(self, shards: Collection[int]) -> None:
        dropped = [shard for shard in shards if self._mine.pop(shard, None) is not None]
        for shard in dropped:
            self._here[shard] = 0
            self._promised.pop(shard, None)
        self._unsettled.update(dropped)
        if dropped and self._holder is not None:
            self._holder.lost(dropped)

    # The loop that decides.

    async def _act_for_ever(self) -> None:
        next_look = 0.0
        while True:
            self._wake.clear()
            if self._doubted:
                doubted = set(self._doubted)
                self._learn(await self._ground.read(doubted))
                self._doubted -= doubted
                self._tell_waiting()
            if self._now() >= next_look or not self._lease.is_checked:
                lapses = self._lease.lapses
                self._learn(await self._ground.changes())
                # All of it was read after the renewal that ended the lapse: nobody who counted us as dead
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
        take, wait = self._takeable(live)
        self._busy.update(take)
        for shards in self._by_stream(take):
            self._start(self._take(shards))
        at = self._now()
        if live != self._live or at >= self._next_asking:
            self._live = live
            self._next_asking = at + LOOK
            for node, shards in self._wanted(live).items():
                if self._asked.get(node, 0.0) <= at:
                    self._asked[node] = at + 5 * LOOK
                    self._start(self._ask_for(node, shards))
            owners = {Life(held.owner.node, held.owner.life) for held in self._known.values()}
            self._nodes.forget([life for life in self._nodes.dead() if life not in owners | {*self._former}])
        return min(wait, max(0.0, self._next_asking - at))

    def _takeable(self, live: Sequence[str]) -> tuple[list[int], float]:
        """Return what this node may take now, and when to look again at what others should take first."""
        at = self._now()
        take: list[int] = []
        wait = LOOK
        for shard in list(self._unsettled):
            owner = self._known.get(shard, NOBODY).owner
            if shard in self._busy or shard in self._doubted:
                continue
            is_ours = bool(owner.node) and owner.life == self.life
            is_anothers = bool(owner.node) and not is_ours and not self._nodes.is_dead(Life(owner.node, owner.life))
            if shard in self._mine or is_anothers:
                self._unsettled.discard(shard)
                continue
            turn = self._free_since.setdefault(shard, at) + turn_of(self._node, shard, owner, live) - at
            if turn <= 0 or is_ours:  # ours: it was written, and nothing heard of it
                take.append(shard)
            else:
                wait = min(wait, turn)
        return take, wait

    def _wanted(self, live: tuple[str, ...]) -> dict[str, list[int]]:
        """Return what this node should own and others have."""
        wanted: dict[str, list[int]] = {}
        for shard, wish in enumerate(_wish(live)):
            if wish == self._node and not (shard in self._mine or shard in self._busy or shard in self._passed_on):
                owner = self._known.get(shard, NOBODY).owner
                if owner.node in live and owner.node != self._node:
                    wanted.setdefault(owner.node, []).append(shard)
        return wanted

    # Taking.

    async def _take(self, shards: Sequence[int]) -> None:
        """Become the owner of shards of one stream that are free, as far as nobody else is faster."""
        former: dict[Life, list[int]] = {}
        try:
            wishes: dict[int, Held] = {}
            for shard in shards:
                held = self._known.get(shard, NOBODY)
                owner = held.owner
                ended_well = not owner.node and owner.ended_well
                wishes[shard] = Held(held.sequence, Owner(owner.epoch + 1, self._node, self.life, "", ended_well))
                if owner.node and owner.life != self.life:
                    former.setdefault(Life(owner.node, owner.life), []).append(shard)
            self._former += former  # they must not be forgotten, although they will own nothing
            async with self._writing[self._ground.stream_of(shards[0])]:
                stored = await self._ground.write(wishes)
            self._doubted.update(shard for shard in shards if shard not in stored)
            self._learn(stored)
            await self._make_sure(former)
            gained: dict[int, bool] = {}
            for shard, held in stored.items():
                if self._known[shard] == held and shard not in self._doubted:
                    self._mine[shard] = Epoch(held.owner.epoch, held.sequence)
                    gained[shard] = held.owner.ended_well
            if gained:
                await self._gain(gained)
        except Unavailable:
            self._doubted.update(shards)
            raise
        finally:
            for life in former:
                self._former.remove(life)
            self._busy.difference_update(shards)
            self._unsettled.update(shards)

    async def _make_sure(self, former: Mapping[Life, list[int]]) -> None:
        """Return when those we took from are still dead, or know.

        Between our look at the leases and the write it may have come back and have checked that all is still its own.
        """
        left = dict(former)
        while left:
            await self._membership.look()
            for life, shards in list(left.items()):
                is_other = life.node != self._node
                if self._nodes.is_dead(life) or (is_other and await self._ground.ask(life.node, shards, "taken")):
                    del left[life]
            if left:
                await asyncio.sleep(0.5)

    async def _gain(self, shards: dict[int, bool]) -> None:
        """Have the trees of shards run here."""
        assert self._holder is not None
        epochs = {shard: self._mine[shard] for shard in shards}
        while True:
            try:
                await self._holder.gained(shards)
                break
            except Unavailable as error:
                log.warning("starting %d shards failed, retrying: %s", len(shards), error)
            except Exception:
                log.exception("starting %d shards failed, retrying", len(shards))
            await asyncio.sleep(1)
            shards = {shard: well for shard, well in shards.items() if self._mine.get(shard) == epochs[shard]}
        lost = [shard for shard in shards if self._mine.get(shard) != epochs[shard]]
        if lost:  # while it was asked what they have to do
            self._holder.lost(lost)
        for shard in shards.keys() - lost:
            self._here[shard] = 1
        self._tell_waiting()

    # Handing over.

    async def _ask_for(self, node: str, shards: Sequence[int]) -> None:
        if not await self._ground.ask(node, shards, "give"):
            self._asked[node] = self._now() + LOOK  # it does not know us yet, or is about to leave

    async def _heard_question(self, node: str, shards: Sequence[int], question: str, trees: Sequence[str] = ()) -> bool:
        if question == "taken":
            self._learn(await self._ground.read(shards))
            return not any(shard in self._mine for shard in shards)
        if question == FETCH:
            if self._holder is not None and self._membership.state == "here":
                await self._holder.fetch(map(Address.parse, trees))
            return True
        if self._membership.state != "here" or not self._lease.is_valid():
            return False
        if node not in self._nodes.live():
            await self._membership.look()
        live = tuple(sorted({*self._nodes.live(), self._node}))
        wish = _wish(live)
        for shard in shards:
            if shard in self._mine and wish[shard] == node:
                self._promised[shard] = node
        return node in live

    async def _hand_over_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            group = self._next_group()
            if group and self._membership.state == "here" and self._lease.is_valid():
                self._start(self.hand_over(group))

    def _next_group(self) -> dict[int, str]:
        """Return what to hand over next: all of one stream, so that it is one write here, and one there."""
        live = self._nodes.live()
        group: dict[int, str] = {}
        stream = -1
        for shard, node in list(self._promised.items()):
            if node not in live or shard not in self._mine:
                del self._promised[shard]
            elif self._here[shard] and shard not in self._busy and stream in (-1, self._ground.stream_of(shard)):
                stream = self._ground.stream_of(shard)
                group[shard] = self._promised.pop(shard)
                if len(group) == GROUP:
                    break
        self._busy.update(group)
        return group

    async def _have_fetched(self, shards: Mapping[int, str]) -> None:
        """Have whoever is to have these shards fetch their large trees, which go on meanwhile."""
        assert self._holder is not None
        trees: dict[str, list[str]] = {}
        for root in self._holder.large_trees(shards):
            trees.setdefault(shards[shard_of(root)], []).append(str(root))
        patience = FETCHING if self._membership.state == "here" else LEAVING  # the rest is read when it is there
        await asyncio.gather(*(self._ground.have_fetched(node, some, patience) for node, some in trees.items() if node))

    async def hand_over(self, shards: Mapping[int, str]) -> None:
        """Let go of shards, each for whom it is named with."""
        self._busy.update(shards)
        try:
            await self._have_fetched(shards)
            # A stream that nothing can be written to keeps no other waiting.
            groups = ({shard: shards[shard] for shard in group} for group in self._by_stream(shards))
            for error in await asyncio.gather(*map(self._release, groups), return_exceptions=True):
                if error is not None:
                    raise error
        finally:
            self._busy.difference_update(shards)
            self._unsettled.update(shards)
            self._wake.set()

    async def _release(self, shards: Mapping[int, str]) -> None:
        """Let go of shards of one stream, each for whom it is named with."""
        assert self._holder is not None
        for shard in shards:
            self._here[shard] = 0
        ended_well = True
        try:
            await self._holder.let_go(list(shards))
        except Exception:
            log.exception("releasing %d shards failed", len(shards))
            ended_well = False
        # Nothing is written under it any more. Whoever is to have it may be faster than the answer we wait for.
        let_go = {shard: self._mine.pop(shard) for shard in shards if shard in self._mine}
        releases = {
            shard: Held(epoch.sequence, Owner(epoch.number + 1, "", self.life, shards[shard], ended_well))
            for shard, epoch in let_go.items()
        }
        while releases:
            try:
                async with self._writing[self._ground.stream_of(next(iter(releases)))]:
                    stored = await self._ground.write(releases)
            except Full as error:
                if self._membership.state == "here":
                    log.warning("keeping %d shards: %s", len(releases), error)
                    self._mine.update(let_go)
                    await self._gain(dict.fromkeys(let_go, ended_well))
                    return
                await asyncio.sleep(1)
            except Unavailable as error:  # if it was stored nevertheless, it is refused the next time
                log.warning("releasing %d shards failed, retrying: %s", len(releases), error)
                await asyncio.sleep(1)
            else:
                self._learn(stored)
                self._doubted.update(shard for shard in releases if shard not in stored)
                return

    def _by_stream(self, shards: Iterable[int]) -> Iterable[list[int]]:
        groups: dict[int, list[int]] = {}
        for shard in shards:
            groups.setdefault(self._ground.stream_of(shard), []).append(shard)
        return groups.values()


@functools.lru_cache(maxsize=8)
def _wish(nodes: tuple[str, ...]) -> list[str]:
    """Return who should own each shard."""
    return [wished(shard, nodes) for shard in range(SHARDS)]
