"""Who lives: a node's own lease, and what it knows of the leases of others.

A node may answer and act while its lease is valid by its own clock, counted from before the renewal
was sent. Others count it as dead only after they saw, in a view of all leases that is certain to be
fresh, that it renewed nothing for the time of a lease and a margin. So no node is
counted as dead that may still answer or act, unless the rates of two clocks differ by more than the margin
is of the lease; and a node whose lease lapsed checks what it owns before it answers or acts again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, NamedTuple

import msgspec

from sapwood.clock import boot_time

LEASE = 12.0
"""Seconds that a lease lasts. An election among the NATS servers takes 4 to 9."""
RENEWAL = 3.0
"""Seconds between renewals."""
MARGIN = 1.5
"""Seconds beyond the lease before a node counts as dead."""

Now = Callable[[], float]


class NodeLease(msgspec.Struct, array_like=True, frozen=True):
    """What a node says of itself with every renewal."""

    node: str
    life: str
    """One process: a node that is started again has another one."""
    beat: int
    """Counts the renewals that were sent, stored or not."""
    version: str = ""
    """Of the program."""
    state: Literal["here", "leaving", "left"] = "here"
    shards: int = 0
    """How many it owns."""
    url: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    figures: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """Its load, for those who look at the cluster."""
    knows: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """How many migrations it has: of each class by its type id, and of each part of the framework."""
    strikes: dict[str, list[float]] = msgspec.field(default_factory=dict[str, list[float]])
    """When trees ended its process, by root: they are held back for what they did to any node."""
    released: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """When trees that were held back were let run again."""


class Life(NamedTuple):
    """One process of a node."""

    node: str
    life: str


class Lease:
    """The lease of this node, by its own clock."""

    def __init__(self, seconds: float = LEASE, *, margin: float = MARGIN, now: Now = boot_time) -> None:
        self._seconds = seconds
        self._margin = margin
        self._now = now
        self._sent = 0.0
        self._valid_until = 0.0
        self._unnoticed_until = 0.0
        """Until when a renewal comes before any other node can have counted us as dead."""
        self.lapses = 0
        """How often it lapsed; the first renewal of all counts as one."""
        self._checked = 0
        self._is_over = False

    def is_valid(self) -> bool:
        """Return whether this node may answer and act now."""
        return self._now() < self._valid_until

    @property
    def is_checked(self) -> bool:
        """Whether it was checked since the last lapse that we still own what we own."""
        return self._checked == self.lapses

    def renewed(self, sent: float) -> None:
        """Take note that a renewal is stored, which was sent then."""
        if self._is_over:
            return
        if self._now() >= self._unnoticed_until:
            self.lapses += 1
        self._sent = sent
        self._unnoticed_until = sent + self._seconds + self._margin / 2
        if self.is_checked:
            self._valid_until = sent + self._seconds

    def checked(self, lapses: int) -> None:
        """It was checked what we own, all of it after the lapse of this number and the renewal that followed."""
        if lapses == self.lapses and not self._is_over:
            self._checked = lapses
            self._valid_until = self._sent + self._seconds

    def end(self) -> None:
        """It is valid no more, whatever comes."""
        self._is_over = True
        self._valid_until = 0.0


class _Mark:
    """What was last seen of a life."""

    def __init__(self, beat: int, since: float) -> None:
        self.beat = beat
        self.since = since
        """It was sent before this time."""
        self.is_dead = False


def _said(lease: NodeLease) -> tuple[object, ...]:
    """Return what others have to know at once."""
    return lease.life, lease.state, lease.strikes, lease.released


GONE = -1
UNSEEN = -2


class Nodes:
    """Who lives, as one node knows it. Reads no clock: it is told when something was seen."""

    def __init__(self, seconds: float = LEASE, *, margin: float = MARGIN) -> None:
        self._until_dead = seconds + margin
        self._longest_gap = seconds / 2
        self._leases: dict[str, NodeLease] = {}
        self._marks: dict[Life, _Mark] = {}
        self._heard: dict[Life, dict[int, float]] = {}
        self._last_view: float | None = None

    def heard(self, lease: NodeLease, at: float) -> bool:
        """Take note that a renewal was sent; return whether it says something that the views so far do not."""
        beats = self._heard.setdefault(Life(lease.node, lease.life), {})
        beats.setdefault(lease.beat, at)
        while len(beats) > 16:
            del beats[next(iter(beats))]
        known = self._leases.get(lease.node)
        return known is None or _said(known) != _said(lease)

    def viewed(self, leases: Mapping[str, NodeLease], *, asked: float, answered: float) -> set[Life]:
        """Take note of all leases as they stood at some time between these two; return whose death is new.

        While no such view could be had, no node could renew either: then the time of every node starts again.
        """
        after_gap = self._last_view is None or asked - self._last_view > self._longest_gap
        self._last_view = answered
        self._leases = dict(leases)
        for lease in leases.values():
            self._marks.setdefault(Life(lease.node, lease.life), _Mark(UNSEEN, answered))
        dead: set[Life] = set()
        for life, mark in self._marks.items():
            lease = leases.get(life.node)
            beat = lease.beat if lease is not None and lease.life == life.life else GONE
            if mark.is_dead and beat == GONE:
                mark.beat = beat  # only its lease is no longer remembered
            elif beat != mark.beat:
                heard = self._heard.get(life, {}).get(beat, answered)
                mark.beat, mark.since, mark.is_dead = beat, answered if after_gap else heard, False
            elif after_gap and not mark.is_dead:
                mark.since = answered
            has_left = lease is not None and lease.life == life.life and lease.state == "left"
            if not mark.is_dead and (has_left or asked - mark.since >= self._until_dead):
                mark.is_dead = True
                dead.add(life)
        return dead

    def watch(self, lives: Collection[Life]) -> None:
        """Have these looked at too: they own something, and may not be seen under this name and life."""
        for life in lives:
            self._marks.setdefault(life, _Mark(UNSEEN, 0.0))

    def forget(self, lives: Collection[Life]) -> None:
        """These own nothing and are dead."""
        for life in lives:
            lease = self._leases.get(life.node)
            if lease is None or lease.life != life.life:
                self._marks.pop(life, None)
                self._heard.pop(life, None)

    def is_dead(self, life: Life) -> bool:
        """Return whether a life was seen to have renewed nothing for long enough."""
        mark = self._marks.get(life)
        return mark is not None and mark.is_dead

    def dead(self) -> list[Life]:
        """Return all that are known to be dead."""
        return [life for life, mark in self._marks.items() if mark.is_dead]

    def next_death(self) -> float | None:
        """Return when a node may have to be counted as dead, if nothing is seen of them until then."""
        seen = [mark for mark in self._marks.values() if not mark.is_dead and mark.beat != UNSEEN]
        return min((mark.since + self._until_dead for mark in seen), default=None)

    def leases(self) -> dict[str, NodeLease]:
        """Return every lease as it was last seen."""
        return self._leases

    def age(self, life: Life, at: float) -> float:
        """Return for how many seconds nothing new was seen of a life."""
        mark = self._marks.get(life)
        return at - mark.since if mark is not None else 0.0

    def live(self) -> dict[str, NodeLease]:
        """Return those who take part: they live, and are not about to leave."""
        return {
            node: lease
            for node, lease in self._leases.items()
            if lease.state == "here" and not self.is_dead(Life(node, lease.life))
        }
