"""Leases and owners of shards, as they are kept in NATS.

The last message on a shard's owner subject counts. It is written only by a node that knows the place of the one before,
so of two that want a shard one gets it. The writer tells the others in a plain message; as those get
lost when a server does, every node asks the leaders of the streams now and then too.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sapwood.errors import Unavailable
from sapwood.kernel.aio import cancel_all
from sapwood.kernel.ports.log import Full
from sapwood.kernel.ports.shards import SHARDS
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.runtimes.cluster.base.ground import FETCH, NOBODY, Held
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.base.leases import NodeLease
from sapwood.runtimes.cluster.base.placement import ShardOwner, decode, encode
from sapwood.runtimes.cluster.nats.nats_connection import (
    WRONG_SEQUENCE,
    all_answers,
    answers,
    go_elsewhere,
    heard,
    is_full,
)
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

WAIT = 5.0
"""Seconds to wait for one answer."""
LONGEST = 90.0
"""Seconds for which writes are retried: less than the servers remember what was stored already."""
NO_ROOM = 5.0
"""Seconds for which writes are retried while there is no room."""
HEARD = 1.0
"""Seconds that a live node has to answer."""
BATCH = 500
"""Messages in one batch; the servers take 1000."""
STORED_BEFORE = 10201
NOT_FOUND = 10037
SEQUENCE = "Nats-Expected-Last-Subject-Sequence"


class _News(msgspec.Struct, array_like=True):
    owners: list[tuple[int, int, ShardOwner]]


class _Question(msgspec.Struct, array_like=True):
    node: str
    shards: list[int]
    question: str
    trees: list[str] = []
    """Their addresses."""


class _Refused(Exception):
    """The servers said no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class NatsOwners:
    """Leases and owners in a cluster's streams."""

    def __init__(
        self, connection: Any, names: Names, node: str, *, timings: Timings = DEFAULTS, random: Random = SYSTEM
    ) -> None:
        self._connection = connection
        self._names = names
        self._node = node
        self._timings = timings
        self._random = random
        self._seen = [0] * (names.layout.streams * names.layout.cells)
        """Of each stream, the place up to which no owner message is unknown."""
        self._found: dict[int, Held] = {}
        """What was read and not asked for yet, because another stream could not be read."""
        self._told: list[dict[int, int]] = [{} for _ in self._seen]
        """Of each stream, places in a row that are known without being read, the last by the first."""
        self._reading = asyncio.Lock()
        self._life = new_id(random, 6)
        self._ids = itertools.count(1)
        self._subscriptions: list[Any] = []
        self._answering: set[asyncio.Task[None]] = set()

    async def renew(self, lease: NodeLease, after: int) -> int | None:
        headers = {
            SEQUENCE: str(after),
            "Nats-Msg-Id": f"{self._life}.lease.{lease.beat}",
            "Nats-TTL": f"{self._timings.lease_retention}s",
        }
        try:
            answer = await self._publish(self._names.lease(lease.node), msgspec.msgpack.encode(lease), headers)
        except _Refused as refusal:
            if refusal.code == WRONG_SEQUENCE:
                return None
            raise Unavailable(str(refusal)) from None
        return answer["seq"]

    async def last_lease(self, node: str) -> tuple[int, NodeLease | None]:
        found = await self._get(self._names.members, {"last_by_subj": self._names.lease(node)})
        if found is None:
            return 0, None
        return found[0], msgspec.msgpack.decode(found[2], type=NodeLease)

    async def leases(self) -> dict[str, NodeLease]:
        leases: dict[str, NodeLease] = {}
        wanted = {"next_by_subj": self._names.lease("*"), "batch": self._timings.lease_page}
        last = 0
        while True:  # one that is renewed during this loop has a later place
            some = await self._get_many(self._names.members, {**wanted, "seq": last + 1})
            for _, _, data in some:
                lease = msgspec.msgpack.decode(data, type=NodeLease)
                leases[lease.node] = lease
            if len(some) < self._timings.lease_page:
                return leases
            last = some[-1][0]

    async def changes(self) -> dict[int, Held]:
        async with self._reading:
            results = await asyncio.gather(
                *(self._find(stream) for stream in range(len(self._seen))), return_exceptions=True
            )
            for result in results:
                if result is not None:
                    raise result
            found, self._found = self._found, {}
            return found

    async def _find(self, stream: int) -> None:
        name, subjects = self._names.stream(stream), self._names.owners(stream)
        while True:
            # Only the leader knows that there is nothing more; any replica is good enough for what there is.
            wanted = {"seq": self._seen[stream] + 1, "next_by_subj": subjects}
            first = await self._get(name, wanted)
            if first is None:
                self._told[stream].clear()
                return
            if self._skip_told(stream, first[0]):
                continue
            more = await self._get_many(name, {**wanted, "seq": first[0] + 1, "batch": 1000})
            for sequence, subject, data in [first, *more]:
                self._found[_shard_in(subject)] = Held(sequence, decode(data))
                self._seen[stream] = max(self._seen[stream], sequence)

    def _skip_told(self, stream: int, place: int) -> bool:
        """Return whether this and what follows was written here or announced by its writer: that is not read again."""
        for first, last in self._told[stream].items():
            if first <= place <= last:
                self._seen[stream] = last
                self._told[stream] = {begin: end for begin, end in self._told[stream].items() if end > last}
                return True
        return False

    def _note(self, stored: Mapping[int, Held]) -> None:
        """Record the places of owners that the caller processes, so that they are not read again."""
        places: dict[int, list[int]] = {}
        for shard, held in stored.items():
            places.setdefault(self.stream_of(shard), []).append(held.sequence)
        for stream, sequences in places.items():
            first = before = 0
            for sequence in sorted(sequences):
                if sequence != before + 1:
                    first = sequence
                self._told[stream][first] = before = sequence

    async def read(self, shards: Iterable[int]) -> dict[int, Held]:
        held: dict[int, Held] = {}
        turns = asyncio.Semaphore(64)

        async def one(shard: int) -> None:
            async with turns:
                stream = self._names.stream(self.stream_of(shard))
                found = await self._get(stream, {"last_by_subj": self._names.owner(shard)})
            if found is not None:
                held[shard] = Held(found[0], decode(found[2]))

        await asyncio.gather(*(one(shard) for shard in shards))
        return held

    async def write(self, owners: Mapping[int, Held]) -> dict[int, Held]:
        streams: dict[int, list[int]] = {}
        for shard in owners:
            streams.setdefault(self.stream_of(shard), []).append(shard)

        async def one_stream(shards: list[int]) -> dict[int, Held]:
            stored: dict[int, Held] = {}
            for start in range(0, len(shards), BATCH):
                stored.update(await self._write({shard: owners[shard] for shard in shards[start : start + BATCH]}))
            return stored

        parts = await asyncio.gather(*(one_stream(shards) for shards in streams.values()))
        stored = {shard: held for part in parts for shard, held in part.items()}
        if stored:
            self._note(stored)
            await self._tell(stored)
        return stored

    def stream_of(self, shard: int) -> int:
        return self._names.layout.stream_of(shard)

    async def _tell(self, stored: Mapping[int, Held]) -> None:
        import nats.errors

        news = _News([(shard, held.sequence, held.owner) for shard, held in stored.items()])
        try:
            await self._connection.publish(self._names.news, msgspec.msgpack.encode(news))
        except nats.errors.Error as error:
            log.warning(
                "announcing %d shards to other nodes failed, they will notice by themselves: %s", len(stored), error
            )

    async def _write(self, owners: Mapping[int, Held]) -> dict[int, Held]:
        """Store owners of one stream, in one batch; without those that others wrote, if there are any."""
        left = dict(owners)
        while left:
            try:
                sequences = await self._send(left)
            except _Refused as refusal:
                if is_full(refusal.code, str(refusal)):
                    raise Full(f"The log is full, owners were not stored: {refusal}") from None
                if refusal.code != WRONG_SEQUENCE:
                    raise Unavailable(f"Owners were not stored: {refusal}") from None
                last = await self._read_until(left)
                fresh = {
                    shard: held for shard, held in left.items() if last.get(shard, NOBODY).sequence == held.sequence
                }
                if len(fresh) == len(left):  # the write that preceded ours is not visible yet
                    await asyncio.sleep(0.1)
                left = fresh
            else:
                return {shard: Held(sequences[shard], held.owner) for shard, held in left.items() if shard in sequences}
        return {}

    async def _send(self, owners: Mapping[int, Held]) -> dict[int, int]:
        """Store all of these or none, once, however often it has to be sent; return the places of those it has."""
        number = next(self._ids)
        messages: list[tuple[str, bytes, dict[str, str]]] = []
        for shard, held in owners.items():
            headers = {
                SEQUENCE: str(held.sequence),
                "Nats-Msg-Id": f"{self._life}.{number}.{shard}",
                "Nats-Rollup": "sub",
            }
            messages.append((self._names.owner(shard), encode(held.owner), headers))
        end = asyncio.get_running_loop().time() + LONGEST
        is_unknown = False
        while True:
            try:
                last = await self._publish_all(messages)
            except _Refused as refusal:
                if refusal.code == STORED_BEFORE or (is_unknown and refusal.code == WRONG_SEQUENCE):
                    return await self._stored(owners)
                now = asyncio.get_running_loop().time()
                if not is_unknown and is_full(refusal.code, str(refusal)) and now > end - LONGEST + NO_ROOM:
                    raise
                if refusal.code == WRONG_SEQUENCE or now > end:
                    raise
                log.debug("sending owners again: %s", refusal)
            except Unavailable:
                is_unknown = True
                if asyncio.get_running_loop().time() > end:
                    raise
            else:
                return dict(zip(owners, range(last - len(owners) + 1, last + 1), strict=True))
            await asyncio.sleep(self._random.uniform(0.05, 0.25))

    async def _stored(self, owners: Mapping[int, Held]) -> dict[int, int]:
        last = await self._read_until(owners)
        places = {
            shard: last[shard].sequence
            for shard in owners
            if shard in last and last[shard].owner == owners[shard].owner
        }
        if not places:
            raise _Refused(WRONG_SEQUENCE, "Another node was first.")
        return places

    async def _read_until(self, shards: Iterable[int]) -> dict[int, Held]:
        end = asyncio.get_running_loop().time() + LONGEST
        while True:
            try:
                return await self.read(shards)
            except Unavailable:
                if asyncio.get_running_loop().time() > end:
                    raise
                await asyncio.sleep(self._random.uniform(0.1, 0.3))

    async def ask(self, node: str, shards: Sequence[int], question: str) -> bool:
        return await self._ask(node, _Question(self._node, list(shards), question), WAIT)

    async def have_fetched(self, node: str, trees: Sequence[str], patience: float) -> None:
        await self._ask(node, _Question(self._node, [], FETCH, list(trees)), patience)

    async def _ask(self, node: str, question: _Question, patience: float) -> bool:
        import nats.errors

        data = msgspec.msgpack.encode(question)
        try:
            answer = await self._connection.request(self._names.ask(node), data, timeout=patience)
        except (nats.errors.Error, TimeoutError, OSError):
            return False
        return answer.data == b"yes"

    async def is_heard(self, node: str) -> bool:
        import nats.errors

        nothing = msgspec.msgpack.encode(_Question(self._node, [], "taken"))
        try:
            await self._connection.request(self._names.ask(node), nothing, timeout=HEARD)
        except nats.errors.NoRespondersError:
            return False
        except (nats.errors.Error, TimeoutError, OSError):
            pass  # it may stand still, or be far away
        return True

    async def listen(
        self,
        node: str,
        lease: Callable[[NodeLease], None],
        owners: Callable[[Mapping[int, Held]], None],
        asked: Callable[[str, Sequence[int], str, Sequence[str]], Awaitable[bool]],
    ) -> None:
        import nats.errors

        async def heard_lease(message: Any) -> None:
            lease(msgspec.msgpack.decode(message.data, type=NodeLease))

        async def heard_news(message: Any) -> None:
            news = msgspec.msgpack.decode(message.data, type=_News)
            stored = {shard: Held(sequence, owner) for shard, sequence, owner in news.owners}
            owners(stored)
            self._note(stored)

        async def answer(message: Any) -> None:
            question = msgspec.msgpack.decode(message.data, type=_Question)
            try:
                agreed = await asked(question.node, question.shards, question.question, question.trees)
            except Unavailable as error:  # it asks again
                log.info("query for %s failed: %s", question.node, error)
                agreed = False
            with contextlib.suppress(nats.errors.Error):  # the connection was lost since
                await message.respond(b"yes" if agreed else b"no")

        async def heard_question(message: Any) -> None:
            task = asyncio.ensure_future(answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

        async def heard_roll_call(message: Any) -> None:
            await message.respond(node.encode())

        subscribe = self._connection.subscribe
        self._subscriptions.append(await subscribe(self._names.who, cb=heard_roll_call))
        self._subscriptions.append(await subscribe(self._names.lease("*"), cb=heard_lease))
        self._subscriptions.append(await subscribe(self._names.news, cb=heard_news))
        self._subscriptions.append(await subscribe(self._names.ask(node), cb=heard_question))
        await heard(self._connection)

    async def is_there(self) -> bool:
        return await answers(self._connection)

    async def go_elsewhere(self) -> None:
        log.warning("renewing the lease at this NATS server failed, trying another server")
        await go_elsewhere(self._connection)

    async def close(self) -> None:
        import nats.errors

        for subscription in self._subscriptions:
            with contextlib.suppress(nats.errors.Error):  # it went with the connection
                await subscription.unsubscribe()
        self._subscriptions.clear()
        await cancel_all([*self._answering])

    async def _request(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> Any:
        """Return an answer; `Unavailable` if none comes, also while servers are being elected."""
        import nats.errors

        try:
            return await self._connection.request(subject, data, timeout=WAIT, headers=headers and dict(headers))
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Unavailable(f"NATS does not answer: {error or type(error).__name__}") from None

    async def _publish(self, subject: str, data: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        answer = await self._request(subject, data, headers)
        return _answered(answer.data)

    async def _publish_all(self, messages: list[tuple[str, bytes, dict[str, str]]]) -> int:
        """Store messages as one batch; return the place of the last."""
        import nats.errors

        batch = new_id(self._random)
        marked = [
            (subject, data, {**headers, "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)})
            for number, (subject, data, headers) in enumerate(messages, 1)
        ]
        marked[-1][2]["Nats-Batch-Commit"] = "1"
        if len(marked) > 1:
            subject, data, headers = marked[0]
            begun = await self._request(subject, data, headers)
            if begun.data:
                _answered(begun.data)
            try:
                for subject, data, headers in marked[1:-1]:
                    await self._connection.publish(subject, data, headers=headers)
            except (nats.errors.Error, OSError) as error:
                raise Unavailable(f"NATS refused a batch: {error}") from None
        subject, data, headers = marked[-1]
        return (await self._publish(subject, data, headers))["seq"]

    async def _get(self, stream: str, wanted: Mapping[str, Any]) -> tuple[int, str, bytes] | None:
        """Return one message as the leader of a stream knows it, or `None` if there is none."""
        answer = await self._request(f"$JS.API.STREAM.MSG.GET.{stream}", msgspec.json.encode(wanted))
        try:
            message = _answered(answer.data)["message"]
        except _Refused as refusal:
            if refusal.code == NOT_FOUND:
                return None
            raise Unavailable(f"The stream {stream} cannot be read: {refusal}") from None
        return message["seq"], message["subject"], base64.b64decode(message.get("data", ""))

    async def _get_many(self, stream: str, wanted: Mapping[str, Any]) -> list[tuple[int, str, bytes]]:
        """Return messages as any replica of a stream knows them."""
        import nats.errors

        subject = f"$JS.API.DIRECT.GET.{stream}"
        try:
            *messages, end = await all_answers(self._connection, subject, msgspec.json.encode(wanted), WAIT)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Unavailable(f"The stream {stream} cannot be read: {error or type(error).__name__}") from None
        if end.headers["Status"] not in ("204", "404"):
            raise Unavailable(f"The stream {stream} cannot be read: {end.headers['Status']}")
        return [(int(one.headers["Nats-Sequence"]), one.headers["Nats-Subject"], one.data) for one in messages]


def _answered(data: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode(data)
    error = answer.get("error")
    if error is not None:
        raise _Refused(error.get("err_code", error.get("code", 0)), error.get("description", ""))
    return answer


def _shard_in(subject: str) -> int:
    """Return the shard that an owner subject is of."""
    shard = int(subject.rsplit(".", 2)[1])
    assert 0 <= shard < SHARDS
    return shard
