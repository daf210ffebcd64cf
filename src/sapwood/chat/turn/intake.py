"""Accepts messages to a chat agent; each waits for its turn, and joins the conversation when that begins.

The agent's `concurrency` decides what happens to a message that arrives while a turn runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from sapwood.capabilities.schedules import Schedules
from sapwood.chat.models.turn_overrides import TurnOverrides
from sapwood.chat.store.chat_behavior import ChatBehavior
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.transcript import UIMessage
from sapwood.chat.store.turn_rows import JOINED, TurnRow
from sapwood.chat.store.user_messages import (
    add_request,
    check,
    check_ids,
    check_role,
    has_files,
    ids_of,
    received,
    trailing,
)
from sapwood.chat.turn.cancellation import Interrupts
from sapwood.chat.turn.finish import TurnFinish
from sapwood.errors import InvalidArguments, Refused
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import Socket
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.kernel.ports.history import MomentKind
from sapwood.randomness import Random, new_id
from sapwood.runs.tables.question import user_of_code
from sapwood.runs.tables.runs_table import Run
from sapwood.when import After
from sapwood.wire import chat as wire

POLICIES = ("queue", "latest", "merge", "drop", "debounce", "interrupt")
SILENCE = "begin turn"
"""The key of the schedule that begins a turn when nothing more was said."""
NOTICE = "notify-"
"""The prefix of the id of a turn that reports the end of a started run to its agent."""


class Intake:
    """Accepts the messages of one conversation, and lets one turn begin after the other."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._agent: ChatBehavior = actor.agent
        record = self._record = actor.of(ConversationRecord)
        self._transcript, self._turns, self._stream = record.transcript, record.turns, record.stream
        self._ending = actor.of(TurnFinish)

    async def receive(self, message: str | Sequence[UIMessage], *, id: str | None = None) -> TurnRow:
        """Accept a message of code: a text, or messages in the format of the AI SDK."""
        messages = _messages_of(message, self._actor.host.random)
        if has_files(messages):
            messages = await self._record.files.take(messages, {}, is_client=False)
        return self.ask(messages, id=id, user=user_of_code())

    def ask(
        self,
        messages: Sequence[UIMessage],
        *,
        id: str | None = None,
        body: Mapping[str, Any] | None = None,
        client_tools: Sequence[Any] | None = None,
        regenerate: bool = False,
        sender: Socket | None = None,
        run: str | None = None,
        user: str | None = None,
        is_notice: bool = False,
        replay_seconds: float | None = None,
        overrides: TurnOverrides | None = None,
        after: str | None = None,
    ) -> TurnRow:
        """Accept a user's message, and answer it when its turn comes.

        It follows the message `after`. `None` means the last one, or the one that the client shows before it if that
        belongs to another branch.
        """
        self._actor.check_use()
        name = id or f"turn-{new_id(self._actor.host.random, 6)}"
        if id and (known := self._turns.get(id)) is not None:
            return known
        # A notice that no client asked for now neither gets lost nor stops a turn.
        policy = "queue" if regenerate or is_notice or after else self._agent.concurrency
        queued = self._turns.queued()
        busy = self._turns.running() is not None or self._waits_for_limit() or not all(map(_is_notice, queued))
        if len(queued) >= self._actor.host.timings.queued_turns and policy == "queue" and run is None and not is_notice:
            raise Refused(f"Too many queued turns: {len(queued)}. Send the message again when some of them have ended.")
        for message in messages:
            check(message)
        new = self._new(messages, changed=not regenerate)
        if not new:
            self._check_unanswered(regenerate=regenerate)
        asked = trailing(messages) or [message["id"] for message in new] or self._transcript.last_said()
        if busy and policy == "drop":
            return self._skip(name, asked, sender, run, user)
        if busy and policy in ("latest", "merge", "debounce", "interrupt"):
            new = self._supersede(new)
        self._actor.host.history.mark(self._actor.address, MomentKind.BEFORE_TURN, name)
        row = self._turns.add(
            name,
            f"msg-{new_id(self._actor.host.random)}",
            new,
            asked=asked,
            body=msgspec.json.encode(body or {}).decode(),
            client_tools=msgspec.json.encode(client_tools or []).decode(),
            run=run,
            user=user,
            replay_seconds=replay_seconds,
            overrides=None if overrides is None else msgspec.json.encode(overrides).decode(),
        )
        for message in new:
            self._record.files.hold(message)
        if regenerate or after:
            self._turns.set(row.number, last_kept=after or self._last_known(messages))
        else:
            self._note_shown(row, messages, new, is_behind=bool(queued))
        if busy and policy == "interrupt":
            running = self._turns.running()
            if running is not None:
                self._actor.of(Interrupts).cancel(running)
            elif self._waits_for_limit():
                self._ending.close_waiting("cancelled")
        if busy and new:
            self._record.tell_all(sender=sender)
        if policy == "debounce":
            self._actor.of(Schedules).cancel(SILENCE)
            wish = After(timedelta(seconds=self._agent.debounce), key=SILENCE)
            self._actor.of(Schedules).add(wish, self._actor.agent._sapwood_begin_turn, (), {})
        else:
            self.begin_next(sender)
        return self._record.row(row.number)

    def _check_unanswered(self, *, regenerate: bool) -> None:
        """Refuse a request without a new message, unless a message of the user waits for an answer."""
        waiting, last = self._turns.waiting(), self._transcript.last()
        if self._awaits_answer():
            raise InvalidArguments("A question is open, and the request has no new message. Answer the question first.")
        if regenerate:
            if not self._transcript.last_said() and not self._turns.queued():
                raise InvalidArguments("The conversation is empty: there is no message to answer. Send a message.")
            return
        if self._turns.running() is not None or self._turns.queued() or self._waits_for_limit():
            raise InvalidArguments("The request has no new message, and the last one is being answered.")
        if last is None:
            raise InvalidArguments("The conversation is empty, and the request has no message of the user.")
        # A turn that waits has its answers here, and was not asked to continue: this request asks for it.
        if last["role"] != "user" and waiting is None:
            raise InvalidArguments(
                "The request has no new message, and the last one is answered. Send a message with a new `id`, or its "
                'text changed. Clients get another answer with {"trigger":"regenerate-message"}; in Python, fork the '
                "tree with at=BeforeTurn(id)."
            )

    def _new(self, messages: Sequence[UIMessage], *, changed: bool) -> list[UIMessage]:
        """Return what is new of what a client has, or was `changed` at its end; what the assistant said is not."""
        stored = self._transcript.known(_ids(messages))
        waits = {id for row in self._turns.queued() for id in ids_of(row.new_messages)}
        said = [message for message in messages if message["role"] == "user" and message.get("id") not in waits]
        new = [message for message in said if message.get("id") not in stored]
        schemes = self._actor.host.settings.file_url_schemes
        files = self._record.files
        new = [received(message, schemes, files) for message in new]
        check_ids(new, {row.message for row in self._turns.open()})
        last = said[-1] if changed and said and said[-1] is messages[-1] else {}
        before = self._transcript.get(last["id"]) if last.get("id") in stored else None
        if before is not None and before["parts"] != last["parts"]:
            check_role(before)
            last = received(last, schemes, files)
            if before["parts"] != last["parts"]:
                new.append(last)
        return [
            message if message.get("id") else {**message, "id": f"msg-{new_id(self._actor.host.random)}"}
            for message in new
        ]

    def _skip(
        self, name: str, asked: Sequence[str], sender: Socket | None, run: str | None, user: str | None
    ) -> TurnRow:
        self._actor.host.history.mark(self._actor.address, MomentKind.BEFORE_TURN, name)
        row = self._turns.add(name, "", [], asked=asked, body="{}", client_tools="[]", run=run, user=user)
        self._turns.end(row.number, "skipped")
        self._ending.count_end("skipped")
        self._ending.end_run(row, "skipped")
        if sender is not None:
            self._stream.tell_one(sender, wire.messages(self._record.page()))
            self._stream.knows(sender)
            self._stream.tell_one(sender, wire.done(name, "skipped", asked=list(asked)))
        return self._record.row(row.number)

    def _supersede(self, new: Sequence[UIMessage]) -> list[UIMessage]:
        """Skip the turns that wait, but those that answer something again; return what the new one is to answer."""
        said: list[UIMessage] = []
        for row in self._turns.queued():
            if row.last_kept is None:
                said += msgspec.json.decode(row.new_messages)
                self._ending.end_queued(row, "skipped")
        return [*said, *new]

    def _last_known(self, messages: Sequence[UIMessage]) -> str:
        """Return the id of the last of a client's messages that is known here; "" if none is.

        A client that names no messages means the last that the user sent.
        """
        if not messages:
            return next(iter(self._transcript.last_said()), "")
        known = self._transcript.known(_ids(messages))
        return next((message["id"] for message in reversed(messages) if message.get("id") in known), "")

    def _note_shown(
        self, row: TurnRow, messages: Sequence[UIMessage], new: Sequence[UIMessage], *, is_behind: bool
    ) -> None:
        """Let a turn follow what its client shows before its new messages.

        That may belong to another branch already, or a queued turn may leave its branch before this one begins.
        """
        ids = [message.get("id") for message in messages]
        first = min((ids.index(message["id"]) for message in new if message["id"] in ids), default=0)
        before = next((one for one in reversed(messages[:first]) if self._transcript.known(_ids([one]))), None)
        if before is None:
            return
        if not self._transcript.is_active(before["id"]):
            self._turns.set(row.number, last_kept=before["id"])
        elif is_behind and not self._is_queued_edit(before):
            self._turns.set(row.number, last_shown=before["id"])

    def _is_queued_edit(self, message: UIMessage) -> bool:
        """Return whether a client shows a message as an edit that is queued has it."""
        stored = self._transcript.get(message["id"])
        is_edited = any(message["id"] in ids_of(row.new_messages) for row in self._turns.queued())
        return is_edited and (stored is None or stored["parts"] != message["parts"])

    def note_run(self, run: Run) -> None:
        """Continue the conversation with the end of a started run, once."""
        who = f"The background run {run.id} of {run.agent.type} was"
        if run.mode == "persistent":
            who = f"The task of your child {run.agent.name} was"
        what = (
            f"completed: {run.summary or msgspec.json.encode(run.output).decode()}"
            if run.ok
            else f"{run.status}: {for_clients(run.failure()['error'])}"
        )
        message = {
            "id": f"msg-{run.id}-{run.status}",
            "role": "user",
            "parts": [{"type": "text", "text": f"[{who} {what}]"}],
            "metadata": {"source": "run", "run": run.id},
        }
        self.ask([message], id=f"{NOTICE}{run.id}-{run.status}", is_notice=True)

    def begin_next(self, sender: Socket | None = None, *, is_silent: bool = False) -> None:
        """Start the next turn if none runs and no message is being received; its `sender` knows its own message."""
        queued, first = self._turns.queued(), self.first()
        if self._turns.running() is not None:
            return
        if first is None:
            self._stream.release_parked()
        elif is_silent or first.last_kept is not None or not self._awaits_silence():
            self._begin(first, sender if len(queued) == 1 else None)

    def first(self) -> TurnRow | None:
        """Return the turn that starts as soon as it can. Only a new message of the user's ends an open question.

        All wait for a turn that waits until a person allows more of a limit: they would have to wait for the same.
        """
        queued = self._turns.queued()
        if self._waits_for_limit():
            return None
        if not queued or (not any(map(_has_new_message, queued)) and self._awaits_answer()):
            return None
        return queued[0]

    def _waits_for_limit(self) -> bool:
        waiting = self._turns.waiting()
        return waiting is not None and waiting.waits_for_limit

    def _awaits_answer(self) -> bool:
        waiting = self._turns.waiting()
        return waiting is not None and any(call.is_open for call in self._turns.calls(waiting.number))

    def _awaits_silence(self) -> bool:
        return self._agent.concurrency == "debounce" and self._actor.of(Schedules).get(SILENCE) is not None

    def _begin(self, row: TurnRow, sender: Socket | None = None) -> None:
        """Let a turn begin: what was said joins the conversation.

        An edited message, or another answer to the same one, begins a branch. Nothing is deleted.
        """
        said: list[UIMessage] = msgspec.json.decode(row.new_messages)
        edited = self._transcript.known(_ids(said))
        try:
            for id in edited:
                check_role(self._transcript.get(id))
        except InvalidArguments as error:
            self._ending.end_queued(row, "failed", error=str(error))
            self.begin_next()
            return
        self._ending.close_waiting()
        if row.last_kept is not None:
            if not said and (last := self._transcript.last()) is not None:
                self._turns.set(row.number, previous_end=last["id"])
            self._transcript.go_back(row.last_kept)
        elif row.last_shown is not None and self._transcript.is_left(row.last_shown):
            self._transcript.switch(row.last_shown)
        if edited:
            self._record.begin_branch(edited)
        for message in said:
            self._transcript.put(message)
        if said:
            add_request(self._transcript, said, joined=self._agent.concurrency == "merge")
        self._turns.set(row.number, status="running", new_messages=JOINED)
        self._record.tell_all(sender=sender)
        self._record.launch(row.number)


def _ids(messages: Sequence[UIMessage]) -> list[str]:
    return [message["id"] for message in messages if message.get("id")]


def _is_notice(row: TurnRow) -> bool:
    return row.id.startswith(NOTICE)


def _messages_of(message: str | Sequence[UIMessage], random: Random) -> Sequence[UIMessage]:
    """Return a text as a message of the user."""
    if not isinstance(message, str):
        return message
    return [{"id": f"msg-{new_id(random)}", "role": "user", "parts": [{"type": "text", "text": message}]}]


def _has_new_message(row: TurnRow) -> bool:
    return row.new_messages != JOINED and not _is_notice(row)
