"""Ways to break conversations on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic_ai.messages import ModelMessage
from tests.faults import span_mutants

from sapwood.chat.store import partial_answers
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.stream import ChatStream
from sapwood.chat.store.transcript import Transcript
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.store.turns import CallJournal, TurnsTable
from sapwood.chat.turn import finish
from sapwood.chat.turn.intake import Intake
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox, Sink
from sapwood.kernel.actors.sockets import Socket


def no_results() -> None:
    """What a tool returned is not written down."""

    async def ended(self: CallJournal, id: str, *, result: str | None = None, error: str | None = None) -> None:
        pass

    CallJournal.ended = ended


def no_calls() -> None:
    """That a tool begins is not written down."""

    def begin_call(self: TurnsTable, id: str, turn: int, name: str, input: str) -> None:
        pass

    TurnsTable.begin_call = begin_call


def kept_chunks() -> None:
    """What an interrupted step had said is not forgotten when the model is asked again."""

    def forget_from(self: ChatStream, step: int) -> None:
        pass

    ChatStream.forget_from = forget_from


def numbers_again() -> None:
    """The numbers of what is forgotten are used again, and so is that of the note which takes it back."""
    forget_from = ChatStream.forget_from

    def forget(self: ChatStream, step: int) -> None:
        assert self.active is not None
        number = self.active.number
        ((first,),) = self._db.execute(
            "SELECT min(first) FROM sapwood_chunks WHERE stream = ? AND step >= ?", number, step
        )
        forget_from(self, step)
        if first is not None:
            self._db.execute("DELETE FROM sapwood_chunks WHERE stream = ? AND first >= ?", number, first)
            self._seq = first
            self._turns.set(number, next_seq=first)

    ChatStream.forget_from = forget


def lost_queue() -> None:
    """A turn that begins takes the place of all that are queued."""
    begin = Intake._begin

    def begin_alone(self: Intake, row: TurnRow, sender: Socket | None = None) -> None:
        self._actor.database.execute("DELETE FROM sapwood_turns WHERE status = 'queued' AND number > ?", row.number)
        self._turns._open = None
        begin(self, row, sender)

    Intake._begin = begin_alone


def next_apart() -> None:
    """A turn ends in one commit, and the next begins in another."""
    begin_next = Intake.begin_next

    def begin_later(self: Intake, sender: Any = None, *, is_silent: bool = False) -> None:
        def begin() -> None:
            if not self._actor.detached:
                begin_next(self, sender, is_silent=is_silent)

        self._actor.host.loop.call_later(0.003, begin)

    Intake.begin_next = begin_later


def sent_first() -> None:
    """Frames leave before what they say is kept."""

    def put(self: Outbox, sink: Sink[Any], frame: Any) -> None:
        sink.send(frame)

    Outbox.put = put


def counted_apart() -> None:
    """An answer is stored in one commit, and counted as a step in another."""
    make, add = ConversationRecord.__init__, Transcript.add
    commits: dict[Transcript, Callable[[], None]] = {}

    def made(self: ConversationRecord, actor: Actor) -> None:
        make(self, actor)
        commits[self.transcript] = actor.home.slices.commit

    def add_alone(
        self: Transcript, id: str, message: ModelMessage, joined: Mapping[str, ModelMessage] = MappingProxyType({})
    ) -> None:
        add(self, id, message, joined)
        if message.kind == "response":
            self._db.keep()
            commits[self]()

    ConversationRecord.__init__, Transcript.add = made, add_alone


def no_returns() -> None:
    """What a turn had called when it was broken off is left as it is."""

    def return_calls(*_: object) -> None:
        pass

    partial_answers.return_calls = finish.return_calls = return_calls


MUTANTS: dict[str, Callable[[], None]] = {
    "no-results": no_results,
    "no-calls": no_calls,
    "kept-chunks": kept_chunks,
    "numbers-again": numbers_again,
    "lost-queue": lost_queue,
    "next-apart": next_apart,
    "sent-first": sent_first,
    "counted-apart": counted_apart,
    "no-returns": no_returns,
    **span_mutants.MUTANTS,
}
