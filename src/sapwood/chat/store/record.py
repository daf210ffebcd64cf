"""What is kept of one conversation, and shown of it: its messages, its turns, and what it streams."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec

from sapwood.capabilities.due_work import Agenda
from sapwood.chat.store import message_pages
from sapwood.chat.store.branches import PlacedMessage
from sapwood.chat.store.chat_behavior import ChatBehavior
from sapwood.chat.store.message_files import MessageFiles
from sapwood.chat.store.outputs import Output
from sapwood.chat.store.stream import ChatStream
from sapwood.chat.store.transcript import Transcript, UIMessage
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.store.turn_spans import TurnSpans
from sapwood.chat.store.turns import Turn, TurnsTable
from sapwood.chat.store.user_messages import ids_of
from sapwood.chat.tools.agent_tools import AgentTool, PersistentAgent
from sapwood.errors import InvalidResult, Refused, StoredDataError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import Socket
from sapwood.kernel.marshal.agent_class import known
from sapwood.randomness import new_id
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.results import Outcomes
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.tables.decisions import Decisions
from sapwood.runs.tables.runs_table import shown
from sapwood.wire import helix

DRIVE = "_sapwood_drive_turn"
"""The method whose fibers drive turns."""
COMPACT = "_sapwood_compact"
"""The method whose fibers compact the conversation after a turn."""


class NoAnswer(Refused):
    """A turn that does a run ended without an answer."""


class ConversationRecord:
    """What is kept of the conversation of one chat agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agent: ChatBehavior = actor.agent
        self.transcript = Transcript(actor.database, actor.host.clock)
        self.turns = TurnsTable(actor.database, actor.host.clock, TurnSpans(actor))
        self.stream = ChatStream(actor, self.turns)
        self.files = MessageFiles(actor, self.transcript, self.turns)
        self.transcript.on_stored = self._stored
        self.transcript.on_added = self.files.hold_in_history
        self.transcript.on_changed = self.files.changed
        self.output: Output = actor.agent._output
        if actor.kind.overrides("on_chunk"):
            self.stream.on_chunk = self._agent.on_chunk

    def _stored(self, message: UIMessage) -> None:
        self.files.hold(message)
        if message["role"] == "user":
            self.files.changed([message["id"]])

    def begin_branch(self, edited: Collection[str]) -> None:
        """Begin a branch in the place of messages that the user has edited: the old ones get new ids."""
        ids = {id: f"msg-{new_id(self._actor.host.random)}" for id in sorted(edited)}
        self.transcript.replace_in_branch(ids)
        self.turns.rename_prompts(ids)

    def placed_messages(self, *, with_waiting: bool = False) -> list[PlacedMessage]:
        """Return the messages of all branches, each after the one before it; perhaps with what waits for its turn."""
        found = self.transcript.tree.messages() if self.transcript.exists else []
        if with_waiting:
            stored = {one.message["id"] for one in found}
            last = next((one.message["id"] for one in reversed(found) if one.is_active), None)
            for message in msgspec.json.decode(self.text()):
                if message["id"] not in stored:
                    found.append(PlacedMessage(last, message, is_active=True))
                    last = message["id"]
        return found

    def end_of(self, row: TurnRow) -> tuple[str, bool] | None:
        """Return the id of the last message of a turn, and whether it is on the active path; `None` without one."""
        ids = [row.message, *reversed(row.prompts())]
        stored = self.transcript.known(ids)
        return next(((id, self.transcript.is_active(id)) for id in ids if id in stored), None)

    def last_turn(self) -> TurnRow | None:
        """Return the turn that the active path ends with; `None` if it has none."""
        row, last = self.turns.last(), self.transcript.last()
        if row is None or row.is_open or last is None or last["id"] == row.message:
            return row
        if self.transcript.known([row.message]):
            is_there = self.transcript.is_active(row.message)
        else:  # it has said nothing
            is_there = all(map(self.transcript.is_unanswered, row.prompts()[-1:]))
        return row if is_there else self.turns.last_with(last["id"])

    def row(self, number: int) -> TurnRow:
        """Return a turn as it is stored."""
        row = self.turns.of(number)
        if row is None:
            raise Refused("The turn was cleared.")
        return row

    def check_answer(self, row: TurnRow, text: str) -> None:
        """Raise if a turn that does a run would end without an answer: its caller would take nothing for one."""
        if row.run is not None and not text.strip():
            raise NoAnswer(
                f"{type(self._agent).__name__} ended without an answer: the last message of the model has no text."
            )

    def text(self) -> str:
        """Return the whole conversation as its clients see it, as JSON: what waits for its turn comes last."""
        return self._with_waiting(self.transcript.text())

    def page(self) -> str:
        """Return what clients receive when they connect and after each change: the end of the same."""
        agent = self._agent
        return self._with_waiting(self.transcript.page(None, agent.page_messages, agent.page_bytes))

    def page_before(self, id: str | None, limit: str | None) -> str:
        """Return what a client asks for: the messages before the one with this id, at most `limit`, or the last ones.

        Raises `InvalidArguments` if there is no message with this id, or `limit` is no such number.
        """
        count = message_pages.limit_of(limit, self._agent.page_messages)
        page = self.transcript.page(id, count, self._agent.page_bytes)
        return self._with_waiting(page) if id is None else page

    def _with_waiting(self, text: str) -> str:
        """Return stored messages with what waits for its turn, and without what that replaces."""
        waits = [row.new_messages for row in self.turns.open() if row.new_messages != "[]"]
        if not waits:
            return text
        stored: list[dict[str, Any]] = []
        waiting = {id for said in waits for id in ids_of(said)}
        if self.transcript.known(waiting):
            stored = msgspec.json.decode(text)
            changed = [at for at, message in enumerate(stored) if message["id"] in waiting]
            text = msgspec.json.encode(stored[: min(changed, default=0)]).decode()
        return "[" + ",".join(one[1:-1] for one in (text, *waits) if one != "[]") + "]"

    def tell_all(self, *, sender: Socket | None = None) -> None:
        """Send the conversation to every client except the sender of its last message."""
        self.stream.tell_messages(self.page, sender=sender)

    def turn(self, row: TurnRow) -> Turn[Any]:
        """Return a turn whose output has the type that the class declares; `StoredDataError` if it does not fit."""
        turn = self.shown(row)
        if row.output is None:
            return turn
        try:
            return replace(turn, output=self.output.read(row.output))
        except InvalidResult as error:
            raise StoredDataError(
                f"The output of the turn {row.id!r} cannot be read: {error} The class has changed since: change it "
                "back."
            ) from error

    def ended_turn(self, row: TurnRow) -> Turn[Any]:
        """Return the same, with the JSON value where the output does not fit."""
        try:
            return self.turn(row)
        except StoredDataError:
            return self.shown(row)

    def shown(self, row: TurnRow) -> Turn[Any]:
        """Return a turn as it is told to clients and callers: its output is a JSON value."""
        message = self.transcript.get(row.message) if row.message else None
        parts: list[dict[str, Any]] = message["parts"] if message is not None else []
        return Turn(
            id=row.id,
            status=row.status,
            text="".join(str(part["text"]) for part in parts if part["type"] == "text"),
            output=None if row.output is None else msgspec.json.decode(row.output),
            error=row.error,
            reason=row.reason,
            steps=row.steps,
            usage={model: spent.told() for model, spent in row.spent().items()},
            body=msgspec.json.decode(row.body),
            user=row.user,
        )

    def export(self) -> dict[str, Any]:
        """Return everything that is known of the conversation, as what JSON has."""
        return {
            "messages": self.transcript.messages(),
            "other_branches": [
                {"after": one.after, "message": one.message} for one in self.placed_messages() if not one.is_active
            ],
            "model_messages": self.transcript.exported(),
            "turns": [msgspec.to_builtins(self.shown(row)) for row in self.turns.all()],
            "decisions": [one.told() for one in self._actor.of(Decisions).all()],
            "helix": self._in_words_of_helix(),
        }

    def _in_words_of_helix(self) -> dict[str, Any]:
        """Return the conversation and its runs for tools that were written for Helix."""
        tools = self._agent.tools
        agents = {one.name: known(one.cls).type for one in tools if isinstance(one, AgentTool)}
        has_companions = any(isinstance(one, PersistentAgent) for one in tools)
        runs, outcomes = self._actor.of(Runs).registry.all(), self._actor.of(Outcomes)
        caller = self._actor.address
        return {
            "messages": helix.recorded(self.transcript.exported(), agents, companions=has_companions),
            "subSessionRefs": [
                helix.sub_session_ref(shown(row), caller, row.mode, outcomes.remote(row)) for row in runs
            ],
        }

    def launch(self, number: int) -> None:
        """Start the fiber that drives a turn."""
        self._actor.of(Agenda).fibers.launch(driving(number), DRIVE, number)

    def tell_end(self, number: int) -> None:
        """Report the end of a turn from a fiber, because no driver is left to do so."""
        self._actor.of(Agenda).fibers.launch(driving(number), DRIVE, number)

    def rests(self, number: int) -> bool:
        """Return whether a turn that runs has left the memory, because all it waits for are runs that have."""
        return self._actor.of(Agenda).fibers.is_asleep(driving(number), DRIVE)

    def wake(self, row: TurnRow) -> None:
        """Resume a resting turn. Its waiters resume first, so that a crash leaves none behind."""
        if row.run is not None:
            self._actor.of(RunExecutor).wake_above(row.run)
        self._actor.of(Agenda).fibers.wake(driving(row.number), DRIVE)


def driving(number: int) -> str:
    """Return the name of the fiber that drives a turn."""
    return f"turn {number}"
