"""The replicated log of every tree, in streams of NATS JetStream.

Each write is fenced: it carries the place of the message by which its writer took the
shard, and the stream refuses it if there is a later one. Several are stored together as
an atomic batch. Every message has an id, so trying again never stores it twice.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sapwood.errors import Unavailable
from sapwood.kernel.ports.log import Differ, Entry, Epoch, Fenced, Full, Record
from sapwood.randomness import SYSTEM, Random, new_id
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.nats.nats_connection import WRONG_SEQUENCE, all_answers, is_full
from sapwood.timings import DEFAULTS, Timings

log = logging.getLogger(__name__)

FENCE = "Nats-Expected-Last-Subject-Sequence"
FENCE_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
ID = "Nats-Msg-Id"
BATCH, PLACE, LAST = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
ROLLUP = {"Nats-Rollup": "sub"}
STORED_BEFORE = 10201
"""Some of a batch is stored: as it is stored whole or not at all, all of it is."""
NOTHING_THERE = 404

READING = 30.0
"""Seconds for which reads are retried."""
BEHIND, SIGHTINGS = 5.0, 5
"""Seconds that a replica may be behind its leader before that is no accident, and how often it has to be seen to be."""
BYTES_A_SECOND, LONGEST_ATTEMPT = 4_000_000, 25.0
"""Bytes of an append for which its answer is waited for one second longer, and the seconds for the largest: so the
last attempt ends while the log still knows the ids it stored."""
AGAIN, AGAIN_AT_MOST = 0.02, 0.5
"""Seconds between two attempts: at first, and later."""
COMPLAIN = 5.0
LEADERLESS = 3.0
"""Seconds to keep trying while a stream has no leader because its servers are full: none of them will."""
FULL_FOR = 15.0
"""Seconds for which servers are taken for full that said so, if none can be queried."""
READ_AT_ONCE, BYTES_AT_ONCE = 256, 16 << 20
AT_ONCE = 16
"""How many questions are under way together."""


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Message(msgspec.Struct):
    seq: int
    subject: str = ""
    hdrs: bytes = b""
    data: bytes = b""


class _State(msgspec.Struct):
    last_seq: int = 0
    bytes: int = 0
    num_subjects: int = 0
    subjects: dict[str, int] | None = None


class _Config(msgspec.Struct):
    max_bytes: int = -1


class _Answer(msgspec.Struct):
    seq: int = 0
    error: _Error | None = None
    message: _Message | None = None
    state: _State | None = None
    config: _Config | None = None
    total: int = 0


_answer = msgspec.json.Decoder(_Answer).decode
_question = msgspec.json.Encoder().encode


class _Unsent(Exception):
    """Nothing left this node."""


class _Attempts:
    """How long an operation has been tried, and how long to wait before the next attempt."""

    def __init__(self, what: str, patience: float) -> None:
        self._what = what
        self._time = asyncio.get_running_loop().time
        self._began = self._time()
        self._patience = patience
        self._pause = AGAIN
        self._complained = False

    @property
    def passed(self) -> float:
        """How many seconds it has been."""
        return self._time() - self._began

    async def again(self, why: object) -> None:
        """Return when to try again; `Unavailable` if it has been tried for long enough."""
        passed = self.passed
        if passed > self._patience:
            raise Unavailable(f"The log did not accept {self._what} within {self._patience:.0f} seconds: {why}")
        if passed > COMPLAIN and not self._complained:
            self._complained = True
            log.warning("log has not accepted %s for %.0f seconds, retrying: %s", self._what, passed, why)
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 1.5, AGAIN_AT_MOST)


class NatsLog:
    """A `FencedLog` in the streams of a cluster."""

    def __init__(self, connection: Any, names: Names, *, timings: Timings = DEFAULTS, random: Random = SYSTEM) -> None:
        self._connection = connection
        self._names = names
        self._timings = timings
        self._random = random
        self._to_clean: dict[str, tuple[int, int]] = {}
        """Empty lines of the index of alarms: by subject the stream, and the place up to which it can go."""
        self._timer: asyncio.TimerHandle | None = None
        self._cleaning: asyncio.Task[None] | None = None
        self._full: tuple[float, str] | None = None
        """When servers said last that they are full, and how."""

    def stream_of(self, shard: int) -> int:
        return self._names.layout.stream_of(shard)

    def close(self) -> None:
        """Do nothing more in the background."""
        if self._timer is not None:
            self._timer.cancel()
        if self._cleaning is not None:
            self._cleaning.cancel()

    async def append(self, entries: Sequence[Entry], epochs: Mapping[int, Epoch]) -> list[int]:
        import nats.errors

        messages = self._messages(entries, epochs)
        stream = self.stream_of(entries[0].shard)
        in_doubt = False
        size = sum(len(entry.data) for entry in entries)
        timeout = min(self._timings.log_attempt_timeout + size / BYTES_A_SECOND, LONGEST_ATTEMPT)
        trying = _Attempts(f"{len(entries)} messages", self._timings.log_append_timeout)
        while True:
            answer = await self._attempt(messages, timeout)
            if isinstance(answer, _Answer):
                error = answer.error
                if error is None:
                    return self._noted(entries, answer.seq)
                if error.err_code == STORED_BEFORE:
                    return self._noted(entries, await self._found_again(entries[-1]))
                if error.err_code == WRONG_SEQUENCE and (lost := await self._lost(epochs)):
                    raise Fenced(lost)
                if not in_doubt and is_full(error.err_code, error.description):
                    self._full = asyncio.get_running_loop().time(), error.description
                    raise Full(self._said_full(stream, error.description))
                answer = f"{error.description} ({error.err_code})"
            elif isinstance(answer, nats.errors.NoRespondersError):
                # A server that is full leads nothing, and its streams have no other leader then.
                if trying.passed > LEADERLESS and self._full is not None and self._full_lately():
                    raise (Unavailable if in_doubt else Full)(self._said_full(stream, self._full[1]))
            elif not isinstance(answer, _Unsent):
                in_doubt = True  # it may still arrive, when there is room
            await trying.again(answer)

    def _said_full(self, stream: int, why: str) -> str:
        return (
            f"The log is full: its stream {self._names.stream(stream)} accepts no more writes ({why}). The write "
            "is not stored. Increase the limits of the stream and of the NATS servers."
        )

    def _full_lately(self) -> bool:
        return self._full is not None and asyncio.get_running_loop().time() - self._full[0] < FULL_FOR

    async def has_room(self, stream: int, size: int) -> bool:
        found = await self._ask("STREAM.INFO", stream, {})
        if found.state is None or found.config is None or found.config.max_bytes < 0:
            return not self._full_lately()
        return found.state.bytes + 2 * size <= found.config.max_bytes

    def _messages(
        self, entries: Sequence[Entry], epochs: Mapping[int, Epoch]
    ) -> list[tuple[str, bytes, dict[str, str]]]:
        """Return subject, data and headers of each; the first of every shard has the fence."""
        names = self._names
        fenced: set[int] = set()
        messages: list[tuple[str, bytes, dict[str, str]]] = []
        for entry in entries:
            shard = entry.shard
            headers = {ID: entry.id}
            if shard not in fenced:
                fenced.add(shard)
                headers[FENCE] = str(epochs[shard].sequence)
                headers[FENCE_SUBJECT] = names.owner(shard)
            if entry.is_alarm or entry.replaces:
                headers.update(ROLLUP)
            subject = names.alarm(shard, entry.tree) if entry.is_alarm else names.tree(shard, entry.tree)
            messages.append((subject, entry.data, headers))
        return messages

    async def _attempt(
        self, messages: Sequence[tuple[str, bytes, dict[str, str]]], timeout: float
    ) -> _Answer | BaseException:
        """Send once; return what the log said, or what went wrong on the way."""
        import nats.errors

        connection = self._connection
        if connection.is_closed:
            raise Unavailable("The connection to NATS is closed.")
        if not connection.is_connected:
            # What waits in the client would be sent when no caller waits for it any more.
            return _Unsent("no server is connected")
        try:
            subject, data, headers = messages[-1]
            if len(messages) > 1:
                batch = new_id(self._random)
                await self._begin_batch(batch, messages[:-1])
                headers = {**headers, BATCH: batch, PLACE: str(len(messages)), LAST: "1"}
            reply = await connection.request(subject, data, timeout=timeout, headers=headers)
            return _answer(reply.data)
        except (nats.errors.Error, TimeoutError, OSError, msgspec.DecodeError) as error:
            return error

    async def _begin_batch(self, batch: str, messages: Sequence[tuple[str, bytes, dict[str, str]]]) -> None:
        """Send all of a batch but its last message; the server does not answer these."""
        connection = self._connection
        # With every commit of many agents, so in one piece: the client takes as long for one message as for all of it.
        send = getattr(connection, "_send_command", None)
        if send is None:
            for place, (subject, data, headers) in enumerate(messages, start=1):
                await connection.publish(subject, data, headers={**headers, BATCH: batch, PLACE: str(place)})
            return
        pieces: list[bytes] = []
        for place, (subject, data, headers) in enumerate(messages, start=1):
            lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
            head = f"NATS/1.0\r\n{lines}{BATCH}: {batch}\r\n{PLACE}: {place}\r\n\r\n"
            # All of it is ASCII: subjects are made of numbers, hexadecimal ids, and the checked name of the cluster.
            pieces += (f"HPUB {subject} {len(head)} {len(head) + len(data)}\r\n{head}".encode("ascii"), data, b"\r\n")
        await send(b"".join(pieces))

    def _noted(self, entries: Sequence[Entry], last: int) -> list[int]:
        """Return where these are stored: a batch lies in one piece."""
        first = last - len(entries) + 1
        for place, entry in enumerate(entries, start=first):
            if entry.is_alarm:
                self._line_stored(entry, place)
        return list(range(first, last + 1))

    async def _lost(self, epochs: Mapping[int, Epoch]) -> set[int]:
        """Return which of these shards another node owns now."""
        owners = await asyncio.gather(*(self.owner(shard) for shard in epochs))
        return {shard for shard, owner in zip(epochs, owners, strict=True) if owner != epochs[shard].sequence}

    async def owner(self, shard: int) -> int:
        """Return where the message lies by which a shard was taken last; 0: there is none."""
        return await self._last(self.stream_of(shard), self._names.owner(shard))

    async def _found_again(self, entry: Entry) -> int:
        """Return where an entry lies that was stored last of all of its subject, by us."""
        names, shard = self._names, entry.shard
        subject = names.alarm(shard, entry.tree) if entry.is_alarm else names.tree(shard, entry.tree)
        message = await self._last_message(self.stream_of(shard), subject)
        if message is None or f"{ID}: {entry.id}\r".encode() not in message.hdrs:
            raise Unavailable("The log has stored this write and others after it: another node owns the tree now.")
        return message.seq

    async def _last(self, stream: int, subject: str) -> int:
        message = await self._last_message(stream, subject)
        return 0 if message is None else message.seq

    async def _last_message(self, stream: int, subject: str) -> _Message | None:
        """Return the last message of a subject as the leader of its stream knows it."""
        return (await self._ask("STREAM.MSG.GET", stream, {"last_by_subj": subject})).message

    async def _ask(self, what: str, stream: int, question: Mapping[str, object]) -> _Answer:
        """Ask the leader of a stream."""
        import nats.errors

        trying = _Attempts(f"a question ({what})", READING)
        while True:
            try:
                reply = await self._connection.request(
                    f"$JS.API.{what}.{self._names.stream(stream)}",
                    _question(question),
                    timeout=self._timings.log_attempt_timeout,
                )
                answer = _answer(reply.data)
                if answer.error is None or answer.error.code == NOTHING_THERE:
                    return answer
                why: object = answer.error.description
            except nats.errors.ConnectionClosedError:
                raise Unavailable("The connection to NATS is closed.") from None
            except (nats.errors.Error, TimeoutError, OSError, msgspec.DecodeError) as error:
                why = error
            await trying.again(why)

    async def read(self, shard: int, tree: str, after: int = 0) -> list[Record]:
        stream, subject = self.stream_of(shard), self._names.tree(shard, tree)
        trying = _Attempts(f"a query for tree {tree}", READING)
        records: list[Record] = []
        behind_since, seen = 0.0, 0
        while True:
            begin = records[-1].sequence if records else after
            question = {"next_by_subj": subject, "batch": READ_AT_ONCE, "max_bytes": BYTES_AT_ONCE}
            found, _ = await self._get(stream, question, begin + 1)
            records += [Record(tree, place, data) for _, place, data in found]
            # Any replica may have answered, also one that is behind.
            last = await self._last(stream, subject)
            if last <= after or (records and records[-1].sequence == last):
                return [] if last <= after else records
            if records and records[-1].sequence > last:
                records = []  # replaced or dropped since
            elif found:
                behind_since, seen = 0.0, 0  # it is written to, and catches up
            now = asyncio.get_running_loop().time()
            behind_since, seen = behind_since or now, seen + 1
            if seen > SIGHTINGS and now > behind_since + BEHIND:
                raise Differ(f"A replica of {self._names.stream(stream)} lacks messages of its leader.")
            await trying.again("the replica that answered is behind its leader")

    async def _get(
        self, stream: int, question: Mapping[str, object], begin: int
    ) -> tuple[list[tuple[str, int, bytes]], int]:
        """Return messages as any replica has them: subject, place, data; and up to where the replica looked."""
        import nats.errors

        trying = _Attempts("a question (DIRECT.GET)", READING)
        found: list[tuple[str, int, bytes]] = []
        while True:
            try:
                some, left, up_to = await self._page(stream, {**question, "seq": begin})
            except nats.errors.ConnectionClosedError:
                raise Unavailable("The connection to NATS is closed.") from None
            except (nats.errors.Error, TimeoutError, OSError) as error:
                await trying.again(error)
                continue
            found += some
            if not left or not some:
                return found, up_to
            begin = some[-1][1] + 1

    async def _page(self, stream: int, question: Mapping[str, object]) -> tuple[list[tuple[str, int, bytes]], int, int]:
        """Return what one question is answered with, how much is left, and up to where the replica looked."""
        subject = f"$JS.API.DIRECT.GET.{self._names.stream(stream)}"
        timeout = self._timings.log_attempt_timeout
        *messages, end = await all_answers(self._connection, subject, _question(question), timeout)
        found = [(one.headers["Nats-Subject"], int(one.headers["Nats-Sequence"]), one.data) for one in messages]
        match end.headers["Status"]:
            case "404":
                return found, 0, 0
            case "204":
                left, up_to = end.headers.get("Nats-Num-Pending", "0"), end.headers.get("Nats-UpTo-Sequence", "0")
                return found, int(left), int(up_to)
            case status:
                raise OSError(f"{status} {end.headers.get('Description', '')}")

    async def alarms(self, shards: Collection[int]) -> list[Record]:
        names = self._names
        found = await self._by_stream(shards, names.alarm, self._lines)
        records: list[Record] = []
        for subject, place, data in found:
            tree, shard = subject.rsplit(".", 1)[1], int(subject.split(".")[-3])
            if shard in shards:
                if data:
                    records.append(Record(tree, place, data))
                else:
                    self._clean_later(subject, self.stream_of(shard), place)
        return records

    async def _lines(self, stream: int, subject: str) -> list[tuple[str, int, bytes]]:
        """Return the messages of subjects that have one each, as the leader has them or a replica that is as far."""
        trying = _Attempts("a query for alarms", READING)
        while True:
            # Again each time: the previous owner of the shard may still remove empty lines.
            counted = await self._subjects(stream, subject)
            if not counted:
                return []
            last = await self._state(stream)
            question = {"multi_last": [subject], "batch": self._timings.alarm_page}
            if len(counted) > self._timings.alarm_page:
                break
            try:
                found, up_to = await self._get(stream, question, 0)
            except Unavailable:
                break
            if up_to >= last:
                return found
            await trying.again("the replica that answered is behind its leader")
        lines: list[tuple[str, int, bytes]] = []
        subjects = list(counted)
        for at in range(0, len(subjects), AT_ONCE):
            some = await asyncio.gather(*(self._last_message(stream, one) for one in subjects[at : at + AT_ONCE]))
            lines += [(one.subject, one.seq, one.data) for one in some if one is not None]
        return lines

    async def _state(self, stream: int) -> int:
        state = (await self._ask("STREAM.INFO", stream, {})).state
        return 0 if state is None else state.last_seq

    async def trees(self, shards: Collection[int]) -> dict[int, dict[str, int]]:
        trees: dict[int, dict[str, int]] = {shard: {} for shard in shards}
        for subject, count in await self._by_stream(shards, self._names.tree, self._counts):
            shard, tree = int(subject.split(".")[-3]), subject.rsplit(".", 1)[1]
            if shard in trees:
                trees[shard][tree] = count
        return trees

    async def _counts(self, stream: int, subject: str) -> list[tuple[str, int]]:
        return list((await self._subjects(stream, subject)).items())

    async def _by_stream(self, shards: Collection[int], subject_of: Any, ask: Any) -> list[Any]:
        """Ask for something of all these shards; of a stream that has many of them, for all of it."""
        by_stream: dict[int, list[int]] = {}
        for shard in shards:
            by_stream.setdefault(self.stream_of(shard), []).append(shard)
        questions: list[tuple[int, str]] = []
        for stream, some in by_stream.items():
            if len(some) > self._timings.whole_stream_shards:
                *begin, _, kind, _ = subject_of(some[0], "*").split(".")
                questions.append((stream, ".".join([*begin, "*", kind, "*"])))
            else:
                questions += [(stream, subject_of(shard, "*")) for shard in some]
        answers: list[Any] = []
        for at in range(0, len(questions), AT_ONCE):
            for some in await asyncio.gather(*(ask(*question) for question in questions[at : at + AT_ONCE])):
                answers += some
        return answers

    async def _subjects(self, stream: int, wanted: str) -> dict[str, int]:
        """Return the subjects of a stream that have messages, and how many each."""
        subjects: dict[str, int] = {}
        while True:
            question = {"subjects_filter": wanted, "offset": len(subjects)}
            answer = await self._ask("STREAM.INFO", stream, question)
            some = {} if answer.state is None or answer.state.subjects is None else answer.state.subjects
            subjects.update(some)
            if not some or len(subjects) >= answer.total:
                return subjects

    async def drop(self, shard: int, tree: str, up_to: int) -> None:
        await self._purge(self.stream_of(shard), self._names.tree(shard, tree), up_to)

    async def _purge(self, stream: int, subject: str, up_to: int) -> None:
        await self._ask("STREAM.PURGE", stream, {"filter": subject, "seq": up_to + 1})

    def _line_stored(self, entry: Entry, place: int) -> None:
        subject = self._names.alarm(entry.shard, entry.tree)
        if entry.data:
            self._to_clean.pop(subject, None)
        else:
            self._clean_later(subject, self.stream_of(entry.shard), place)

    def _clean_later(self, subject: str, stream: int, place: int) -> None:
        self._to_clean[subject] = stream, place
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._timings.alarm_cleanup_delay, self._clean)

    def _clean(self) -> None:
        self._timer = None
        gone, self._to_clean = self._to_clean, {}
        self._cleaning = asyncio.get_running_loop().create_task(self._remove_lines(gone.items()))

    async def _remove_lines(self, gone: Iterable[tuple[str, tuple[int, int]]]) -> None:
        for subject, (stream, place) in gone:
            try:
                await self._purge(stream, subject, place)
            except Unavailable as error:
                log.warning("deleting empty rows of the alarm index failed: %s", error)
                return
