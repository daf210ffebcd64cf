"""A lease and its observers, by a clock that the test moves; and that no shard is ever answered for by two nodes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from sapwood.runtimes.cluster.base.leases import Lease, Life, NodeLease, Nodes
from sapwood.runtimes.cluster.base.placement import STAGGER, ShardOwner, ranking, turn_of, wished

SECONDS, MARGIN = 12.0, 1.5


class Time:
    """What all clocks show."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def a_lease() -> tuple[Lease, Time]:
    time = Time()
    lease = Lease(SECONDS, margin=MARGIN, now=time)
    lease.renewed(time.at)
    lease.checked(lease.lapses)
    return lease, time


def test_a_lease_counts_from_before_its_renewal_was_sent() -> None:
    lease, time = a_lease()
    sent = time.at
    time.at += 5
    lease.renewed(sent)

    time.at = sent + SECONDS - 0.1
    assert lease.is_valid()
    time.at = sent + SECONDS
    assert not lease.is_valid()


def test_a_new_lease_is_not_valid_before_it_was_checked() -> None:
    lease = Lease(SECONDS, margin=MARGIN, now=Time())
    lease.renewed(1000.0)

    assert not lease.is_valid()


def test_after_a_lapse_a_renewal_is_not_enough() -> None:
    lease, time = a_lease()
    time.at += 20
    assert not lease.is_valid()

    lease.renewed(time.at)

    assert not lease.is_valid()
    lease.checked(lease.lapses)
    assert lease.is_valid()


def test_an_answer_that_comes_after_the_process_was_stopped_does_not_count() -> None:
    lease, time = a_lease()
    sent = time.at + 3
    time.at += 20
    lease.renewed(sent)

    assert not lease.is_valid()
    assert not lease.is_checked


def test_a_check_that_began_before_another_lapse_does_not_count() -> None:
    lease, time = a_lease()
    time.at += 20
    lease.renewed(time.at)
    before = lease.lapses
    time.at += 20
    lease.renewed(time.at)

    lease.checked(before)

    assert not lease.is_valid()


def test_a_renewal_that_nobody_can_have_missed_needs_no_check() -> None:
    lease, time = a_lease()
    time.at += SECONDS + MARGIN / 4

    lease.renewed(time.at)

    assert lease.is_valid()


def test_a_lease_that_was_ended_stays_so() -> None:
    lease, time = a_lease()
    lease.end()
    lease.renewed(time.at)
    lease.checked(lease.lapses)

    assert not lease.is_valid()


A, B = Life("a", "1"), Life("b", "1")


def views(nodes: Nodes, beats: dict[int, NodeLease], times: list[int]) -> set[Life]:
    dead: set[Life] = set()
    for at in times:
        dead |= nodes.viewed({"a": beats[at]} if at in beats else {"a": beats[max(beats)]}, asked=at, answered=at)
    return dead


def test_a_node_is_dead_when_nothing_new_was_seen_for_a_lease_and_the_margin() -> None:
    nodes = Nodes(SECONDS, margin=MARGIN)
    lease = NodeLease("a", "1", 1)

    assert views(nodes, {0: lease}, [0, 3, 6, 9, 12, 13]) == set()
    assert "a" in nodes.live()
    assert nodes.next_death() == 13.5
    assert views(nodes, {0: lease}, [14]) == {A}
    assert "a" not in nodes.live()


def test_time_during_which_nothing_could_be_seen_does_not_count() -> None:
    nodes = Nodes(SECONDS, margin=MARGIN)
    lease = NodeLease("a", "1", 1)

    assert views(nodes, {0: lease}, [0, 3, 15, 18, 21, 24, 27]) == set()
    assert views(nodes, {0: lease}, [29]) == {A}


def test_a_renewal_counts_from_when_it_was_heard() -> None:
    nodes = Nodes(SECONDS, margin=MARGIN)
    nodes.viewed({"a": NodeLease("a", "1", 1)}, asked=0, answered=0)
    nodes.heard(NodeLease("a", "1", 2), 1.0)
    nodes.viewed({"a": NodeLease("a", "1", 2)}, asked=3, answered=3)

    assert nodes.next_death() == 1 + SECONDS + MARGIN


def test_a_node_that_said_it_left_is_not_waited_for() -> None:
    nodes = Nodes(SECONDS, margin=MARGIN)

    assert nodes.viewed({"a": NodeLease("a", "1", 1, state="left")}, asked=0, answered=0) == {A}


def test_a_node_that_was_started_again_leaves_its_former_life_to_die() -> None:
    nodes = Nodes(SECONDS, margin=MARGIN)
    views(nodes, {0: NodeLease("a", "1", 1)}, [0])
    again = NodeLease("a", "2", 1)

    assert views(nodes, {3: again}, [3, 6, 9, 12, 15]) == set()
    assert A in views(nodes, {3: again}, [17])


def test_a_dead_node_stays_dead_when_its_lease_is_no_longer_remembered_and_may_come_back() -> None:
    nodes = Nodes(SECONDS, margin=MARGIN)
    assert views(nodes, {0: NodeLease("a", "1", 1)}, [0, 3, 6, 9, 12, 14]) == {A}

    assert nodes.viewed({}, asked=17, answered=17) == set()
    assert nodes.is_dead(A)
    assert nodes.next_death() is None
    assert nodes.viewed({"a": NodeLease("a", "1", 2)}, asked=20, answered=20) == set()
    assert not nodes.is_dead(A)


def test_an_owner_that_was_never_seen_dies_like_any_other() -> None:
    nodes = Nodes(SECONDS, margin=MARGIN)
    nodes.watch([B])
    lease = {n: NodeLease("a", "1", n) for n in range(0, 30, 3)}

    assert views(nodes, lease, [0, 3, 6, 9, 12]) == set()
    assert views(nodes, lease, [15]) == {B}


def test_only_the_shards_of_a_node_that_comes_move() -> None:
    before = [wished(shard, ["a", "b", "c"]) for shard in range(4096)]
    after = [wished(shard, ["a", "b", "c", "d"]) for shard in range(4096)]

    assert all(old == new or new == "d" for old, new in zip(before, after, strict=True))
    assert all(abs(count - 1024) < 120 for count in Counter(after).values())


def test_whoever_should_have_a_shard_takes_it_at_once_and_the_others_wait_in_turn() -> None:
    order = ranking(7, ["a", "b", "c"])
    died = ShardOwner(3, "x", "1")

    assert [turn_of(node, 7, died, ["a", "b", "c"]) for node in order] == [0, STAGGER, 2 * STAGGER]

    released = ShardOwner(3, "", "1", to=order[2])

    assert turn_of(order[2], 7, released, ["a", "b", "c"]) == 0
    assert turn_of(order[0], 7, released, ["a", "b", "c"]) == STAGGER


class World:
    """What the servers hold, and nodes that want one shard and may be stopped for any time between any two steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.time = Time()
        self.leases: dict[str, NodeLease] = {}
        self.owner: tuple[int, str] = (0, "a")
        """The last owner message: its place, and whose it is."""
        self.takes = 0
        self.nodes = {name: Node(name, self) for name in "abc"}
        self.nodes["a"].owns = True

    def run(self, seconds: float) -> None:
        end = self.time.at + seconds
        while self.time.at < end:
            node = min(self.nodes.values(), key=lambda node: node.next_step)
            self.time.at = max(self.time.at, node.next_step)
            wait = next(node.steps)
            is_stopped = self.random.random() < 0.02
            node.next_step = self.time.at + (self.random.uniform(0, 30) if is_stopped else wait)
            answering = [node.name for node in self.nodes.values() if node.owns and node.lease.is_valid()]
            assert len(answering) <= 1, answering


class Node:
    """Does what `Ownership` does, step by step; each yields how long the next one waits if nobody stops it."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.time = world.time
        self.lease = Lease(SECONDS, margin=MARGIN, now=world.time)
        self.seen = Nodes(SECONDS, margin=MARGIN)
        self.beat = 0
        self.owns = False
        self.known = world.owner
        self.next_step = world.time.at
        self.steps = self.live()

    def latency(self) -> float:
        return self.world.random.choice([0.002, 0.002, 0.3])

    def live(self) -> Iterator[float]:
        while True:
            yield from self.renew()
            if not self.lease.is_checked:
                lapses = self.lease.lapses
                yield self.latency()
                self.learn()
                yield self.latency()
                self.lease.checked(lapses)
            yield self.latency()
            self.learn()
            place, owner = self.known
            if owner != self.name and self.lease.is_valid() and self.seen.is_dead(Life(owner, "1")):
                yield self.latency()
                yield from self.take(place, owner)
            yield self.world.random.uniform(0.5, 3)

    def renew(self) -> Iterator[float]:
        sent = self.time.at
        self.beat += 1
        lease = NodeLease(self.name, "1", self.beat)
        for other in self.world.nodes.values():
            if not other.is_stopped:
                other.seen.heard(lease, sent)
        yield self.latency()
        self.world.leases[self.name] = lease
        view = dict(self.world.leases)  # of a replica that got nothing since
        yield self.latency()
        self.lease.renewed(sent)
        self.seen.viewed(view, asked=sent, answered=self.time.at)

    def take(self, place: int, former: str) -> Iterator[float]:
        if self.world.owner[0] != place:
            return
        self.world.owner = (place + 1, self.name)
        self.world.takes += 1
        yield self.latency()
        while True:
            yield from self.renew()
            if self.seen.is_dead(Life(former, "1")):
                break
            if not self.world.nodes[former].is_stopped:
                self.world.nodes[former].learn()
                break
            yield 1.0
        self.known = (place + 1, self.name)
        self.owns = self.world.owner == self.known

    @property
    def is_stopped(self) -> bool:
        return self.next_step > self.time.at + 3

    def learn(self) -> None:
        self.known = self.world.owner
        if self.known[1] != self.name:
            self.owns = False


@pytest.mark.promise("B-7")
@pytest.mark.slow
def test_no_two_nodes_answer_for_a_shard_whenever_and_however_long_they_are_stopped() -> None:
    takes = 0
    for seed in range(60):
        world = World(seed)
        world.run(1500)
        takes += world.takes

    assert takes > 500
