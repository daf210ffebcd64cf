"""What is told to clients that come in the middle of a turn, or too late for it, or have heard too much of it."""

from __future__ import annotations

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.turn.intake import Intake
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import Socket
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.wire import chat as wire

START = b'{"type":"start"}'
STALE = 15 * 60.0
"""Seconds after which clients are no longer informed that a turn is being recovered."""


class Replay:
    """Has clients of one conversation catch up with it."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        record = self._record = actor.of(ConversationRecord)
        self._transcript, self._turns, self._stream = record.transcript, record.turns, record.stream
        self._accepting = actor.of(Intake)

    def resume(self, socket: Socket, probe: object = None, *, asked: bool = True) -> None:
        """Tell a client what streams, if anything does."""
        stream, active, owner = self._stream, self._stream.active, self._stream.owner
        about_to = self._turns.running() or self._accepting.first()
        if active is None and about_to is not None and self._record.rests(about_to.number):
            stream.begin(about_to)  # it slept; what it has said can be shown all the same
            active = stream.active
        if active is not None:
            if asked and active.continues and owner is not None and owner is not socket and owner.is_open:
                frame = wire.about_stream(wire.RESUME_NONE, probe=probe, reason="continuation-owned")
                stream.tell_one(socket, frame)
            else:
                stream.offer(socket, active.stream, probe)
        elif about_to is not None:
            stream.park(socket, about_to.stream, probe)
        elif (failed := self._failed()) is not None:
            stream.offer(socket, failed.stream, probe)
        elif asked:
            stream.tell_one(socket, wire.about_stream(wire.RESUME_NONE, probe=probe, reason="idle"))
        since = None if about_to is None else about_to.recovering_at
        if not asked and about_to is not None and since is not None and self._now() - since < STALE:
            stream.tell_one(socket, wire.recovering(about_to.id, is_so=True))

    def take(self, socket: Socket, id: str) -> None:
        """A client takes the offer of a replay."""
        stream, active, failed = self._stream, self._stream.active, self._failed()
        if active is not None and active.stream == id:
            stream.replay(socket, active)
            stream.tell_one(socket, wire.replayed(active.stream, continuation=bool(active.continues)))
        elif active is None and failed is not None and failed.stream == id:
            stream.replay(socket, failed)
            # Without it a tab that only watches drops what it was sent when the error comes.
            stream.tell_one(socket, wire.replayed(id, continuation=bool(failed.continues)))
            stream.tell_one(socket, wire.done(id, body=for_clients(failed.error or ""), error=True))
        elif active is None or self._turn_of(id) is not None:
            # Also while the next one streams: who has taken an offer waits for its end, and seems busy until then.
            # A stream without a start would end as an empty message there: this one continues the last by nothing.
            stream.tell_one(socket, wire.chunk(id, START, None, replay=True, continuation=True))
            stream.tell_one(socket, wire.done(id, replay=True, continuation=True))

    def _turn_of(self, id: str) -> TurnRow | None:
        """Return the turn that a stream belongs or belonged to; one that continued has several."""
        return self._turns.named(id) or self._turns.get(id.rpartition("-")[0])

    def _failed(self) -> TurnRow | None:
        """Return the last turn if it failed: clients that connect later have to see it."""
        last = self._record.last_turn()
        return last if last is not None and last.status == "failed" else None

    def tell_ended(self, socket: Socket, id: str) -> None:
        """Show a client the whole answer that it wanted to stop too late: it has stopped to listen already."""
        row = self._turn_of(id)
        message = self._transcript.get(row.message) if row is not None else None
        if message is not None:
            self._stream.tell_one(socket, wire.updated(message))

    def begin_again(self, number: int, step: int) -> None:
        """Forget what a step of a turn has said. Clients cannot unsay it, so they are offered all that is left."""
        row = self._record.row(number)
        self._turns.set(number, recovering_at=row.recovering_at or self._now())
        self._stream.drop()
        self._stream.tell(wire.recovering(row.id, is_so=True))
        frame = wire.done(row.stream, "recovering", asked=row.prompts(), continuation=bool(row.continues))
        self._stream.tell_live(frame)
        self._stream.tell_messages(self._record.page)
        self._stream.begin_again(step)

    def _now(self) -> float:
        return self._actor.host.clock.now()
