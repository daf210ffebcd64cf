"""Ways to break conversations on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_ai.messages import ModelMessage

from sapwood.chat.accepting import Accepting
from sapwood.chat.ending import Ending
from sapwood.chat.record import Record
from sapwood.chat.stream import ChatStream
from sapwood.chat.transcript import Transcript
from sapwood.chat.turns import CallJournal, Row, Turns
from sapwood.kernel.actor import Actor
from sapwood.kernel.outbox import Outbox
from sapwood.kernel.sockets import Socket


def no_results() -> None:
    """What a tool returned is not written down."""

    async def ended(self: CallJournal, id: str, *, result: str | None = None, error: str | None = None) -> None:
        pass

    CallJournal.ended = ended


def no_calls() -> None:
    """That a tool begins is not written down."""

    def begin_call(self: Turns, id: str, turn: int, name: str, input: str) -> None:
        pass

    Turns.begin_call = begin_call


def kept_chunks() -> None:
    """What an interrupted step had said is not forgotten when the model is asked again."""

    def forget_from(self: ChatStream, step: int) -> None:
        pass

    ChatStream.forget_from = forget_from


def numbers_again() -> None:
    """The numbers of what is forgotten are used again."""
    forget_from = ChatStream.forget_from

    def forget(self: ChatStream, step: int) -> None:
        forget_from(self, step)
        assert self.active is not None
        self._seq = self._last(self.active.number) + 1
        self._turns.set(self.active.number, next_seq=self._seq)

    ChatStream.forget_from = forget


def lost_queue() -> None:
    """A turn that begins takes the place of all that are queued."""
    begin = Accepting._begin

    def begin_alone(self: Accepting, row: Row, sender: Socket | None = None) -> None:
        self._actor.database.execute("DELETE FROM sapwood_turns WHERE status = 'queued' AND number > ?", row.number)
        begin(self, row, sender)

    Accepting._begin = begin_alone


def next_apart() -> None:
    """A turn ends in one commit, and the next begins in another."""
    begin_next = Accepting.begin_next

    def begin_later(self: Accepting, sender: Any = None, *, is_silent: bool = False) -> None:
        def begin() -> None:
            if not self._actor.detached:
                begin_next(self, sender, is_silent=is_silent)

        self._actor.host.loop.call_later(0.003, begin)

    Accepting.begin_next = begin_later


def sent_first() -> None:
    """Frames leave before what they say is kept."""

    def put(self: Outbox, socket: Socket, frame: str | bytes) -> None:
        socket.send(frame)

    Outbox.put = put


def counted_apart() -> None:
    """An answer is stored in one commit, and counted as a step in another."""
    make, add = Record.__init__, Transcript.add
    commits: dict[Transcript, Callable[[], None]] = {}

    def made(self: Record, actor: Actor) -> None:
        make(self, actor)
        commits[self.transcript] = actor.home.slices.commit

    def add_alone(self: Transcript, id: str, message: ModelMessage) -> None:
        add(self, id, message)
        if message.kind == "response":
            self._db.keep()
            commits[self]()

    Record.__init__, Transcript.add = made, add_alone


def no_returns() -> None:
    """What a turn had called when it was broken off is left as it is."""

    def return_calls(self: Ending, row: Row, otherwise: str) -> None:
        pass

    Ending._return_calls = return_calls


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
}
