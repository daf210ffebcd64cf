"""What a node makes of the owners of shards, without servers and without waiting."""

from __future__ import annotations

import pytest

from sapwood.kernel.ports.log import Epoch
from sapwood.kernel.ports.shards import SHARDS
from sapwood.runtimes.cluster.base.ground import Held
from sapwood.runtimes.cluster.base.leases import Life
from sapwood.runtimes.cluster.base.placement import STAGGER, ShardOwner, ranking, wished
from sapwood.runtimes.cluster.ownership.shard_table import ShardTable

LIVE = ("alder", "birch", "cedar")
SHARD = next(shard for shard in range(SHARDS) if wished(shard, LIVE) == "birch")
"""A shard that birch should own."""
LOOK = 2.0


def table(node: str = "birch") -> ShardTable:
    return ShardTable(node, "me")


def owned_by(node: str, life: str, sequence: int = 1) -> dict[int, Held]:
    return {SHARD: Held(sequence, ShardOwner(sequence, node, life))}


def alive(life: Life) -> bool:
    return False


def dead(life: Life) -> bool:
    return True


def take(shards: ShardTable) -> None:
    """Become the owner."""
    shards.learn(owned_by("birch", "me"))
    shards.own({SHARD: Epoch(1, 1)})
    shards.open([SHARD])


def test_a_shard_is_away_then_owned_then_open() -> None:
    shards = table()
    assert (shards.epoch_of(SHARD), shards.is_open(SHARD), shards.owned()) == (None, False, [])

    shards.own({SHARD: Epoch(1, 1)})
    assert (shards.epoch_of(SHARD), shards.is_open(SHARD), shards.owned()) == (Epoch(1, 1), False, [SHARD])
    assert shards.runs(SHARD, alive) == "", "no call may come yet, neither here nor to the owner before"

    shards.open([SHARD])
    assert shards.is_open(SHARD)
    assert shards.runs(SHARD, alive) == "birch"


def test_only_an_owned_shard_is_opened() -> None:
    with pytest.raises(AssertionError):
        table().open([SHARD])


@pytest.mark.parametrize("end", ["release", "drop"])
def test_a_shard_that_is_released_or_dropped_is_away_at_once(end: str) -> None:
    shards = table()
    take(shards)

    assert list(getattr(shards, end)([SHARD, SHARD + 1])) == [SHARD], "the other one was not ours"

    assert (shards.epoch_of(SHARD), shards.is_open(SHARD)) == (None, False)


def test_a_shard_that_is_shut_is_still_owned() -> None:
    shards = table()
    take(shards)

    shards.shut([SHARD])

    assert (shards.owns(SHARD), shards.is_open(SHARD)) == (True, False)


def test_an_older_owner_message_changes_nothing() -> None:
    shards = table()
    shards.learn(owned_by("alder", "first", 7))

    assert shards.learn(owned_by("cedar", "second", 6)) == ([], set())

    assert shards.owner(SHARD).node == "alder"


def test_a_shard_that_another_node_took_is_lost() -> None:
    shards = table()
    take(shards)

    assert shards.learn(owned_by("alder", "other", 2)) == ([SHARD], {Life("alder", "other")})


def test_a_shard_of_a_live_node_runs_there_and_is_not_taken() -> None:
    shards = table()
    shards.learn(owned_by("alder", "other"))

    assert shards.runs(SHARD, alive) == "alder"
    assert SHARD not in shards.takeable(LIVE, 0.0, alive, LOOK)[0]


def test_a_shard_of_a_dead_node_runs_nowhere_and_is_taken_by_the_node_that_should_own_it() -> None:
    shards, other = table(), table(ranking(SHARD, LIVE)[1])
    for one in (shards, other):
        one.learn(owned_by("dogwood", "gone"))

    assert shards.runs(SHARD, dead) == ""
    assert SHARD in shards.takeable(LIVE, 0.0, dead, LOOK)[0]
    assert SHARD not in other.takeable(LIVE, 0.0, dead, LOOK)[0]
    assert SHARD in other.takeable(LIVE, STAGGER, dead, LOOK)[0], "if it does not, the next one does"


@pytest.mark.parametrize("state", ["doubted", "reserved", "owned"])
def test_what_is_doubted_reserved_or_owned_is_not_taken(state: str) -> None:
    shards = table()
    if state == "doubted":
        shards.doubt([SHARD])
    elif state == "reserved":
        shards.reserve([SHARD])
    else:
        take(shards)

    assert SHARD not in shards.takeable(LIVE, 0.0, alive, LOOK)[0]


def test_a_doubted_shard_runs_nowhere_until_its_owner_was_read() -> None:
    shards = table()
    shards.learn(owned_by("alder", "other"))
    assert shards.doubt_other(SHARD)

    assert (shards.runs(SHARD, alive), shards.doubted()) == ("", {SHARD})

    shards.trust({SHARD})
    assert (shards.runs(SHARD, alive), shards.doubted()) == ("alder", set())


def test_the_owner_of_an_own_or_reserved_shard_is_not_doubted() -> None:
    shards = table()
    take(shards)
    assert not shards.doubt_other(SHARD)

    shards.reserve([SHARD + 1])
    assert not shards.doubt_other(SHARD + 1)


def test_a_message_that_is_not_the_last_or_is_in_doubt_makes_no_owner() -> None:
    shards = table()
    (written,) = owned_by("birch", "me", 3).values()
    shards.learn({SHARD: written})
    assert shards.is_current(SHARD, written)

    shards.doubt([SHARD])
    assert not shards.is_current(SHARD, written)

    shards.trust({SHARD})
    shards.learn(owned_by("alder", "other", 4))
    assert not shards.is_current(SHARD, written)


def test_a_node_wants_what_it_should_own_unless_it_passed_it_on() -> None:
    shards = table()
    shards.learn(owned_by("alder", "other"))
    assert shards.wanted(LIVE) == {"alder": [SHARD]}

    shards.pass_on(SHARD, "cedar")

    assert shards.wanted(LIVE) == {}


def test_only_open_shards_of_one_stream_that_are_not_reserved_are_handed_over_together() -> None:
    shards = table()
    shards.own({shard: Epoch(1, 1) for shard in range(8)})
    shards.open(range(6))
    for shard in range(9):
        shards.promise(shard, "alder")
    shards.reserve([0])

    assert shards.next_group(LIVE, lambda shard: shard % 2, 2) == {1: "alder", 3: "alder"}
    assert shards.next_group(LIVE, lambda shard: shard % 2, 2) == {2: "alder", 4: "alder"}
    assert shards.next_group(LIVE, lambda shard: shard % 2, 2) == {5: "alder"}
    assert shards.next_group(LIVE, lambda shard: shard % 2, 2) == {}, "the others are not open, reserved, or not ours"


def test_nothing_is_handed_over_to_a_node_that_is_gone() -> None:
    shards = table()
    take(shards)
    shards.promise(SHARD, "dogwood")

    assert shards.next_group(LIVE, lambda shard: 0, 32) == {}
    assert shards.next_group((*LIVE, "dogwood"), lambda shard: 0, 32) == {}, "it is not promised any more"
