"""The responses of one agent: created, continued, followed, and ended where a turn ends or waits for the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.chat.store.turns import Turn
from sapwood.errors import OverLimit, Refused
from sapwood.kernel.marshal.call import id_of
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.openai_answers import check_answers, fitted, not_ended, not_open
from sapwood.protocols.openai_create import CreateRequest, no_conversation, no_previous, no_response
from sapwood.protocols.openai_errors import ApiError, invalid, unsupported
from sapwood.protocols.openai_formats import check_format
from sapwood.protocols.openai_history import ChatHistory, Placement, placed
from sapwood.protocols.openai_ids import AgentId, call_id, conversation_id, derived, item_id, read_call_id, response_id
from sapwood.protocols.openai_items import Json, OutputItems, items_of_message, json_text, message, question_item
from sapwood.protocols.openai_outcomes import adds, error_of, usage_of
from sapwood.protocols.openai_table import ResponseRow, ResponsesTable
from sapwood.runs.events.events import ENDS

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN = "openai-"
"""What the ids of the turns begin with."""
STATUS = {
    "queued": "queued",
    "running": "in_progress",
    "waiting": "in_progress",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "skipped": "cancelled",
}
"""The status of a response, by the status of its turn."""
SAME = ("temperature", "top_p", "max_output_tokens", "parallel_tool_calls", "instructions", "user", "text")
"""Parameters of a turn: a request that continues it cannot change them."""
CLEARED = "cleared"
LAST = {"completed": "response.completed", "failed": "response.failed"}
"""The last event of a stream, by the status of the response. Of others it is `response.incomplete`."""


@dataclass(frozen=True, slots=True)
class NewTurn:
    """What a request asks the agent, and how."""

    parts: list[Json]
    tools: list[Json]
    hints: Json
    settings: Json
    instructions: str | None = None
    place: Placement | None = None
    """Where the message belongs in the history that was sent; `None` if none was."""
    after: str | None = None
    """The id of the stored message that it follows; `None` means the last one of the active path."""


class Responses:
    """The responses of one agent, for one client."""

    def __init__(self, exchange: Exchange, model: str, *, takes_instructions: bool = False) -> None:
        self._exchange = exchange
        self._model = model
        self._takes_instructions = takes_instructions
        self._table = exchange.part(ResponsesTable)
        self._user = id_of(exchange.user)

    # Beginning.

    async def create(self, asked: CreateRequest, key: str | None) -> ResponseRow:
        """Start a turn, or continue one with the answers that it waits for. With a known key, return what it did."""
        id = self.id_for(key)
        row = self.known(id, asked.digest)
        check_format(asked.format, self._exchange.output_type, "text.format")
        if asked.input.answers:
            return await self.continued(asked, id)
        if row is not None:
            return row
        after = self._follows(asked)
        new = self._new_turn(asked, after)
        if isinstance(new, ResponseRow):
            return new
        return await self.begin(new, id, asked.digest, self._repeated(asked))

    def id_for(self, key: str | None) -> str:
        """Return the id of a new response. A repeated request with a key has the same one."""
        return self._exchange.new_id() if key is None else derived("response", self._user, key)

    def known(self, id: str, digest: str) -> ResponseRow | None:
        """Return the response that a request with the same key has created."""
        row = self._table.get(id)
        if row is not None and row.digest != digest:
            text = "This Idempotency-Key was used before with another request. Use a new key."
            raise ApiError(text, param="Idempotency-Key", code="idempotency_key_reused", status=409)
        return row

    def _new_turn(self, asked: CreateRequest, after: str | None) -> NewTurn | ResponseRow:
        history = asked.input.history
        if asked.previous is not None or asked.conversation is not None or not history.has_earlier:
            parts, place = history.users[-1], None
        else:
            place = self.placed(history, asked.called, resends=True)
            if isinstance(place, ResponseRow):
                return place
            parts = history.last(with_earlier=place.with_earlier)
        return NewTurn(parts, asked.tools, asked.hints, asked.settings, asked.instructions, place, after)

    def placed(self, history: ChatHistory, called: AgentId | None, *, resends: bool) -> Placement | ResponseRow:
        """Return where the last message of a history belongs. If it is being answered, return its response.

        `called` is the response by whose tool call the agent was found: it must be one of the user's.
        """
        if called is not None:
            self.row(called.tail, response_id(self._exchange.address, called.tail))
        place = placed(history, self._exchange.placed_messages(), resends=resends)
        row = self._current() if place.is_known and place.is_last else None
        return place if row is None else row

    async def begin(self, new: NewTurn, id: str, digest: str, repeated: Json) -> ResponseRow:
        """Start a turn and its response, in one commit."""
        if (new.settings or new.instructions) and not self._exchange.asks_model:
            name = next(iter(new.settings), "instructions")
            raise unsupported(name, "This model answers without one whose settings could be changed.")
        if new.instructions and not self._takes_instructions:
            raise unsupported(
                "instructions",
                "The instructions of this model are set on the server. Send none, also no system message, or "
                "ask the operator to set OpenAi(instructions=True).",
            )
        if self._exchange.is_full:
            raise ApiError("Too many responses of this conversation are queued. Retry when one has ended.", status=429)
        turn = f"{TURN}{id}"
        place = new.place or Placement("")
        said = {"id": place.message or f"msg-{id}", "role": "user", "parts": new.parts}
        await self._exchange.begin(
            turn,
            [said if new.place is None else {**said, "metadata": place.metadata}],
            client_tools=new.tools,
            body={"openai": {"model": self._model, **new.hints}},
            regenerate=place.is_known,
            after=place.after or new.after,
            settings=new.settings,
            instructions=new.instructions,
        )
        return self._table.add(id, turn, self._user, digest, repeated)

    def _repeated(self, asked: CreateRequest) -> Json:
        functions = [tool["name"] for tool in asked.tools]
        return {**asked.repeated, "previous_response_id": asked.previous_id, "functions": functions}

    def _follows(self, asked: CreateRequest) -> str | None:
        """Return the message after which a request begins a branch; `None` if it continues the active path.

        A request that continues from a response begins a branch if another one has done so before, and if that response
        belongs to another branch.
        """
        if asked.previous is None:
            if asked.conversation is not None:
                self.check_conversation(asked.conversation)
            return None
        before = self._previous(asked)
        end, is_continued = self._exchange.end_of(before.turn), False
        for row in self._table.after(before.number):
            turn = self._exchange.turn(row.turn)
            if turn is None or turn.status in ("failed", "cancelled", "skipped"):
                continue
            if row.turn == before.turn:
                raise ApiError(
                    "The response that `previous_response_id` names waited for answers and was continued with them. "
                    f"Continue from {response_id(self._exchange.address, row.id)}.",
                    param="previous_response_id",
                    code="previous_response_not_latest",
                )
            is_continued = True
        return end[0] if end is not None and (is_continued or not end[1]) else None

    def check_conversation(self, found: AgentId) -> None:
        """Refuse the id of a conversation in which the user has had no response. A plain name is not refused."""
        if found.type and not self._table.has_user(self._user):
            raise no_conversation(conversation_id(self._exchange.address))

    def _previous(self, asked: CreateRequest) -> ResponseRow:
        """Return the response that a request continues: the user's own, or the last one of a named conversation."""
        named = asked.previous or asked.called
        row = self._table.last() if named is None else self._table.get(named.tail)
        if named is None and asked.conversation is not None:
            self.check_conversation(asked.conversation)
        elif row is not None and row.user != self._user:
            row = None
        if row is None or self._exchange.turn(row.turn) is None:
            raise no_previous(asked.previous_id or "")
        return row

    async def continued(self, asked: CreateRequest, id: str) -> ResponseRow:
        """Give the answers, and return the response to what follows. One request after the other does so."""
        async with self._table.continuing:
            return await self._answered(asked, id, self.known(id, asked.digest))

    async def _answered(self, asked: CreateRequest, id: str, row: ResponseRow | None) -> ResponseRow:
        before, is_new = self._previous(asked), row is None
        answers = [(self._called(name), answer, where) for name, answer, where in asked.input.answers]
        questions = {one.full_id: one for one in await self._exchange.questions()}
        for name, _, _ in answers:  # a function whose turn still waits for others
            if (own := self._exchange.question(name)) is not None:
                questions.setdefault(name, own)
        if row is None:
            check_answers(answers, questions)
            before = await self._settled(self._table.last_of(before.turn) or before)
            if not before.is_over:
                raise not_ended()
            row = self._next(asked, id, before)
            await self._exchange.settle()  # before the answers, in other agents: the same request again finds it
        taken, where = 0, ""
        try:
            for name, answer, where in answers:
                if (question := questions.get(name)) is not None:
                    taken += await self._exchange.answer(name, fitted(answer, question, where))
        except (ApiError, OverLimit, Refused) as error:  # after any other error, the answer may have been taken
            if is_new and not taken:
                self._table.forget(id)
            if isinstance(error, OverLimit) and error.limit == "payload_bytes":
                raise invalid(where, str(error)) from None
            raise
        if is_new and not taken:
            self._table.forget(id)
            name, _, where = answers[0]
            raise not_open(name, where)
        return row

    def _next(self, asked: CreateRequest, id: str, before: ResponseRow) -> ResponseRow:
        turn = self._exchange.turn(before.turn)
        assert turn is not None
        said, known = self._exchange.answer_of(before.turn), before.asked()
        if asked.tools and [tool["name"] for tool in asked.tools] != known["functions"]:
            raise invalid("tools", "the tools cannot change while a response waits. Send those of the first request.")
        for name in SAME:
            if (value := asked.repeated.get(name)) is not None and value != known.get(name):
                raise invalid(name, "it cannot change while a response waits. Send that of the first request, or none.")
        repeated = {**asked.repeated, "previous_response_id": response_id(self._exchange.address, before.id)}
        repeated["functions"] = known["functions"]
        repeated |= {name: known[name] for name in SAME if name in known}
        return self._table.add(
            id,
            before.turn,
            self._user,
            asked.digest,
            repeated,
            first=before.last or 0,
            part=len(said["parts"]) if said is not None else 0,
            spent=turn.usage,
        )

    # Looking.

    def _current(self) -> ResponseRow | None:
        """Return the user's newest response of the turn that runs; `None` if none runs."""
        turn = self._exchange.current()
        row = None if turn is None or turn.status != "running" else self._table.last_of(turn.id)
        return None if row is None or row.user != self._user else row

    def _called(self, id: str) -> str:
        """Return the id of the question that the id of a tool call, as clients see it, stands for."""
        found = read_call_id(id)
        row = None if found is None else self._table.get(found[0].tail)
        if row is None:
            return id
        if not row.is_over and row.user == self._user:
            raise not_ended()
        output: list[Json] = row.outcome().get("output", [])
        return next((one["call_id"] for one in output if found is not None and one["id"] == f"fc_{found[1]}"), id)

    def row(self, id: str, shown: str) -> ResponseRow:
        """Return a response of the user's."""
        row = self._table.get(id)
        if row is None or row.user != self._user or self._exchange.turn(row.turn) is None:
            raise no_response(shown)
        return row

    async def _settled(self, row: ResponseRow) -> ResponseRow:
        """Return a response as it is now: ended, if all of it has happened."""
        turn = self._turn(row)
        if row.is_over:
            return row
        has_ended = STATUS[turn.status] not in ("queued", "in_progress")
        if has_ended and not self._exchange.can_replay(row.turn):
            return await self._ended(row, None, self._exchange.position(row.turn))
        if has_ended or await self._waits_for_client(row.turn):
            async for _ in self.events(row):
                pass
        return self._table.get(row.id) or row

    async def retrieved(self, row: ResponseRow) -> Json:
        """Return a response as it is now."""
        return self.shown(await self._settled(row))

    async def finished(self, row: ResponseRow) -> Json:
        """Return a response once it has ended."""
        if not row.is_over and self._exchange.can_replay(row.turn):
            async for _ in self.events(row):
                pass
        return await self.retrieved(self._table.get(row.id) or row)

    def check_replay(self, row: ResponseRow) -> None:
        """Refuse to stream a response whose words are no longer stored."""
        if not self._exchange.can_replay(row.turn):
            text = "This response can no longer be streamed. Retrieve it without `stream`."
            raise ApiError(text, param="stream", code="stream_expired")

    async def cancelled(self, row: ResponseRow) -> Json:
        """Cancel the turn of a response, and return the response."""
        last = self._table.last()
        if not row.is_over or (last is not None and last.id == row.id):
            self._exchange.cancel(row.turn)
        return await self.finished(row)

    def shown(self, row: ResponseRow) -> Json:
        """Return a response as it is stored."""
        if row.is_over:
            return self._response(row, **row.outcome())
        return self._response(row, status=STATUS[self._turn(row).status])

    def _response(
        self,
        row: ResponseRow,
        *,
        status: str,
        output: Sequence[Json] = (),
        usage: Json | None = None,
        error: Json | None = None,
    ) -> Json:
        asked = row.asked()
        asked.pop("functions", None)
        return {
            "id": response_id(self._exchange.address, row.id),
            "object": "response",
            "created_at": int(row.created_at),
            "completed_at": int(row.ended_at) if status == "completed" and row.ended_at is not None else None,
            "status": status,
            "model": self._model,
            "output": [self._told_item(item) for item in output],
            "error": error,
            "incomplete_details": None,
            "conversation": {"id": conversation_id(self._exchange.address)},
            "usage": usage,
            "instructions": None,
            "max_output_tokens": None,
            "parallel_tool_calls": True,
            "reasoning": None,
            "service_tier": "default",
            "store": True,
            "temperature": None,
            "tool_choice": "auto",
            "top_p": None,
            "truncation": "disabled",
            **asked,
        }

    # Following.

    async def events(self, row: ResponseRow, after: int = -1) -> AsyncGenerator[Json | None, None]:
        """Yield the events of a response after a number, to its end; `None` as a keep-alive."""
        number = -1
        async with aclosing(self._told(row)) as told:
            async for event in told:
                if event is None:
                    yield None
                elif (number := number + 1) > after:
                    item = {"item": self._told_item(event["item"])} if "item" in event else {}
                    yield {**event, **item, "sequence_number": number}

    def _told_item(self, item: Json) -> Json:
        """Return an item as clients see it: the id of a tool call names its agent."""
        if item["type"] != "function_call":
            return item
        return {**item, "call_id": call_id(self._exchange.address, item["id"])}

    async def _told(self, row: ResponseRow) -> AsyncGenerator[Json | None, None]:
        begun = self._response(row, status="in_progress")
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        items, last = self._items(row), row.first
        async with aclosing(self._own_events(row)) as events:
            async for event in events:
                if event is None:
                    yield None
                    continue
                if event.seq <= row.first:
                    items.skip(event)
                    continue
                last = event.seq
                for told in items.tell(event):
                    yield told
        for told in items.close():
            yield told
        row = await self._ended(row, items, last)
        for body in row.outcome()["output"]:
            if not items.knows(body):
                for told in items.add(body):
                    yield told
        response = self.shown(row)
        yield {"type": LAST.get(response["status"], "response.incomplete"), "response": response}

    async def _own_events(self, row: ResponseRow) -> AsyncGenerator[Any, None]:
        """Yield what the turn itself says, up to where the response ends."""
        path, turn, told, may_wait = self._exchange.address.segments, row.turn, 0, False
        if row.last is not None and row.last <= row.first:
            return
        async with aclosing(self._exchange.events(turn)) as events:
            async for event in events:
                is_own = event is not None and event.path == path and event.run_id is None
                if is_own and event is not None and event.kind in ("chunk", "retracted"):
                    row = row if row.is_over else self._table.get(row.id) or row  # another reader may have ended it
                    if row.last is not None and event.seq > row.last:
                        return
                    told = event.seq
                    yield event
                    if row.last is not None and told >= row.last:
                        return
                elif event is None:
                    yield None
                elif is_own and event.kind in ENDS:
                    return
                else:
                    may_wait = may_wait or event.kind == "waiting"
                is_behind = not (may_wait or event is None) or told < self._exchange.position(turn)
                if not is_behind and await self._waits_for_client(turn):
                    return

    async def _waits_for_client(self, turn: str) -> bool:
        """Return whether a turn waits for answers, and the client may give one of them."""
        return self._exchange.waits(turn) and bool(await self._exchange.questions())

    def _items(self, row: ResponseRow) -> OutputItems:
        return OutputItems(row.id, self._exchange.address.type, frozenset(row.asked().get("functions", ())))

    # Ending.

    async def _ended(self, row: ResponseRow, items: OutputItems | None, last: int) -> ResponseRow:
        """Return a response that has ended. The first reader that comes to its end stores it."""
        row = self._table.get(row.id) or row
        if row.is_over:
            return row
        turn, label = self._turn(row), self._exchange.address.type
        status = STATUS[turn.status]
        is_open = status in ("queued", "in_progress")
        questions = await self._exchange.questions() if is_open else []
        output = self._output_of_message(row) if items is None else items.output()
        count = 0 if items is None else len(items.items)
        if status == "completed" and adds(turn.output, output):
            output.append(message(item_id("msg", row.id, count), json_text(turn.output)))
        for question in questions:
            if question.path or items is None or not items.calls(question.id):
                output.append(question_item(item_id("fc", row.id, count + len(output)), question, label))
        return self._table.end(
            row.id,
            last,
            {
                "status": "completed" if is_open else status,
                "output": [] if turn.reason == CLEARED else output,
                "usage": usage_of(turn, msgspec.json.decode(row.spent)),
                "error": error_of(turn),
            },
        )

    def _output_of_message(self, row: ResponseRow) -> list[Json]:
        said = self._exchange.answer_of(row.turn)
        parts: list[Json] = [] if said is None else said["parts"][row.part :]
        functions = row.asked().get("functions", ())
        return items_of_message(parts, row.id, self._exchange.address.type, functions)

    def _turn(self, row: ResponseRow) -> Turn[Any]:
        turn = self._exchange.turn(row.turn)
        if turn is None:
            raise no_response(response_id(self._exchange.address, row.id))
        return turn
