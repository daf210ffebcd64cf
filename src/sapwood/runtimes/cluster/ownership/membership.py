"""A node's part in its cluster: it renews its lease, and looks at those of others each time.

What it sees then is certain to be no older than its own renewal, whichever replica it comes from:
its own is in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from sapwood.errors import Unavailable, UsageError
from sapwood.runtimes.cluster.base.ground import Ground
from sapwood.runtimes.cluster.base.leases import Lease, Life, NodeLease, Nodes, Now

log = logging.getLogger(__name__)

WATCHED = 2.2
"""Renewals for which a lease is watched to see whether it is renewed."""


class Membership:
    """The lease of this node, and those of others."""

    def __init__(
        self,
        ground: Ground,
        about: NodeLease,
        *,
        lease: float,
        renewal: float,
        margin: float,
        now: Now,
        tell: Callable[[], dict[str, Any]],
        changed: Callable[[bool], None],
        displaced: Callable[[], None],
    ) -> None:
        self._ground = ground
        self._about = about
        self._renewal = renewal
        self._until_dead = lease + margin
        self._now = now
        self._tell = tell
        """Returns what else the lease has to say now."""
        self._changed = changed
        """Called when something has to be decided again, with whether a node died."""
        self._displaced = displaced
        self.lease = Lease(lease, margin=margin, now=now)
        self.nodes = Nodes(lease, margin=margin)
        self.state: Literal["here", "leaving", "left"] = "here"
        self.is_displaced = False
        """Whether another process has our name."""
        self._beat = 0
        self._place = 0
        self._look_now = asyncio.Event()
        self._lookers: list[asyncio.Future[None]] = []

    async def begin(self) -> None:
        """Find out who had our name before; `UsageError` if it still lives."""
        node = self._about.node
        self._place, before = await self._ground.last_lease(node)
        if before is not None and before.state != "left":
            if await self._ground.is_heard(node) and await self._is_renewed(before):
                raise UsageError(
                    f"A node named {node!r} is already running in this cluster. Choose another name with "
                    "SAPWOOD_NODE or --node, or pass none to generate one."
                )
            log.info("a node %r existed before; its shards are taken when its lease expires", before.node)

    async def _is_renewed(self, before: NodeLease) -> bool:
        """Return whether another process renews this lease of our name; waits for one that is about to leave."""
        begun = self._now()
        while True:
            await asyncio.sleep(self._renewal / 4)
            self._place, last = await self._ground.last_lease(before.node)
            if last is None or last.state == "left":
                return False
            is_new = (last.life, last.beat) != (before.life, before.beat)
            if is_new and last.state == "here":
                return True
            if self._now() - begun > (self._until_dead if last.state == "leaving" else WATCHED * self._renewal):
                return is_new

    async def look(self) -> None:
        """Return when the leases were seen as they stand now or later, and our own says what is so now."""
        looker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lookers.append(looker)
        self._look_now.set()
        await looker

    def say(self) -> None:
        """Renew the lease soon: it says something new."""
        self._look_now.set()

    def heard(self, lease: NodeLease) -> None:
        """Take note of a renewal of another."""
        if lease.life != self._about.life and self.nodes.heard(lease, self._now()):
            self._look_now.set()

    async def renew_for_ever(self) -> None:
        """Renew in time, whatever the servers do; return when another process has our name."""
        failing: float | None = None
        while True:
            self._look_now.clear()
            lookers, self._lookers = self._lookers, []
            begun = self._now()
            goes_on = False
            try:
                async with asyncio.timeout(self._renewal):
                    goes_on = await self._renew()
            except (Unavailable, TimeoutError) as error:
                log.warning("renewing the lease failed: %s", str(error) or "timeout")
                self._lookers = lookers + self._lookers
                failing = begun if failing is None else failing
                if await self._is_worth_leaving(self._now() - failing):
                    failing = None
                    await self._ground.go_elsewhere()
                await asyncio.sleep(min(0.25, self._renewal / 4))
                continue
            except BaseException:
                self._lookers = lookers + self._lookers
                raise
            if not goes_on:
                return
            failing = None
            settle(lookers)
            await self._until_next(begun)

    async def _is_worth_leaving(self, failing: float) -> bool:
        """Return whether another server may do better than one by which nothing was renewed for so many seconds.

        A reachable server may be about to elect a leader with others. One that they lost always reports no leader.
        """
        if failing < self._renewal * 0.8:
            return False
        return failing >= self._renewal * 2 or not await self._ground.is_there()

    async def _until_next(self, begun: float) -> None:
        wait = begun + self._renewal - self._now()
        due = self.nodes.next_death()
        if due is not None:
            wait = min(wait, max(0.05, due - self._now() + 0.01))
        try:
            async with asyncio.timeout(max(0.02, wait)):
                await self._look_now.wait()
            await asyncio.sleep(0.005)  # several who want to know are told together
        except TimeoutError:
            pass

    async def _renew(self) -> bool:
        """Renew the lease, and look at those of others; return whether there is still one to renew."""
        sent = self._now()
        self._beat += 1
        beat, state = self._beat, self.state
        lease = msgspec.structs.replace(self._about, beat=beat, state=state, **self._tell())
        place = await self._ground.renew(lease, self._place)
        if place is None:
            self._place, last = await self._ground.last_lease(lease.node)
            if last is None or last.life == lease.life or beat == 1:
                return await self._renew()
            log.error("another process is the node %r now, this one stops answering", lease.node)
            self.lease.end()
            self.state = "left"
            self.is_displaced = True
            self._displaced()
            return False
        self._place = place
        self.lease.renewed(sent)
        while True:
            leases = await self._ground.leases()
            own = leases.get(lease.node)
            if own is not None and own.life == lease.life and own.beat >= beat:
                break
            await asyncio.sleep(0.02)  # that replica is behind: what it says of others is old too
        lived, before = set(self.nodes.live()), self.nodes.leases()
        dead = self.nodes.viewed(leases, asked=sent, answered=self._now())
        if gone := [_called(life, leases) for life in dead if self._is_news(life, before, leases)]:
            log.info("Gone: %s", ", ".join(sorted(gone)))
        if dead or not self.lease.is_checked or lived != set(self.nodes.live()):
            self._changed(bool(dead))
        return True

    def _is_news(self, life: Life, before: Mapping[str, NodeLease], now: Mapping[str, NodeLease]) -> bool:
        """Return whether to report the death of a node: not our own, nor of one that left before we came."""
        then, lease = before.get(life.node), now.get(life.node)
        if life.life == self._about.life:
            return False
        if lease is None or lease.life != life.life or lease.state != "left":
            return True
        return then is not None and then.life == life.life and then.state != "left"


def _called(life: Life, leases: Mapping[str, NodeLease]) -> str:
    """Return what to call a node that is gone: another process may have its name."""
    lease = leases.get(life.node)
    return life.node if lease is None or lease.life == life.life else f"the former {life.node}"


def settle(waiting: Iterable[asyncio.Future[None]]) -> None:
    """Let all waiters continue."""
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)
