"""The transport to A2A agents: a run is a task, whose id is stored, so that its message is sent once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Self

import msgspec

from sapwood.errors import Refused, RemoteLost, RemoteRefused, RemoteUnauthorized, Unavailable
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_connection import A2aConnection, NotSent, NotTaken, TooBusy
from sapwood.protocols.a2a_progress import Answered, TaskView, TextChunks
from sapwood.protocols.a2a_replies import Reply, RpcError, Task, TaskList
from sapwood.protocols.a2a_wire import A2aMessage, A2aPart
from sapwood.runs.execution.contract import Progress
from sapwood.runs.questions.remote_questions import mirrored
from sapwood.runs.remote.transport import (
    Chunk,
    End,
    Heartbeat,
    Memo,
    OpenQuestions,
    Position,
    RemoteAnswer,
    RemoteEvent,
    RemoteQuestion,
    RemoteStatus,
)

SLOWER, MOST_DELAYS = 1.5, 20.0
"""How much longer each look at an unchanged task waits than the last, and how many times the first delay at most."""
LISTED = 20
"""Tasks of a context that are looked at for the one that a message has begun."""
LOOKS, BUSY_LOOKS = 8, 2
"""How often a task that may have begun is looked for, in about ten seconds; and if its server was too busy."""
NOT_HERE = frozenset({wire.NO_METHOD.code, wire.UNSUPPORTED.code})


class Sent(msgspec.Struct, omit_defaults=True):
    """What is stored of a run: that its message may have been sent, and the task that it has begun."""

    sent: bool = False
    was_busy: bool = False
    """Whether the server has answered that it is too busy: most likely, it has not begun a task."""
    task: str = ""
    context: str = ""
    reply: A2aMessage | None = None
    """What the server has answered instead of beginning a task."""
    answered: Answered | None = None


class A2aTransport:
    """Carries the runs of one A2A agent. It is entered before it is used."""

    def __init__(self, connection: A2aConnection, *, resends: bool, delay: float = 0.5) -> None:
        self._connection = connection
        self._resends = resends
        self._delay = delay
        """Seconds before the first look at a task that is not streamed."""
        self._view = TaskView(lambda: self._known().answered)
        self._looks = 0
        self._lists = True
        """Whether the server lists tasks, as far as is known."""
        self._live: AsyncGenerator[Reply | None, None] | None = None
        """The stream that has begun with the task."""

    def recall(self, memo: Memo) -> None:
        """Take what is stored of the run."""
        self._memo = memo

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._live is not None:
            await self._live.aclose()
        await self._connection.__aexit__(*error)

    async def start(self, session: str, input: Any) -> RemoteStatus:
        """Begin a task, or find the one that was begun before a crash."""
        known = self._known()
        if known.task or known.reply is not None:
            return await self.status(session)
        if known.sent:
            if await self._found_in_time(session):
                return await self.status(session)
            if not (self._resends or (known.was_busy and self._lists)):
                raise RemoteLost(
                    "The message was sent, its answer was lost, and the server does not list the task: the message "
                    "is not sent again."
                )
        await self._connection.endpoint()  # a server that is away has been sent nothing
        await self._store(Sent(sent=True))
        self._looks = 0
        try:
            first = await self._send(A2aMessage(message_id(session), "ROLE_USER", parts_of(input), session_id(session)))
        except TooBusy:
            await self._store(Sent(sent=True, was_busy=True))
            raise
        except (NotSent, NotTaken, RemoteUnauthorized, RpcError) as error:
            if not (isinstance(error, RpcError) and error.rpc_code == wire.INTERNAL.code):  # it may have begun a task
                await self._store(Sent())
            raise
        if first.message is not None:
            await self._store(Sent(sent=True, reply=first.message))
            self._view.reset_to(first.message)
            return await self._stands()
        if first.task_id is None:
            raise RemoteRefused("The server has answered with neither a task nor a message.")
        context = (first.task.context_id if first.task is not None else None) or session_id(session)
        await self._store(Sent(sent=True, task=first.task_id, context=context))
        if first.task is None:
            return await self.status(session)
        self._view.reset(first.task)
        return await self._stands()

    async def status(self, session: str) -> RemoteStatus:
        """Return how the task stands."""
        await self._look()
        return await self._stands()

    async def stream(self, session: str, after: Position) -> AsyncGenerator[list[RemoteEvent], None]:
        """Yield what happens in a task: streamed if the server can, and looked up otherwise."""
        news, delay, live = TaskNews(self._view, self._memo), self._delay, self._live
        self._live = None
        streams = (await self._connection.endpoint()).streams
        while True:
            if live is None:
                await self._look()
                await self._give_up_sign_in()
            told = news.told()
            yield told
            if self._view.is_over:
                return
            delay = self._delay if len(told) > 1 else min(delay * SLOWER, self._delay * MOST_DELAYS)
            if live is None and streams:
                live = self._connection.stream("SubscribeToTask", {"id": self._view.id})
            if live is not None:
                async with aclosing(live):
                    async for batch in self._heard(live, news):
                        yield batch
                live = None
            if not self._view.is_over:  # its end may be told without what it has made
                await asyncio.sleep(delay)

    async def _heard(
        self, live: AsyncGenerator[Reply | None, None], news: TaskNews
    ) -> AsyncGenerator[list[RemoteEvent], None]:
        """Yield what a stream tells, until it ends, breaks or tells the end of the task."""
        try:
            async for event in live:
                if event is None:
                    yield [Heartbeat(self._view.waits)]
                    continue
                self._view.take(event)
                await self._forget_answer()
                if self._view.is_over:
                    return
                yield news.told()
        except Unavailable:
            return  # the next look raises it, if the server is away
        except RpcError as error:
            if error.rpc_code not in NOT_HERE:
                raise

    async def cancel(self, session: str, reason: str) -> RemoteStatus:
        """Cancel the task. One that was never begun is not looked for."""
        known = self._known()
        if not known.task and known.sent:
            await self._found_in_time(session)
        if task := self._known().task:
            try:
                await self._connection.call("CancelTask", {"id": task}, Task)
            except RemoteLost:
                pass
            except RpcError as error:
                if error.rpc_code != wire.NOT_CANCELABLE.code:
                    raise
        return RemoteStatus("cancelled", reason=reason)

    async def answer(self, session: str, answer: RemoteAnswer) -> bool:
        """Send an answer to the task, if it still asks the question."""
        await self._look()
        asked = next((one for one in self._view.questions() if one.id == answer.id), None)
        if asked is None or mirrored(asked).digest != answer.digest:
            return False
        known = self._known()
        id = f"{message_id(session)}-{hashlib.sha256(f'{answer.id} {answer.digest}'.encode()).hexdigest()[:16]}"
        message = A2aMessage(id, "ROLE_USER", [answer_part(asked, answer)], known.context, known.task)
        await self._store(msgspec.structs.replace(known, answered=self._view.answered_by(id)))
        try:
            reply = await self._connection.call("SendMessage", sending(message), Reply)
        except (NotSent, NotTaken, RemoteLost, RemoteUnauthorized):
            await self._store(known)
            raise
        except RpcError as error:
            if error.rpc_code == wire.INTERNAL.code:  # it may have taken the answer
                raise Unavailable(str(error)) from error
            await self._store(known)
            if error.rpc_code == wire.UNSUPPORTED.code:
                return False
            raise Refused("The other server does not take this answer.") from error
        except RemoteRefused as error:  # its reply is too long or invalid, and it may have taken the answer
            raise Unavailable(str(error)) from error
        if reply.task is not None and not self._view.is_same_state(reply.task.status):
            await self._note_taken(id)
        return True

    async def _note_taken(self, message: str) -> None:
        """Store that the server has continued after an answer, unless a reader of the task has noticed it."""
        known = self._known()
        if known.answered is not None and known.answered.message == message:
            answered = msgspec.structs.replace(known.answered, is_taken=True)
            await self._store(msgspec.structs.replace(known, answered=answered))

    async def _send(self, message: A2aMessage) -> Reply:
        """Send a message, and return the first answer; the rest of a stream is kept."""
        if not (await self._connection.endpoint()).streams:
            return await self._connection.call("SendMessage", sending(message), Reply)
        live = self._connection.stream("SendStreamingMessage", sending(message))
        try:
            async for event in live:
                if event is not None:
                    self._live = live
                    return event
        finally:
            if self._live is not live:
                await live.aclose()
        raise Unavailable("The server has ended the stream without an answer.")

    async def _found_in_time(self, session: str) -> bool:
        """Do as `_found`. Raises `Unavailable` while the server may still be about to list the task."""
        if await self._found(session):
            return True
        self._looks += 1
        if self._lists and self._looks < (BUSY_LOOKS if self._known().was_busy else LOOKS):
            raise Unavailable("The message may have begun a task, which is not listed yet.")
        return False

    async def _found(self, session: str) -> bool:
        """Find the task that a message has begun whose answer was lost. Returns `False` if it has begun none."""
        params = {"contextId": session_id(session), "pageSize": LISTED, "historyLength": LISTED}
        try:
            listed = await self._connection.call("ListTasks", params, TaskList)
        except RpcError as error:
            if error.rpc_code not in NOT_HERE:
                raise
            self._lists = False
            return False
        here = [one for one in listed.tasks if one.context_id == session_id(session)]
        ours = [one for one in listed.tasks if _begun_by(one, message_id(session))] or here
        if not ours:
            return False
        task = ours[-1]  # the newest is the first
        await self._store(Sent(sent=True, task=task.id, context=task.context_id or session_id(session)))
        return True

    async def _look(self) -> None:
        """Find out how the task stands."""
        known = self._known()
        if known.reply is not None:
            self._view.reset_to(known.reply)
            return
        if not known.task:
            raise RemoteLost("The id of the task was lost.")
        try:
            self._view.reset(await self._connection.call("GetTask", {"id": known.task}, Task))
            await self._forget_answer()
        except RpcError as error:
            if error.rpc_code == wire.INTERNAL.code:
                raise Unavailable(str(error)) from error
            raise

    async def _forget_answer(self) -> None:
        """Forget the last answer once the agent has continued: what it asks from then on is something else."""
        known = self._known()
        if known.answered is not None and not self._view.asks:
            await self._store(msgspec.structs.replace(known, answered=None))

    async def _give_up_sign_in(self) -> None:
        """Cancel a task that waits until its caller signs in somewhere."""
        if self._view.needs_sign_in:
            with suppress(RpcError, RemoteLost):
                await self._connection.call("CancelTask", {"id": self._view.id}, Task)

    async def _stands(self) -> RemoteStatus:
        await self._give_up_sign_in()
        news = TaskNews(self._view, self._memo)
        news.told()
        return self._view.status(news.length)

    def _known(self) -> Sent:
        return Sent() if self._memo.text is None else msgspec.json.decode(self._memo.text, type=Sent)

    async def _store(self, known: Sent) -> None:
        await self._memo.store(msgspec.json.encode(known).decode())


class TaskNews:
    """What is to be told of a task that was not told yet."""

    def __init__(self, view: TaskView, memo: Memo) -> None:
        self._view = view
        self._texts = TextChunks(memo.chunks())
        self._progress = ""
        self._asked: list[RemoteQuestion] = []

    @property
    def length(self) -> int:
        """How many chunks there are."""
        return self._texts.length

    def told(self) -> list[RemoteEvent]:
        """Return what is new, and its end if it is over."""
        view, first = self._view, self._texts.length + 1
        bodies = self._texts.more(view.texts(), is_whole=view.is_over)
        if view.is_over:
            bodies += self._texts.close()
        events: list[RemoteEvent] = [Heartbeat(view.waits)]
        events += [Chunk(number, body) for number, body in enumerate(bodies, first)]
        if (asked := view.questions()) != self._asked:
            events.append(OpenQuestions(asked))
            self._asked = asked
        if view.is_over:
            return [*events, End(view.status(self._texts.length))]
        if not view.waits and view.message not in ("", self._progress):
            self._progress = view.message
            events.append(Progress(message=view.message))
        return events


def session_id(session: str) -> str:
    """Return the context of a run: it says nothing of who runs it."""
    return f"sapwood-{hashlib.sha256(session.encode()).hexdigest()[:40]}"


def message_id(session: str) -> str:
    """Return the id of the message that begins the task of a run: always the same."""
    return f"{session_id(session)}-start"


def parts_of(input: Any) -> list[A2aPart]:
    """Return what a run was given as parts: a text, or data."""
    return [A2aPart(text=input)] if isinstance(input, str) else [A2aPart(data=input, media_type="application/json")]


def answer_part(asked: RemoteQuestion, answer: RemoteAnswer) -> A2aPart:
    """Return an answer as a part. Raises `Refused` if the protocol cannot express it."""
    if answer.arguments is not None:
        raise Refused("This agent cannot be given other arguments: A2A has no form for them.")
    if asked.prompt is None:
        value: Any = {"approved": answer.approved} | ({"reason": answer.reason} if answer.reason else {})
    elif not answer.approved:
        return A2aPart(text=answer.reason or "no")
    else:
        value = answer.value
    if asked.id.startswith("input-"):
        return A2aPart(text=value) if isinstance(value, str) else A2aPart(data=value)
    return A2aPart(data={"answers": {asked.id: value}})


def sending(message: A2aMessage) -> Mapping[str, Any]:
    """Return the parameters that send a message, without waiting for the end of its task."""
    return {"message": msgspec.to_builtins(message), "configuration": {"returnImmediately": True}}


def _begun_by(task: Task, message: str) -> bool:
    return any(one.message_id == message for one in task.history or [])
