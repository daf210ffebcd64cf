"""Shards have one owner each, whatever happens to nodes and servers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.cluster.owning import Owning, OwningProcess
from tests.cluster.servers import Nats
from tests.machine import patience

from sapwood.address import Address
from sapwood.errors import PathSegment, UsageError
from sapwood.runtimes.cluster.base.ground import Held
from sapwood.runtimes.cluster.base.leases import NodeLease
from sapwood.runtimes.cluster.base.placement import ShardOwner, wished
from sapwood.timings import DEFAULTS, Timings

LEASE = 3.0
LONG_LEASE = 600.0
"""No test waits for its end: what happens sooner did not wait for it."""
SHARDS = 4096


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    nats = Nats(tmp_path_factory.mktemp("nats")).start().wait()
    yield nats
    nats.remove()


@pytest.fixture
def cluster() -> str:
    return f"c{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def nodes(
    nats: Nats, cluster: str, *names: str, lease: float = LEASE, timings: Timings = DEFAULTS
) -> AsyncIterator[list[Owning]]:
    """Nodes in this process, one after the other; what is still there at the end leaves."""
    owning: list[Owning] = []
    try:
        for name in names:
            one = await Owning(name, lease, timings=timings).join(nats.urls, cluster)
            owning.append(one)
        yield owning
    finally:
        for one in owning:
            await one.leave()


@asynccontextmanager
async def processes(nats: Nats, cluster: str, *names: str, lease: float = LEASE) -> AsyncIterator[list[OwningProcess]]:
    """Nodes as processes of their own."""
    owning: list[OwningProcess] = []
    try:
        for name in names:
            one = await asyncio.to_thread(OwningProcess, nats.urls, cluster, name, lease)
            owning.append(one)
        yield owning
    finally:
        for one in owning:
            one.kill()


async def eventually(is_so: Callable[[], bool], within: float = patience(30)) -> float:
    """Return after how long something is so."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < within, "It did not come about."
        await asyncio.sleep(0.01)
    return time.monotonic() - begun


async def answering(node: OwningProcess) -> dict[str, Any]:
    """Return what a node says as soon as it may answer."""
    async with asyncio.timeout(patience()):
        while not (status := await asyncio.to_thread(node.ask))["holds_lease"]:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.02)
    return status


def are_settled(*owning: Owning) -> bool:
    """Return whether everybody runs what it should and no more."""
    names = [one.node for one in owning]
    return all(
        one.ownership.has(shard) == (wished(shard, names) == one.node) for shard in range(SHARDS) for one in owning
    )


async def test_the_first_node_owns_everything_at_once(nats: Nats, cluster: str) -> None:
    async with nodes(nats, cluster) as owning:
        first = Owning("a", LEASE)
        begun = time.monotonic()
        owning.append(await first.join(nats.urls, cluster))

        assert first.here == SHARDS
        assert first.ownership.holds_lease()
        print(f"joined, streams included, in {time.monotonic() - begun:.2f} s")
        root = Address((PathSegment("Any", "one"),))
        assert await first.ownership.owner(root) == "a"
        assert first.ownership.status()["without_owner"] == []


@pytest.mark.nightly
async def test_nodes_that_join_get_their_share_in_groups_that_pause_shortly(nats: Nats, cluster: str) -> None:
    async with nodes(nats, cluster, "a", "b", "c") as (a, b, c):
        took = await eventually(lambda: are_settled(a, b, c), patience(60))

        gaps = [
            min(after) - gone
            for releasing in (a, b, c)
            for shard, gone in releasing.notes.gone_at.items()
            if (after := [at for one in (a, b, c) if (at := one.notes.gained_at.get(shard, 0.0)) > gone])
        ]
        print(f"even after {took:.1f} s, gaps up to {max(gaps):.3f} s, median {sorted(gaps)[len(gaps) // 2]:.3f} s")
        assert len(gaps) > SHARDS / 2
        assert max(gaps) < patience(3)
        assert not any(one.notes.lost_shards or one.notes.ended_badly for one in (a, b, c))
        assert list(await a.ownership.everybody()) == ["a", "b", "c"]
        assert all(abs(one.here - SHARDS / 3) < SHARDS / 30 for one in (a, b, c))


async def test_a_node_that_leaves_hands_everything_over(nats: Nats, cluster: str) -> None:
    async with (
        processes(nats, cluster, "a", lease=LONG_LEASE) as (a,),
        nodes(nats, cluster, "b", lease=LONG_LEASE) as (b,),
    ):
        before = b.here
        begun = time.monotonic()
        said = await asyncio.to_thread(a.ask, "leave")
        took = await eventually(lambda: b.here == SHARDS)

        all_took = time.monotonic() - begun
        print(f"left with {SHARDS - before} shards in {said['took']:.2f} s, all elsewhere after {all_took:.2f} s")
        assert said["took"] + took < LONG_LEASE
        assert said["lost"] == 0
        assert not b.notes.ended_badly


@pytest.mark.nightly
async def test_what_a_killed_node_owned_is_taken_when_its_lease_is_over(nats: Nats, cluster: str) -> None:
    async with nodes(nats, cluster, "b") as (b,), processes(nats, cluster, "a") as (a,):
        await eventually(lambda: b.here < SHARDS - 200)
        a.kill()
        here = b.here

        took = await eventually(lambda: b.here == SHARDS)

        print(f"{SHARDS - here} shards were taken {took:.2f} s after the kill; the lease is {LEASE} s")
        assert took > LEASE / 2
        assert b.notes.ended_badly
        assert b.ownership.epoch_of(next(iter(b.notes.ended_badly))) is not None


@pytest.mark.nightly
async def test_a_node_that_comes_again_gets_what_it_owned_although_it_forgets_its_former_life(
    nats: Nats, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(nats, cluster, "b") as (b,), processes(nats, cluster, "a") as (a,):
        await eventually(lambda: b.here < SHARDS - 200)
        a.kill()
        async with nodes(nats, cluster, "a") as (again,):
            look = again.ownership._membership.look

            async def slowly() -> None:
                await asyncio.sleep(2.5)  # meanwhile it looks at who is dead and owns nothing any more
                await look()

            monkeypatch.setattr(again.ownership._membership, "look", slowly)
            await eventually(lambda: again.here + b.here == SHARDS)
            assert again.here > 200


@pytest.mark.nightly
async def test_a_node_that_was_stopped_beyond_its_lease_does_not_answer_and_learns_what_it_lost(
    nats: Nats, cluster: str
) -> None:
    async with nodes(nats, cluster, "b") as (b,), processes(nats, cluster, "a") as (a,):
        await eventually(lambda: b.here < SHARDS - 200)
        a.pause()
        a.say("status")
        await eventually(lambda: b.here == SHARDS)
        a.go_on()

        woken = await asyncio.to_thread(a.answer)
        assert not woken["holds_lease"] or woken["lost"] > 100, "it answers before it knows what it lost"

        assert (await answering(a))["lost"] > 100


async def test_a_node_that_lapsed_keeps_what_nobody_took(nats: Nats, cluster: str) -> None:
    async with processes(nats, cluster, "a") as (a,):
        a.pause()
        await asyncio.sleep(LEASE + 1)
        a.go_on()

        status = await answering(a)

        assert status["here"] == SHARDS
        assert status["lost"] == 0


@pytest.mark.nightly
async def test_nobody_loses_anything_when_a_server_dies(nats: Nats, cluster: str) -> None:
    async with nodes(nats, cluster, "a", "b", lease=12.0) as (a, b):
        await eventually(lambda: are_settled(a, b), patience(60))
        epochs = {shard: a.ownership.epoch_of(shard) for shard in a.ownership.shards()}
        leader = await a.leader()
        nats.kill(nats.number_of(leader))
        await asyncio.sleep(12)
        nats.start([nats.number_of(leader)]).wait()

        await eventually(lambda: a.ownership.holds_lease() and b.ownership.holds_lease())

        assert not a.notes.lost_shards
        assert not b.notes.lost_shards
        assert epochs == {shard: a.ownership.epoch_of(shard) for shard in a.ownership.shards()}
        assert are_settled(a, b)


async def test_a_second_process_of_the_same_name_is_refused_while_the_first_lives(nats: Nats, cluster: str) -> None:
    async with nodes(nats, cluster, "a") as (first,):
        with pytest.raises(UsageError, match="A node named 'a' is already running"):
            await Owning("a", LEASE).join(nats.urls, cluster)

        assert first.ownership.holds_lease()
        assert first.here == SHARDS
        assert not first.notes.lost_shards


@pytest.mark.nightly
async def test_a_killed_node_joins_again_before_its_lease_is_over(nats: Nats, cluster: str) -> None:
    async with processes(nats, cluster, "a", lease=LONG_LEASE) as (a,):
        a.kill()
        async with asyncio.timeout(patience()), nodes(nats, cluster, "a", lease=LONG_LEASE) as (again,):
            assert again.ownership.holds_lease()


@pytest.mark.nightly
async def test_a_killed_node_that_joins_again_gets_its_shards_when_its_lease_is_over(nats: Nats, cluster: str) -> None:
    async with processes(nats, cluster, "a") as (a,):
        a.kill()
        async with nodes(nats, cluster, "a") as (again,):
            await eventually(lambda: again.here == SHARDS)


@pytest.mark.nightly
async def test_a_second_process_of_the_same_name_takes_the_place_of_one_that_stands_still(
    nats: Nats, cluster: str
) -> None:
    async with processes(nats, cluster, "a") as (first,):
        first.pause()
        async with nodes(nats, cluster, "a") as (second,):
            await eventually(lambda: second.here == SHARDS)
            first.say("status")
            first.go_on()
            assert not (await asyncio.to_thread(first.answer))["holds_lease"]
            for _ in range(500):
                said = await asyncio.to_thread(first.ask)
                if said["displaced"]:
                    break
                await asyncio.sleep(0.02)
            assert "Another process is this node now" in said["displaced"]
            assert said["here"] == 0


async def test_a_fenced_shard_is_dropped_and_its_owner_is_read_afresh(nats: Nats, cluster: str) -> None:
    async with nodes(nats, cluster, "a") as (a,):
        before = a.ownership.epoch_of(7)
        a.ownership.fenced([7])

        assert a.ownership.epoch_of(7) is None
        assert a.notes.lost_shards == {7}
        await eventually(lambda: a.here == SHARDS)
        after = a.ownership.epoch_of(7)
        assert before is not None
        assert after is not None
        assert after.sequence > before.sequence


async def test_a_shard_that_is_lost_while_it_is_being_gained_is_not_kept(nats: Nats, cluster: str) -> None:
    async with nodes(nats, cluster, "a") as (a,):
        gained = a.notes.gained

        async def and_fenced(shards: Mapping[int, bool]) -> None:
            a.notes.gained = gained
            a.ownership.fenced([7])
            a.notes.lost_shards.clear()
            await gained(shards)

        a.notes.gained = and_fenced
        a.ownership.fenced([7])
        await eventually(lambda: a.notes.gained == gained and a.here == SHARDS)

        assert a.notes.lost_shards == {7}


@pytest.mark.nightly
async def test_a_stream_that_is_full_keeps_no_shards_of_the_others_from_moving(nats: Nats, cluster: str) -> None:
    async with processes(nats, cluster, "a") as (a,), nodes(nats, cluster, "b") as (b,):
        await eventually(lambda: 1500 < b.here < SHARDS - 1500)
        full = [shard for shard in range(SHARDS) if b.ground.stream_of(shard) == 3]
        owned = {shard for shard in full if b.ownership.has(shard)}
        await b.give_room(3, 1)

        a.kill()
        await eventually(lambda: b.here == SHARDS - len(full) + len(owned), within=3 * LEASE)
        async with nodes(nats, cluster, "c") as (c,):
            await eventually(lambda: c.here > 1000)
            assert not any(c.ownership.has(shard) for shard in full)
            await b.give_room(3, -1)
            await eventually(lambda: b.here + c.here == SHARDS)
            await eventually(lambda: any(c.ownership.has(shard) for shard in full))


async def test_more_leases_than_one_answer_has_are_all_seen_and_each_is_forgotten_in_time(
    nats: Nats, cluster: str
) -> None:
    async with nodes(nats, cluster, "a", timings=Timings(lease_page=7, lease_retention=2)) as (a,):
        await asyncio.gather(*(a.ground.renew(NodeLease(f"n{n}", "1", 100 + n), 0) for n in range(50)))

        assert (await a.ground.leases()).keys() == {"a", *(f"n{n}" for n in range(50))}
        async with asyncio.timeout(patience()):
            while (await a.ground.leases()).keys() != {"a"}:  # noqa: ASYNC110 - the servers tell nobody
                await asyncio.sleep(0.1)


async def test_of_several_who_want_the_same_shards_each_gets_those_that_the_others_do_not(
    nats: Nats, cluster: str
) -> None:
    async with nodes(nats, cluster, "a") as (a,):
        places = {shard: held.sequence for shard, held in (await a.ground.read(range(200))).items()}

        def wishes(node: str, shards: range) -> dict[int, Held]:
            return {shard: Held(places[shard], ShardOwner(2, node, node)) for shard in shards}

        x, y = await asyncio.gather(
            a.ground.write(wishes("x", range(120))), a.ground.write(wishes("y", range(80, 200)))
        )

        assert not x.keys() & y.keys()
        assert x.keys() | y.keys() == set(range(200))
        assert await a.ground.read(range(200)) == {**x, **y}


async def test_an_owner_that_is_asked_whether_it_knows_what_was_taken_does(nats: Nats, cluster: str) -> None:
    async with nodes(nats, cluster, "a") as (a,):
        epoch = a.ownership.epoch_of(7)
        assert epoch is not None
        assert not await a.ground.ask("a", [7], "taken")
        await a.ground.write({7: Held(epoch.sequence, ShardOwner(epoch.number + 1, "x", "x"))})

        assert await a.ground.ask("a", [7], "taken")
        assert a.notes.lost_shards == {7}
        assert a.ownership.epoch_of(7) is None
