"""What a protocol may do with one chat agent, for one client: begin turns, follow them, answer questions, cancel."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from sapwood.address import Address, PathSegment
from sapwood.capabilities.connections import ClientHooks, Connection
from sapwood.capabilities.exposed_methods import JSON_RESULT, exposed
from sapwood.capabilities.schedules import Schedules
from sapwood.capabilities.state import State
from sapwood.chat.client_protocol import REGENERATE, ClientProtocol
from sapwood.chat.models.turn_overrides import TurnOverrides
from sapwood.chat.store.branches import PlacedMessage
from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.transcript import UIMessage
from sapwood.chat.store.turn_names import TurnName, TurnNames
from sapwood.chat.store.turn_rows import TurnRow
from sapwood.chat.store.turns import Turn
from sapwood.chat.turn.conversation import Conversation
from sapwood.errors import NotFound, OverLimit, Refused
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import WATCH_ONLY, Socket
from sapwood.kernel.marshal.call import Call, current
from sapwood.kernel.marshal.disclosure import for_clients
from sapwood.kernel.trees.tree import tree_of
from sapwood.namespaces.files import AgentFiles
from sapwood.randomness import new_id
from sapwood.runs.dispatch.subscription import Subscription
from sapwood.runs.dispatch.turn_events import TurnEvents
from sapwood.runs.events.events import ENDS, Event, Feed, OwnTurn, turn_event
from sapwood.runs.execution.access_gates import Gates, Path, Shut, refused_to_watch
from sapwood.runs.execution.contract import CANCELLED, bounded_reason
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.http.events_http import PATH, OpenStreams
from sapwood.runs.questions.questions import Questions
from sapwood.runs.tables.executed_runs_table import length, streamed
from sapwood.runs.tables.own_questions import OwnQuestions
from sapwood.runs.tables.question import Answer, Question, parse_full_id
from sapwood.runs.tables.runs_table import RunsTable, failure
from sapwood.when import After

if TYPE_CHECKING:
    from starlette.requests import Request

P = TypeVar("P")
T = TypeVar("T")
DELETION = "delete after the last request"
"""The key of the schedule that deletes an agent which no client can name."""
MOST_ITEMS = 10_000
"""Items of a stream that a call returns as a list."""
REPLAY = timedelta(hours=1)
"""How long a turn that a protocol has started can be replayed after its end."""


class Exchange:
    """One request of a protocol to one chat agent."""

    def __init__(self, actor: Actor, request: Request) -> None:
        self._actor = actor
        self._request = request

    @property
    def has_conversation(self) -> bool:
        """Whether the agent is a chat agent. All else here is only for chat agents."""
        return cast("ClientHooks", self._actor.hooks).has_conversation

    @property
    def asks_model(self) -> bool:
        """Whether settings and instructions have an effect: the class does not override `respond`."""
        return not self._actor.kind.overrides("respond")

    @property
    def output_type(self) -> Any:
        """The type of the output of the agent's turns: `str` for text."""
        cls: Any = self._actor.kind.cls
        return cls.output_type

    @property
    def address(self) -> Address:
        """The address of the agent."""
        return self._actor.address

    @property
    def user(self) -> Any:
        """The user that `App(authenticate=…)` returned."""
        return self._request.scope.get("user")

    def part(self, kind: Callable[[Actor], P]) -> P:
        """Return what a protocol adds to the agent, such as its tables: one of its kind for as long as it is loaded."""
        return self._actor.of(kind)

    def new_id(self) -> str:
        """Return a random id that cannot be guessed."""
        return new_id(self._actor.host.random)

    # What is said.

    async def begin(
        self,
        id: str,
        messages: Sequence[UIMessage],
        *,
        client_tools: Sequence[Mapping[str, Any]] = (),
        body: Mapping[str, Any] | None = None,
        regenerate: bool = False,
        after: str | None = None,
        settings: Mapping[str, Any] | None = None,
        instructions: str | None = None,
        replay: timedelta = REPLAY,
    ) -> Turn[Any]:
        """Start a turn under the client's `id`, and return it at once. If there is a turn with this id, return it.

        `messages` are in the format of the AI SDK: those that the agent has not stored are new. `client_tools` are
        the tools that the client executes. `body` is kept with the turn as `Turn.body`. With `regenerate`, the last of
        the messages is answered again. They follow the message `after`; `None` means the last one. `settings` are
        fields of the `ModelSettings` of Pydantic AI for this turn, and `instructions` follow those of the class. For
        as long as `replay` after its end, `events` has the whole turn.
        """
        row = self._record.turns.get(id)
        if row is None:
            said = {**(body or {}), "messages": list(messages), "clientTools": list(client_tools)}
            if regenerate:
                said["trigger"] = REGENERATE
            overrides = TurnOverrides(dict(settings or {}), instructions) if settings or instructions else None
            talk = self._actor.of(ClientProtocol)
            row = await talk.accept(said, id, None, self.user, {}, replay.total_seconds(), overrides, after)
        return self._record.shown(row)

    @property
    def is_full(self) -> bool:
        """Whether so many turns are queued that the agent refuses another one."""
        return len(self._record.turns.queued()) >= self._actor.host.timings.queued_turns

    def turn(self, id: str) -> Turn[Any] | None:
        """Return a turn of the agent; `None` if there is none with this id."""
        row = self._record.turns.get(id)
        return None if row is None else self._record.shown(row)

    def current(self) -> Turn[Any] | None:
        """Return the turn that runs or waits for an answer; `None` if none does."""
        row = self._record.turns.running() or self._record.turns.waiting()
        return None if row is None else self._record.shown(row)

    def position(self, id: str) -> int:
        """Return the number of the last event of a turn that is stored; 0 if there is none."""
        row = self._row(id)
        return max(row.next_seq, length(self._actor.database, row.number))

    def can_replay(self, id: str) -> bool:
        """Return whether `events` has the whole turn."""
        row = self._row(id)
        return row.is_open or not row.next_seq or length(self._actor.database, row.number) > 0

    def waits(self, id: str) -> bool:
        """Return whether a turn waits for an answer and does nothing else, or all that it waits for does."""
        if self._actor.of(RunExecutor).worker.waits(id):
            return True
        row = self._record.turns.get(id)
        calls = [] if row is None or row.status != "running" else self._record.turns.calls(row.number)
        return self._actor.of(OwnQuestions).wait_in({call.id for call in calls})

    def name_turn(self, id: str, turn: str, after: str) -> None:
        """Store another id for a turn, which stands for what happens in it after the event with the cursor `after`."""
        self._names.forget_gone()
        self._names.put(id, TurnName(turn, after))

    def named(self, id: str) -> TurnName | None:
        """Return the turn that another id stands for; `None` if it stands for none."""
        name = self._names.get(id)
        return None if name is None or self._record.turns.get(name.turn) is None else name

    def forget_name(self, id: str) -> None:
        """Delete another id of a turn."""
        self._names.forget(id)

    def client_tools(self, id: str) -> list[dict[str, Any]]:
        """Return the tools that the client of a turn executes."""
        return self._row(id).tools()

    def message_of(self, id: str) -> str:
        """Return the id of the message that a turn writes; empty if it was skipped."""
        return self._row(id).message

    def cancel(self, id: str, reason: str = CANCELLED) -> bool:
        """Cancel a turn and all runs below it. Returns `False` if it is over."""
        return self._actor.of(Conversation).cancel(id, bounded_reason(reason))

    def messages(self) -> list[UIMessage]:
        """Return the conversation in the format of the AI SDK: the messages of the active path."""
        return msgspec.json.decode(self._record.text())

    def placed_messages(self) -> list[PlacedMessage]:
        """Return the messages of all branches, then what is queued."""
        return self._record.placed_messages(with_waiting=True)

    def end_of(self, id: str) -> tuple[str, bool] | None:
        """Return the id of the last message of a turn, and whether it is on the active path; `None` without one."""
        return self._record.end_of(self._row(id))

    def answer_of(self, id: str) -> UIMessage | None:
        """Return the message that a turn has written, as far as it is stored; `None` if there is none yet."""
        row = self._record.turns.get(id)
        return None if row is None or not row.message else self._record.transcript.get(row.message)

    @property
    def files(self) -> AgentFiles:
        """The files of the agent, of any class."""
        return AgentFiles(self._actor)

    def state(self) -> Any:
        """Return the state of the agent, of any class, as JSON; `None` if it has none."""
        text = self._actor.of(State).text()
        return None if text is None else msgspec.json.decode(text)

    def delete_after(self, delay: timedelta | None) -> None:
        """Delete the agent after this delay, or `None`, never: the last call counts."""
        schedules = self._actor.of(Schedules)
        schedules.cancel(DELETION)
        if delay is not None:
            schedules.add(After(delay, key=DELETION), self._actor.agent.destroy, (), {})

    # What is asked.

    async def questions(self) -> list[Question]:
        """Return the open questions here and below that the client may answer, each with its path."""
        questions = self._actor.of(Questions)
        shown = await questions.shown_to(self._request)
        return [replace(one, path=path) for path, one in shown if questions.is_open(path, one)]

    def question(self, id: str) -> Question | None:
        """Return an open question of the agent itself, even if its turn is still busy; `None` if there is none."""
        return self._actor.of(RunExecutor).question(id)

    async def answer(self, question: str, answer: Answer, digest: str | None = None) -> bool:
        """Answer a question by its `full_id`, past every gate on the way. Returns `False` if it is not open.

        With a `digest`, only a question that has it is answered. Raises `Refused` if the client may not answer it.
        The question then stays open.
        """
        path, id = parse_full_id(question)
        try:
            return await self._actor.of(Questions).answer_of_client(self._request, "http", path, id, answer, digest)
        except Shut:
            raise Refused("You may not answer this question.") from None

    # Agents below.

    async def below(self, path: Path, read: Callable[[Exchange], Awaitable[T]]) -> T | None:
        """Read something inside an agent below any agent. `None` if there is none, or the client may not go there."""
        actor = self._actor
        if not await Gates(actor, self._request, "request", PATH).admits(path):
            return None
        try:
            child = await tree_of(actor).reach(Address((*actor.address.segments, *path)), None, current.get())
        except NotFound:
            return None
        if child is None:
            return None
        _, reply = child.handle("read", read, Exchange(child, self._request))
        return await reply

    async def runs_below(self, id: str) -> list[Event]:
        """Return the starts and ends of a run of any agent, and of all runs below it that the client could reach."""
        actor, admitted, found = self._actor, dict[Path, bool](), list[Event]()
        row = RunsTable(actor.database, actor.host.clock).get(id)
        if row is None:
            return []
        depth, gates = len(actor.address.segments), Gates(actor, self._request, "request", PATH)
        watch = Subscription(actor, "tree", None, runs_only=True)
        watch.begin_after(row.number - 1)
        async with aclosing(watch.events_or_silence(None, marks_stored=True)) as events:
            while (event := await anext(events)) is not None:
                path = event.path[depth : len(event.path) - event.remote]
                if path[:1] != (PathSegment(row.type, row.name),) or event.kind not in ("started", *ENDS.values()):
                    continue
                if path not in admitted:
                    admitted[path] = await gates.admits(path)
                if admitted[path]:
                    found.append(event)
        return found

    # Methods.

    async def call(self, method: str, arguments: Sequence[Any]) -> Any:
        """Call an exposed method of any agent; return its result as JSON, or all items of a stream as a list.

        Raises `Refused` if the client may only watch.
        """
        actor, found = self._actor, exposed(self._actor.kind)[method].method
        if actor.kind.overrides("is_watch_only") and actor.agent.is_watch_only(self._connection()):
            raise Refused(WATCH_ONLY)
        given = [actor.agent, *arguments]
        if found.streams:
            items = list[Any]()
            async with aclosing(found.function(*given)) as stream:
                async for item in stream:
                    items.append(_as_json(JSON_RESULT.copy(item, actor.limits.payload_bytes)))
                    if len(items) > MOST_ITEMS:
                        raise OverLimit(f"The stream of {found.full_name}() has more than {MOST_ITEMS} items.")
            return items
        call = Call(actor, method, None)
        call.client = self._connection()
        reply = actor.serve(call, found.function, given, {}, found.is_async, JSON_RESULT)
        try:
            return _as_json(await reply)
        except CancelledError:
            actor.cancel(call)
            raise

    def told(self, error: BaseException, method: str) -> str:
        """Return what the client may be told of an error of a method. An internal one is logged."""
        return self._actor.host.failures.disclose(error, address=self._actor.address, method=method)

    def _connection(self) -> Connection:
        """Return the client as hooks for connections see it. Nothing can be sent to it."""
        request, nothing = self._request, cast("Any", None)
        query, headers = request.url.query, request.headers
        path: str = request.scope["path"]
        actor, user = self._actor, self.user
        return Connection(
            actor, Socket("", actor.address, actor.kind, nothing, path=path, query=query, headers=headers, user=user)
        )

    # What happens.

    async def refused(self) -> Any:
        """Return the response with which the agent refuses clients that only read; `None` if it accepts them."""
        return await refused_to_watch(self._actor, self._request)

    async def events(
        self, id: str, *, after: str | None = None, sort: bool = True
    ) -> AsyncGenerator[Event | None, None]:
        """Yield what happens in a turn and in the runs that it starts, until it has ended; `None` as a keep-alive.

        What is stored is told first. `after` is the cursor of an event: those up to it are left out. A turn that
        waits for an answer has not ended: see `waits`. The client sees only agents below that it could reach itself.

        If it is to `sort`, what is stored is told in the order of time, and only the last of it has a cursor.
        Otherwise, it is told agent by agent, each event with its cursor.
        """
        streams = self._actor.host.shared(OpenStreams)
        watch, follows = Subscription(self._actor, "tree", after), TurnEvents(self._actor, id)
        watch.begin_after(follows.runs_before())
        admitted = _Admission(self._actor, self._request)
        streams.readers.add(watch)
        try:
            async with aclosing(self._followed(id, watch, follows, sort=sort)) as events:
                async for event in events:
                    if event is None or await admitted.has(event):
                        yield event
        finally:
            streams.readers.discard(watch)

    async def stored(self, id: str, *, after: str | None = None) -> tuple[list[Event], str]:
        """Return what is stored of a turn and of the runs that it started, and the cursor of the last of it."""
        watch, follows = Subscription(self._actor, "tree", after), TurnEvents(self._actor, id)
        watch.begin_after(follows.runs_before())
        admitted = _Admission(self._actor, self._request)
        async with aclosing(watch.events_or_silence(None, marks_stored=True)) as events:
            found = await self._stored(id, watch, follows, events)
        return [one for one in sorted(found, key=_at) if await admitted.has(one)], watch.cursor()

    def check_cursor(self, after: str) -> None:
        """Raise `InvalidArguments` if a text is not the cursor of an event of this agent."""
        Subscription(self._actor, "tree", after)

    async def settle(self) -> None:
        """Return when all that the agent has written is durable, so that a client may be told of it."""
        await self._actor.leave()

    async def _followed(
        self, id: str, watch: Subscription, follows: TurnEvents, *, sort: bool
    ) -> AsyncGenerator[Event | None, None]:
        quiet = self._actor.host.timings.event_keepalive_interval
        async with aclosing(watch.events_or_silence(quiet, marks_stored=True)) as events:
            stored = await self._stored(id, watch, follows, events)
            row = self._row(id)
            if sort:
                stored = _with_last_cursor(sorted(stored, key=_at), watch.cursor())
            for one in stored:
                yield one
            if not row.is_open:
                yield self._end(row)
                return
            own, told = self.address.segments, watch.position(id)
            async for event in events:
                if event is None:
                    yield None
                is_end = event is not None and event.kind in ENDS and event.path == own and follows.has(event)
                if is_end or (event is None and not self._row(id).is_open):
                    for one in await self._said(row, told):  # a reader that was behind is told of the end only
                        yield one
                    yield event if event is not None and is_end else self._end(self._row(id))
                    return
                if event is not None and not is_end and follows.has(event):
                    told = max(told, event.seq if event.path == own else 0)
                    yield event

    async def _stored(
        self, id: str, watch: Subscription, follows: TurnEvents, events: AsyncGenerator[Event | None, None]
    ) -> list[Event]:
        """Return what is stored of a turn, as far as its reader was not told of it."""
        position, found = watch.position(id), list[Event]()
        async for event in events:
            if event is None:
                break
            if follows.has(event):
                found.append(event)
        row = self._row(id)
        if row.status == "queued":
            return found
        follows.begin()
        if self._is_in_feed(id):
            return found
        # It does not stream now: it has ended, or waits, or rests. Its reader has heard nothing of what it said.
        own, said = self.address.segments, await self._said(row, position)
        watch.begin_turn_after(id, said[-1].seq if said else position)
        start = [OwnTurn(id, row.number, row.created_at).started(own)] if row.is_open and not position else []
        found = start + said + [one for one in found if one.path != own or _is_asked(one)]
        return _with_last_cursor(found, watch.cursor())

    def _is_in_feed(self, id: str) -> bool:
        turn = self._actor.of(Feed).turn
        return turn is not None and turn.id == id

    async def _said(self, row: TurnRow, position: int) -> list[Event]:
        """Return what a turn has said after an event, as far as it can be replayed, once that is durable."""
        await self._actor.leave()
        chunks = streamed(self._actor.database, row.number, after=position - 1)
        return [
            turn_event(self.address.segments, one.number + 1, one.at, msgspec.json.decode(one.text)) for one in chunks
        ]

    def _end(self, row: TurnRow) -> Event:
        """Return how a turn ended."""
        turn, at, seq = self._record.shown(row), row.ended_at or row.created_at, row.next_seq + 1
        if row.status == "completed":
            body: dict[str, Any] = {"output": turn.text if turn.output is None else turn.output}
        else:
            status = "cancelled" if row.status == "skipped" else row.status
            body = failure(self.address.type, status, error=for_clients(turn.error), reason=turn.reason)
        kind = ENDS.get(row.status, "cancelled")
        return Event(self.address.segments, None, None, seq, at, kind, {"turn": row.id, **body})

    def _row(self, id: str) -> TurnRow:
        row = self._record.turns.get(id)
        if row is None:
            raise Refused(f"There is no turn {id!r}.")
        return row

    @property
    def _names(self) -> TurnNames:
        return TurnNames(self._actor.database)

    @property
    def _record(self) -> ConversationRecord:
        return self._actor.of(ConversationRecord)


def _as_json(text: bytes | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _is_asked(event: Event) -> bool:
    return event.kind in ("waiting", "resumed")


class _Admission:
    """Which agents below one agent a client could reach itself."""

    def __init__(self, actor: Actor, request: Request) -> None:
        self._gates, self._depth = Gates(actor, request, "request", PATH), len(actor.address.segments)
        self._known: dict[Path, bool] = {}

    async def has(self, event: Event) -> bool:
        """Return whether the client may be told of an event."""
        if (path := event.path[self._depth : len(event.path) - event.remote]) not in self._known:
            self._known[path] = await self._gates.admits(path)
        return self._known[path]


def _with_last_cursor(events: Sequence[Event], cursor: str) -> list[Event]:
    """Return events of which only the last has a cursor: the others are told in another order than they were read."""
    last = len(events) - 1
    return [replace(one, cursor=cursor if at == last else None) for at, one in enumerate(events)]


def _at(event: Event) -> tuple[bool, float]:
    """Return the place of a stored event: who waits is told last, as it is now."""
    return _is_asked(event), event.at
