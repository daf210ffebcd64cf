"""What a turn streams to its clients: stored first, then sent, and replayed to clients that connect later.

Chunks are batched for a few hundredths of a second, so that many tokens become a few rows and
a few frames. A client that connects during a turn is offered the stream. Until it accepts it
gets nothing, then all of it from the beginning, then what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from math import inf

import msgspec

from sapwood.chat.store.chunks import Chunk, closing, merged
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.store.turns import TurnsTable
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import Socket
from sapwood.runs.events.events import RETRACTED, Feed, OwnTurn, ears_of
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.executed_runs_table import SERVED
from sapwood.wire import chat as wire

SEGMENT = 256
"""Chunks after which they are stored at once."""
BEGUN_AGAIN = "The model stopped responding and is asked again. The answer will be among the messages."
CROSSED = 10.0
"""Seconds for which what a client was told may cross with what it says."""
ASKED_FOR = 1.0
"""Longest delay in seconds before a continuation streams: the client that answered requests it, and gets it whole."""

_segment = msgspec.json.Decoder(list[msgspec.Raw])


class ChatStream:
    """The stream of one conversation; there is one at a time."""

    def __init__(self, actor: Actor, turns: TurnsTable) -> None:
        self._actor = actor
        self._db = actor.database
        self._turns = turns
        self._flush_delay = actor.host.timings.chunk_flush_delay
        self.active: TurnRow | None = None
        """The turn that streams now."""
        self.owner: Socket | None = None
        """The client whose answer the running continuation follows."""
        self._gathered: list[Chunk] = []
        self._timer: asyncio.TimerHandle | None = None
        self._seq = 0
        self._step = 0
        self._last_step: float = -1
        """No chunk of the turn that streams now is of a later step."""
        self._offered: set[Socket] = set()
        """Clients that were offered a replay and have not taken it."""
        self.parked: dict[Socket, object] = {}
        """Clients that wait for a stream to begin, with what they want to be answered by."""
        self._awaited: dict[Socket, asyncio.Future[None]] = {}
        """Who is expected to wait for a stream to begin."""
        self._told: dict[Socket, float] = {}
        """When each client was last told all messages; an agent that slept does not know it."""
        self._made_at = self._now()
        self._listeners: dict[int, list[asyncio.Queue[bytes | None]]] = {}
        """Those without a socket, by the turn that they hear."""
        self.on_chunk: Callable[[Chunk], None] | None = None
        self._empty_since: int | None = None
        """How many slices had been undone when nothing was stored of any turn; `None`: something may be."""
        self._goes_without_trace: int | None = None
        """The turn of which nothing is stored after its end, nor of any other, if nothing was when it began."""

    def begin(self, row: TurnRow) -> None:
        """Begin to stream a turn, or continue it: what its last step had streamed and not finished is forgotten."""
        self.active = row
        last, is_empty = -1, self._empty_since == self._db.undone
        if not is_empty:
            self._forget("stream < ?", row.number)
            last = self._last(row.number)
            is_empty = last < 0 and not self._db.execute("SELECT 1 FROM sapwood_chunks LIMIT 1")
        self._goes_without_trace = row.number if is_empty and row.run is None and row.replay_seconds is None else None
        self._last_step = -1 if last < 0 else inf
        self._seq = max(row.next_seq, last + 1)
        if row.run is None:
            self._actor.of(Feed).begin(OwnTurn(row.id, row.number, row.created_at))
        for socket, probe in self._take_parked():
            self.offer(socket, row.stream, probe)

    def forget(self, number: int) -> None:
        """Forget what a turn has streamed: its message is whole."""
        self._forget("stream = ?", number)
        if number == self._goes_without_trace:
            self._empty_since = self._db.undone

    def forget_others(self) -> None:
        """Forget what is stored of all turns but the one that runs: after a crash it may not stream again yet."""
        row = self.active or self._turns.running()
        self._forget("stream <> ?", 0 if row is None else row.number)

    def _forget(self, which: str, number: int) -> None:
        """Forget chunks, except those of runs, whose caller has nothing else, and of turns that can be replayed."""
        kept = " AND stream NOT IN (SELECT stream FROM sapwood_served_runs)" if self._db.has(SERVED) else ""
        self._db.execute(
            f"DELETE FROM sapwood_chunks WHERE {which}{kept} AND NOT EXISTS (SELECT 1 FROM sapwood_turns"  # noqa: S608 - ours
            " WHERE number = stream AND coalesce(ended_at, ?) + replay_seconds > ?)",
            number,
            now := self._now(),
            now,
        )

    def go_on(self, number: int) -> None:
        """A turn whose message is whole so far is about to continue: what it has streamed is not sent again."""
        self.forget(number)
        self._db.execute("UPDATE sapwood_chunks SET step = -1 WHERE stream = ? AND step >= 0", number)

    @property
    def next_seq(self) -> int:
        """The number of the next chunk."""
        return self._seq

    def begin_step(self, step: int) -> None:
        """What is streamed from now on belongs to this step of the turn."""
        self.flush()
        self._step = step

    def forget_from(self, step: int) -> None:
        """Forget what a step said that was interrupted; its numbers are not used again."""
        assert self.active is not None
        if self._last_step < step:
            return
        number, run = self.active.number, self.active.run
        if run is not None:
            self._put_aside(run, number, step)
        else:
            self._retract(number, step)
        # A turn that can be replayed is replayed as it was streamed: every reader is told the same.
        is_kept = self.active.replay_seconds is not None
        do = "UPDATE sapwood_chunks SET step = -1" if is_kept else "DELETE FROM sapwood_chunks"
        self._db.execute(f"{do} WHERE stream = ? AND step >= ?", number, step)
        self._turns.set(number, next_seq=self._seq)
        self._last_step = step - 1

    def _put_aside(self, run: str, number: int, step: int) -> None:
        """Keep for those who watch a run what it had said before a crash: they have seen it, and cannot forget it."""
        unfinished = self._chunks(number, step)
        if not unfinished:
            return
        self._db.execute("UPDATE sapwood_chunks SET step = -1 WHERE stream = ? AND step >= ?", number, step)
        texts = [msgspec.json.encode(chunk) for chunk in closing(unfinished)]
        if texts:
            first, self._seq = self._seq, self._seq + len(texts)
            at = self._store(number, first, -1, texts)
            self._actor.of(RunExecutor).said(run, first, texts, at)

    def _retract(self, number: int, step: int) -> None:
        """Tell the subscribers of the agent, also those to come, which chunks of its own turn are no longer valid."""
        ((first,),) = self._db.execute(
            "SELECT min(first) FROM sapwood_chunks WHERE stream = ? AND step >= ?", number, step
        )
        if first is None:
            return
        chunk = {"type": RETRACTED, "after": first}  # chunks count from 0 here, and from 1 in events
        at = self._store(number, self._seq, -1, [msgspec.json.encode(chunk)])
        self._seq += 1
        self._actor.of(Feed).say(self._seq - 1, [chunk], at)

    def begin_again(self, step: int) -> None:
        """Forget what a step said, and offer every client what there is, from the beginning.

        Who listens without a socket has heard too much, and is told to look elsewhere.
        """
        assert self.active is not None
        self.forget_from(step)
        for socket in self._clients():
            self.offer(socket, self.active.stream)
        for listener in self._listeners.get(self.active.number, ()):
            listener.put_nowait(msgspec.json.encode({"type": "error", "errorText": BEGUN_AGAIN}))
        self.settle(self.active.number)

    def _last(self, number: int) -> int:
        rows = self._db.execute(
            "SELECT first, body FROM sapwood_chunks WHERE stream = ? ORDER BY first DESC LIMIT 1", number
        )
        return rows[0][0] + len(_segment.decode(rows[0][1])) - 1 if rows else -1

    def put(self, *chunks: Chunk) -> None:
        """Say something, soon."""
        self._gathered.extend(chunks)
        if self.on_chunk is not None:
            for chunk in chunks:
                self.on_chunk(chunk)
        if len(self._gathered) >= SEGMENT:
            self.flush()
        elif self._timer is None and chunks:
            self._timer = self._actor.host.loop.call_later(self._flush_delay, self.try_flush)

    def try_flush(self) -> None:
        """Store what was gathered, and send it; later, if it cannot be stored now."""
        try:
            self.flush()
        except Unavailable:  # the agent is about to end: no client here could be told
            self._timer = self._actor.host.loop.call_later(self._flush_delay, self.try_flush)

    def flush(self) -> None:
        """Store what was gathered, and send it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        row = self.active
        if not self._gathered or row is None or self._actor.dropped is not None:
            self._gathered.clear()
            return
        chunks = merged(self._gathered)
        texts = [msgspec.json.encode(chunk) for chunk in chunks]
        first = self._seq
        at = self._store(row.number, first, self._step, texts)
        self._gathered.clear()  # only now: what could not be stored is stored the next time
        self._seq += len(texts)
        if row.run is not None:
            self._actor.of(RunExecutor).said(row.run, first, texts, at)
        elif ears_of(self._actor, self._actor.address.segments):
            self._actor.of(Feed).say(first, chunks, at)
        continues = bool(row.continues)
        for listener in self._listeners.get(row.number, ()):
            for text in texts:
                listener.put_nowait(text)
        for at, text in enumerate(texts):
            self.tell_live(wire.chunk(row.stream, text, first + at, continuation=continues))

    def _store(self, number: int, first: int, step: int, texts: Sequence[bytes]) -> float:
        """Store chunks; return when that was."""
        self._empty_since = None
        body, now = (b"[" + b",".join(texts) + b"]").decode(), self._actor.host.clock.now()
        self._db.execute("INSERT INTO sapwood_chunks VALUES (?, ?, ?, ?, ?)", number, first, step, now, body)
        self._last_step = max(self._last_step, step)
        return now

    def drop(self) -> None:
        """Discard the batched chunks without sending them."""
        self._gathered.clear()
        self.flush()

    def end(self) -> None:
        """The turn streams no more."""
        self.flush()
        ended, self.active, self.owner = self.active, None, None
        self._offered.clear()
        if ended is not None:
            self.settle(ended.number)

    def listen(self, number: int) -> AsyncIterator[bytes]:
        """Hear all that a turn streams, from now on and its beginning, as JSON, until it streams no more."""
        heard: asyncio.Queue[bytes | None] = asyncio.Queue()
        for chunk in self.stored(number):
            heard.put_nowait(msgspec.json.encode(chunk))
        self._listeners.setdefault(number, []).append(heard)
        return self._heard(heard)

    async def _heard(self, heard: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
        while (text := await heard.get()) is not None:
            await self._actor.leave()
            yield text

    def settle(self, number: int) -> None:
        """A turn streams no more, or never will: tell those who hear it."""
        for listener in self._listeners.pop(number, ()):
            listener.put_nowait(None)

    def stored(self, number: int) -> list[Chunk]:
        """Return what a turn has streamed so far."""
        return self._chunks(number, 0)

    def _chunks(self, number: int, step: int) -> list[Chunk]:
        if self.active is not None and self.active.number == number and self._last_step < step:
            return []
        rows = self._db.execute(
            "SELECT body FROM sapwood_chunks WHERE stream = ? AND step >= ? ORDER BY first", number, step
        )
        return [chunk for (body,) in rows for chunk in msgspec.json.decode(body)]

    def tell(self, frame: str, *, without: Socket | None = None) -> None:
        """Send a frame to every client."""
        self._tell_but(frame, () if without is None else (without,))

    def tell_live(self, frame: str) -> None:
        """Send a frame to every client, but not to those that were offered a replay and have not taken it."""
        self._tell_but(frame, self._offered)

    def _tell_but(self, frame: str, left_out: Container[Socket]) -> None:
        for socket in self._clients():
            if socket not in left_out:
                self.tell_one(socket, frame)

    def tell_messages(self, text: Callable[[], str], *, sender: Socket | None = None) -> None:
        """Send all messages to every client as JSON, except to the sender of the last one, which has it already.

        The sender gets them too if it spoke while an older list was on its way: clients replace what they show
        by the list they receive, so it has lost its message.
        """
        crossed = sender is not None and self._now() - self._told.get(sender, self._made_at) < CROSSED
        without = None if crossed else sender
        if any(socket is not without for socket in self._clients()):  # they may be many: not without a recipient
            self._tell_all(wire.messages(text()), without=without)

    def tell_cleared(self, *, without: Socket | None) -> None:
        """Tell every client that there are no messages any more."""
        self._tell_all(wire.cleared(), without=without)

    def _tell_all(self, frame: str, *, without: Socket | None) -> None:
        for socket in self._clients():
            if socket is not without:
                self.tell_one(socket, frame)
                self.knows(socket)

    def knows(self, socket: Socket) -> None:
        """A client is told all messages, now."""
        self._told[socket] = self._now()

    def _now(self) -> float:
        return self._actor.host.clock.now()

    def _clients(self) -> list[Socket]:
        return [socket for socket in self._actor.host.sockets.of(self._actor.address) if socket.is_protocol]

    def tell_one(self, socket: Socket, frame: str) -> None:
        self._actor.of(Outbox).put(socket, frame)

    def offer(self, socket: Socket, id: str, probe: object = None) -> None:
        """Offer a client what is streamed; it gets nothing of it until it answers."""
        if self.active is not None and self.active.stream == id:
            self._offered.add(socket)
        self.tell_one(socket, wire.about_stream(wire.RESUMING, id=id, probe=probe))

    def park(self, socket: Socket, id: str, probe: object = None) -> None:
        """Have a client wait for a stream that is about to begin."""
        self.parked[socket] = probe
        self._no_longer_await(socket)
        self.tell_one(socket, wire.about_stream(wire.PENDING, id=id, probe=probe))

    async def asked_for(self) -> None:
        """Return when the client that answered has requested the continuation, has left, or took too long."""
        owner = self.owner
        if owner is not None and owner.is_open and owner not in self.parked:
            self._awaited[owner] = parked = self._actor.host.loop.create_future()
            await asyncio.wait({parked}, timeout=ASKED_FOR)
            self._awaited.pop(owner, None)

    def _no_longer_await(self, socket: Socket) -> None:
        waiting = self._awaited.pop(socket, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def release_parked(self) -> None:
        """Nothing will be streamed: tell those who wait for it."""
        for socket, probe in self._take_parked():
            self.tell_one(socket, wire.about_stream(wire.RESUME_NONE, probe=probe))

    def _take_parked(self) -> list[tuple[Socket, object]]:
        waiting, self.parked = [*self.parked.items()], {}
        return [(socket, probe) for socket, probe in waiting if socket.is_open]

    def replay(self, socket: Socket, row: TurnRow) -> None:
        """Send a client all that a turn has streamed so far, and let it have what follows."""
        self.flush()
        self._offered.discard(socket)
        rows = self._db.execute(
            "SELECT first, body FROM sapwood_chunks WHERE stream = ? AND step >= 0 ORDER BY first", row.number
        )
        continues = bool(row.continues)
        for first, body in rows:
            for at, text in enumerate(_segment.decode(body)):
                frame = wire.chunk(row.stream, bytes(text), first + at, replay=True, continuation=continues)
                self.tell_one(socket, frame)

    def gone(self, socket: Socket) -> None:
        """A client has left."""
        self._offered.discard(socket)
        self.parked.pop(socket, None)
        self._told.pop(socket, None)
        self._no_longer_await(socket)
