"""The questions of agents: shown to the clients of every agent above that may answer them, and answered there.

The agent that asks is the truth, and may sleep. Its questions are shown to clients of all agents above it, and kept
in the index of its tree. Its own clients are shown what its code asks; its tool calls are part of the conversation. An
answer of a client passes the gates on its way down, as the client itself would, and then `may_answer` of the agent
that asks and of all agents above it.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from sapwood.address import Address, PathSegment
from sapwood.errors import InvalidArguments, NotFound, OverLimit, Refused, Unavailable, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.outbox import Outbox
from sapwood.kernel.actors.sockets import WATCH_ONLY, Absent, Socket
from sapwood.kernel.marshal.call import current
from sapwood.kernel.trees.tree import tree_of
from sapwood.runs.events.events import Feed
from sapwood.runs.execution.access_gates import Gates, Path, Shut, refused_to_watch, request_of
from sapwood.runs.execution.executor import RunExecutor
from sapwood.runs.questions.permission import Permission
from sapwood.runs.tables.own_questions import OwnQuestions
from sapwood.runs.tables.question import LONGEST_NAME, NOT_ALLOWED, Answer, Author, Question, author_of_client
from sapwood.runs.tables.runs_table import pin_runs_of
from sapwood.storage.database import Database
from sapwood.wire import chat as chat_wire
from sapwood.wire import runs as wire
from sapwood.wire.frames import read_json

log = logging.getLogger(__name__)

PATH = "/questions"
UNREACHABLE = "The agent that asks cannot be reached now. Try again."
NOT_OPEN = "This question is not open, or has changed since it was shown. Reload it."
ANSWERS = frozenset({chat_wire.TOOL_RESULT, chat_wire.TOOL_APPROVAL})


_stored = msgspec.json.Decoder(list[Question])


class NamedSegment(msgspec.Struct):
    """One step of a path, as it is on a wire."""

    type: str
    name: str


class PostedAnswer(msgspec.Struct, forbid_unknown_fields=True):
    """An answer, as it is received over HTTP."""

    id: str
    path: list[NamedSegment] = []
    approved: bool | None = None
    arguments: dict[str, Any] | None = None
    reason: str | None = None
    output: Any = msgspec.UNSET
    error: str | None = None
    digest: str | None = None

    def answer(self) -> Answer:
        if self.approved is not None:
            return approval(self.arguments, self.reason, approved=self.approved)
        if self.error is not None:
            return Answer("failed", self.error)
        if self.output is msgspec.UNSET:
            raise InvalidArguments("Expected `approved` as true or false, or `output`, or `error`.")
        return Answer("done", self.output)


def approval(arguments: dict[str, Any] | None, reason: str | None, *, approved: bool) -> Answer:
    """Return what a person answered."""
    return Answer("approved", arguments) if approved else Answer("denied", reason)


class Questions:
    """The questions of one agent and of those below it."""

    def __init__(self, actor: Actor) -> None:
        tree = tree_of(actor)
        self._actor, self._tree = actor, tree
        self._index = tree.questions

    def asked(self) -> None:
        """The agent has a new question, in this slice: keep it in the index, and show it to clients above."""
        actor, questions = self._actor, self._own()
        self._ring()
        if not questions:
            return
        if actor.parent is not None:
            text = msgspec.json.encode(questions).decode()
            self._tree.slices.before_commit(
                f"questions {actor.stem}", lambda: self._index.put(actor.address, actor.database, text)
            )
        self._show_to_clients(questions)

    def _show_to_clients(self, questions: Sequence[Question]) -> None:
        actor = self._actor
        is_open_to_all = actor.of(Permission).is_open_to_all(actor.address, questions)
        for socket, path in list(self._sockets()):
            if is_open_to_all:
                self._show(socket, path, shown_at(path, questions))
            elif isinstance(socket, Absent):
                socket.require_reconnect()  # its user is not known here
            else:
                self._later("show questions", self._show_if_allowed, socket, path)

    def answered(self) -> None:
        """A question of the agent was answered or withdrawn, in this slice: tell the clients that were shown it."""
        self._ring()
        self._show_fewer(self._own())
        self.settle_soon()

    def _show_fewer(self, questions: Sequence[Question]) -> None:
        for socket, path in self._sockets():
            known = socket.shown.get(str(self._actor.address), ())
            self._show(socket, path, [one for one in questions if one.id in known])

    def closed_below(self, owners: Sequence[Address]) -> None:
        """Agents below do not ask any more, in this slice: tell the clients of all agents above them."""
        for owner in owners:
            for depth in range(1, len(owner.segments)):
                for socket in self._actor.host.sockets.of(Address(owner.segments[:depth])):
                    known = socket.shown.pop(str(owner), None) is not None
                    if isinstance(socket, Absent):
                        socket.shown[str(owner)] = []
                    if socket.is_protocol and (known or isinstance(socket, Absent)):
                        self._actor.of(Outbox).put(socket, wire.questions(owner.segments[depth:], ()))

    def mirrored(self) -> None:
        """The questions of the remote run that this agent stands for are others now. The root can be written."""
        actor, questions = self._actor, self._own()
        self._ring()
        if questions:
            self._index.put(actor.address, actor.database, msgspec.json.encode(questions).decode())
        else:
            self._index.forget(actor.address)
        self._show_fewer(questions)
        if questions:
            self._show_to_clients(questions)

    def indexed(self) -> list[Question]:
        """Return the questions of this agent that the index of its tree has."""
        body = self._index.of(self._actor.address)
        return [] if body is None else _stored.decode(body)

    def _ring(self) -> None:
        """Tell the subscribers of this agent, and of those above it, once this slice is durable."""
        at: Actor | None = self._actor
        while at is not None:
            feed = at.found(Feed)
            for ear in () if feed is None else feed.ears:
                if not ear.runs_only:
                    self._actor.of(Outbox).put(ear, None)
            at = at.parent

    def settle_soon(self) -> None:
        """Have the index say what the agent waits for, if it says too much."""
        if self._actor.parent is not None and self._index.of(self._actor.address) is not None:
            self._later("settle questions", self._settle)

    async def _settle(self) -> None:
        actor = self._actor
        await actor.leave()
        if actor.detached or (known := self._index.of(actor.address)) is None:
            return
        questions = self._own()
        text = msgspec.json.encode(questions).decode()
        if text == known:
            return
        if questions:
            self._index.put(actor.address, actor.database, text)
        else:
            self._index.forget(actor.address)
        self._ring()
        self._show_fewer(questions)  # clients that connected after a crash were shown what the index said

    def _at(self, path: Path) -> Address:
        return Address((*self._actor.address.segments, *path))

    def _own(self) -> list[Question]:
        return self._actor.of(RunExecutor).questions()

    def _later(self, name: str, work: Callable[..., Any], *args: Any) -> None:
        _, done = self._actor.handle(name, work, *args)
        done.add_done_callback(self._report)

    def _report(self, done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is not None and self._actor.dropped is None and not isinstance(error, Unavailable):
            log.error("cannot send a question to clients address=%s", self._actor.address, exc_info=error)

    # What clients are shown.

    def _sockets(self) -> Iterator[tuple[Socket, Path]]:
        """Yield the clients of this agent and of all above, each with the path from its agent to this one."""
        address, at = self._actor.address, self._actor if self._actor.of(OwnQuestions).exist else self._actor.parent
        while at is not None:
            path = address.segments[len(at.address.segments) :]
            for socket in self._actor.host.sockets.of(at.address):
                if socket.is_protocol:
                    yield socket, path
            at = at.parent

    def _show(self, socket: Socket, path: Path, questions: Sequence[Question]) -> None:
        """Tell a client which questions at the end of a path are open now, of those that it may see."""
        owner = str(Address((*socket.address.segments, *path)))
        if questions or owner in socket.shown or isinstance(socket, Absent):
            if questions or isinstance(socket, Absent):
                socket.shown[owner] = [one.id for one in questions]
            else:
                del socket.shown[owner]
            self._actor.of(Outbox).put(socket, wire.questions(path, questions))

    async def _show_if_allowed(self, socket: Socket, path: Path) -> None:
        """Show the questions of this agent to a client of an agent above, if it may answer them."""
        above = await self._tree.reach(socket.address, None, current.get())
        if above is not None:
            questions = shown_at(path, self._own())
            visible = await above.of(Permission).visible_to(request_of(socket), path, questions)
            self._show_also(socket, path, visible)

    def _show_also(self, socket: Socket, path: Path, visible: Sequence[Question]) -> None:
        """Show a client questions that it may see, as far as they are open now, beside those that it knows."""
        if socket.is_open:
            owner = Address((*socket.address.segments, *path))
            ids = {*socket.shown.get(str(owner), ()), *(one.id for one in visible)}
            self._show(socket, path, [one for one in self._open_at(owner) if one.id in ids])

    def _open_at(self, owner: Address) -> list[Question]:
        """Return the open questions of an agent in this tree, asleep or awake."""
        asker = self._tree.actors.get(owner)
        if asker is not None and asker.ready:
            return asker.of(RunExecutor).questions()
        return [] if (body := self._index.of(owner)) is None else _stored.decode(body)

    def is_open(self, path: Path, question: Question) -> bool:
        """Return whether a question at the end of a path is open: the index may still have one that was answered."""
        return any(one.id == question.id for one in self._open_at(self._at(path)))

    async def all(self) -> list[tuple[Path, Question]]:
        """Return the questions of this agent and of those below it, with the path to each agent that asks."""
        self._actor.check_use()
        own: list[tuple[Path, Question]] = [((), one) for one in self._own()]
        return own + [(path, one) for path, questions in self._below() for one in questions]

    def _here_and_below(self) -> list[tuple[Path, list[Question]]]:
        """Return what clients of this agent are shown by frames of questions."""
        own = self._actor.of(OwnQuestions).open()
        here: list[tuple[Path, list[Question]]] = [((), own)] if own else []
        return here + self._below()

    def _below(self) -> list[tuple[Path, list[Question]]]:
        depth = len(self._actor.address.segments)
        owners = [owner for owner, _ in self._index.below(self._actor.address)]
        return [(owner.segments[depth:], asked) for owner in owners if (asked := self._open_at(owner))]

    async def for_people(self) -> list[Question]:
        """Return the questions of this agent, and of those below it, that wait for a person."""
        return [replace(one, path=path) for path, one in await self.all() if one.kind != "client"]

    # What is answered.

    async def answer(self, path: Path, id: str, answer: Answer, author: Author, digest: str | None = None) -> bool:
        """Hand an answer of the program's own down to the agent that asks. Returns `False` if it is not open."""
        self._actor.check_use()
        asking = await self._asking(path)
        if asking is None:
            return False
        _, reply = asking.handle("answer", asking.of(Questions).take, id, answer, author, digest)
        return await reply

    async def _asking(self, path: Path) -> Actor | None:
        if not path:
            return self._actor
        try:
            return await self._tree.reach(self._at(path), None, current.get())
        except (NotFound, UsageError):  # no such agent, or no such class
            return None

    async def answer_of_client(
        self,
        request: Any,
        channel: Literal["http", "socket"],
        path: Path,
        id: str,
        answer: Answer,
        digest: str | None,
        *,
        on_behalf_of: str | None = None,
    ) -> bool:
        """Hand an answer of a client down, past all gates. Raises `Shut` or `Refused`, and the question stays open.

        `on_behalf_of` is a user that the client names, and is recorded as a claim.
        """
        rest = PATH if channel == "http" else "/"
        await Gates(self._actor, request, "request" if channel == "http" else "connect", rest).pass_to(path)
        asking = await self._asking(path)
        if asking is None:
            return False
        claim = "" if on_behalf_of is None else msgspec.json.encode(on_behalf_of[:LONGEST_NAME]).decode()
        author_channel = f"{channel}, on behalf of {claim} (claimed)" if claim else channel
        take = asking.of(Questions).take_of_client
        _, reply = asking.handle("answer", take, request, author_channel, id, answer, digest)
        return await reply

    async def take_of_client(self, request: Any, channel: str, id: str, answer: Answer, digest: str | None) -> bool:
        """Take a client's answer to a question of this agent. Raises `Refused` if it may not give it."""
        user = request.scope.get("user")
        question = await self._actor.of(Permission).check(user, id, answer, digest)
        author = author_of_client(user, self._actor.host.authentication, channel)
        return await self._taken(id, answer, author) if question is not None else self._not_open()

    async def take(self, id: str, answer: Answer, author: Author, digest: str | None = None) -> bool:
        """Take an answer of the program's own. Returns `False` if the question is not open, or has another digest."""
        served = self._actor.of(RunExecutor)
        question = served.question(id)
        if question is not None and digest not in (None, question.digest):
            return False
        return await self._taken(id, answer, author)

    async def _taken(self, id: str, answer: Answer, author: Author) -> bool:
        question = self._actor.of(RunExecutor).question(id)
        if question is not None and question.kind != "client":
            self._pin_runs_above()
        own = self._actor.of(OwnQuestions)
        if own.get(id) is not None:
            own.answer(id, answer, author)
            self.answered()
            return True
        taken = self._actor.of(RunExecutor).worker.answer(id, answer, author)
        if not isinstance(taken, bool):
            taken = await taken
        return taken or self._not_open()

    def _pin_runs_above(self) -> None:
        """Pin the runs that this agent is part of: a client that clears a conversation must not delete the decision."""
        child, parent, changed = self._actor, self._actor.parent, list[Database]()
        while parent is not None:
            if pin_runs_of(parent.database, child.kind.type_ids, child.address.name):
                changed.append(parent.database)
            child, parent = parent, parent.parent
        if changed:
            self._tree.slices.commit()  # before the answer is written: a crash leaves no decision without its pin
        for database in changed:
            self._actor.host.gate.follows(self._actor.database, database)

    def _not_open(self) -> bool:
        self.settle_soon()  # the process may have died before it was known above that this is not asked any more
        return False

    # The clients of this agent.

    def greet(self, socket: Socket) -> None:
        """Show a new client the questions here and below that it may see."""
        permission, to_ask = self._actor.of(Permission), list[Path]()
        for path, questions in self._here_and_below():
            if permission.is_open_to_all(self._at(path), questions):
                self._show(socket, path, questions)
            else:
                to_ask.append(path)
        if to_ask:
            self._later("show questions", self._greet, socket, to_ask)

    async def _greet(self, socket: Socket, paths: Sequence[Path]) -> None:
        request, permission = request_of(socket), self._actor.of(Permission)
        for path in paths:
            if not socket.is_open:
                return
            await asyncio.sleep(0)  # other agents have their turn: many may wait
            questions = shown_at(path, self._open_at(self._at(path)))
            self._show_also(socket, path, await permission.visible_to(request, path, questions))

    def hear(self, socket: Socket, data: str) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Return what takes an answer to something that is asked below; None if it is none."""
        if '"path"' not in data:
            return None
        frame = chat_wire.read(data)
        if frame is None or frame.path is None or frame.type not in ANSWERS:
            return None
        return lambda: self._heard(socket, frame)

    async def _heard(self, socket: Socket, frame: chat_wire.ChatFrame) -> None:
        try:
            path = _steps(msgspec.convert(frame.path, list[NamedSegment]))
        except msgspec.ValidationError:
            return
        id, digest = str(frame.call), digest_of(frame)
        why = WATCH_ONLY if socket.is_watch_only else None
        try:
            if why is None:
                if await self.answer_of_client(request_of(socket), "socket", path, id, answer_of(frame), digest):
                    return
                why = NOT_OPEN
        except Shut:
            why = NOT_ALLOWED
        except (Refused, OverLimit) as refused:
            why = str(refused)
        except Unavailable:
            why = UNREACHABLE
        owner = self._at(path)
        known = socket.shown.get(str(owner), ())
        still_open = [one for one in self._open_at(owner) if one.id in known]
        self._actor.of(Outbox).put(socket, wire.questions(path, still_open, refused=(id, why)))

    def closed(self, socket: Socket) -> None:
        """A client has left."""

    async def request(self, request: Any) -> Any:
        """Show the questions here and below, or take an answer; None if the request is for something else."""
        if request.scope["path"] != PATH or request.method not in ("GET", "POST"):
            return None
        if (refused := await refused_to_watch(self._actor, request)) is not None:
            return refused
        if request.method == "GET":
            return _json({"questions": [wire.question(one, path) for path, one in await self.shown_to(request)]})
        try:
            is_taken = await self._take_posted(request)
        except Shut as shut:
            return shut.response or _refusal(NOT_OPEN, 409)
        except InvalidArguments as error:
            return _refusal(str(error), 400)
        except Refused as error:
            return _refusal(str(error), 403)
        except OverLimit as error:
            return _refusal(str(error), 429)
        return _json({"answered": True}) if is_taken else _refusal(NOT_OPEN, 409)

    async def _take_posted(self, request: Any) -> bool:
        try:
            posted: PostedAnswer = read_json(await request.body(), PostedAnswer)
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"The body is not a valid answer: {error}.") from None
        except msgspec.DecodeError as error:
            raise InvalidArguments(f"The body must be a JSON object with an `id`: {error}.") from None
        if posted.approved is not None and posted.digest is None:
            raise InvalidArguments("An answer must name the digest of the question. GET this URL to see it.")
        return await self.answer_of_client(
            request, "http", _steps(posted.path), posted.id, posted.answer(), posted.digest
        )

    async def shown_to(self, request: Any) -> list[tuple[Path, Question]]:
        """Return the questions here and below that a client may see."""
        calls = self._actor.of(RunExecutor).worker.questions()
        shown: list[tuple[Path, Question]] = [((), one) for one in calls]
        for path, questions in self._here_and_below():
            shown += [(path, one) for one in await self._actor.of(Permission).visible_to(request, path, questions)]
        return shown


def shown_at(path: Path, questions: Sequence[Question]) -> list[Question]:
    """Return the questions that frames of questions show to clients at the other end of a path."""
    return [one for one in questions if path or one.is_from_code]


def _steps(path: Sequence[NamedSegment]) -> Path:
    return tuple(PathSegment(one.type, one.name) for one in path)


def digest_of(frame: chat_wire.ChatFrame) -> str | None:
    """Return the digest of the question that a frame answers, if it names one."""
    return frame.digest if isinstance(frame.digest, str) else None


def answer_of(frame: chat_wire.ChatFrame) -> Answer:
    """Return the answer that a frame holds."""
    if frame.type == chat_wire.TOOL_APPROVAL:
        return approval(None, None, approved=frame.approved is True)
    if frame.state == "output-error":
        return Answer("failed", str(frame.error or "Tool execution denied by user"))
    return Answer("done", frame.output)


def _refusal(why: str, status: int) -> Any:
    """Return the one form in which an answer is refused over HTTP."""
    return _json({"answered": False, "refused": why}, status)


def _json(body: object, status: int = 200) -> Any:
    from starlette.responses import Response

    return Response(msgspec.json.encode(body), status, media_type="application/json")
