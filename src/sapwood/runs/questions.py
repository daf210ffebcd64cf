"""What agents wait for somebody to answer: shown to the clients of every agent above them, and answered there.

The agent that asks is the truth, and may sleep. What it asks is told to the clients of all above
it, and kept in the index of its tree. An answer goes down by the path, past the gates on it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from sapwood.address import Address, Step
from sapwood.errors import InvalidArguments, NotFound
from sapwood.kernel.actor import Actor
from sapwood.kernel.context import current
from sapwood.kernel.outbox import Outbox
from sapwood.kernel.sockets import Socket
from sapwood.kernel.tree import Tree
from sapwood.runs.contract import Answer, Approval, Question
from sapwood.runs.served import Served
from sapwood.storage.database import until_free
from sapwood.wire import chat as chat_wire
from sapwood.wire import runs as wire
from sapwood.wire.frames import read_json

PATH = "/questions"
ANSWERS = frozenset({chat_wire.TOOL_RESULT, chat_wire.TOOL_APPROVAL})

Path = tuple[Step, ...]
_stored = msgspec.json.Decoder(list[Question])


class Named(msgspec.Struct):
    """One step of a path, as it is on a wire."""

    type: str
    name: str


class Posted(msgspec.Struct, forbid_unknown_fields=True):
    """An answer, as it comes by HTTP."""

    id: str
    path: list[Named] = []
    approved: bool | None = None
    arguments: dict[str, Any] | None = None
    reason: str | None = None
    output: Any = msgspec.UNSET
    error: str | None = None

    def answer(self) -> Answer:
        if self.approved is not None:
            return approval(self.arguments, self.reason, approved=self.approved)
        if self.error is not None:
            return Answer("failed", self.error)
        if self.output is msgspec.UNSET:
            raise InvalidArguments("An answer says approved, true or false; that of a client's tool, output or error.")
        return Answer("done", self.output)


def approval(arguments: dict[str, Any] | None, reason: str | None, *, approved: bool) -> Answer:
    """Return what a person answered."""
    return Answer("approved", arguments) if approved else Answer("denied", reason)


class Questions:
    """What one agent asks, and what is asked below it."""

    def __init__(self, actor: Actor) -> None:
        tree = actor.home
        assert isinstance(tree, Tree)
        self._actor, self._tree = actor, tree
        self._index = tree.questions

    def asked(self) -> None:
        """The agent waits for somebody, in this slice: have everybody above know."""
        actor, questions = self._actor, self._own()
        if actor.parent is None or not questions:
            return
        text = msgspec.json.encode(questions).decode()
        self._tree.slices.before_commit(
            f"questions {actor.stem}", lambda: self._index.put(actor.address, actor.database, text)
        )
        self._tell(questions)

    def answered(self) -> None:
        """The agent waits for less than before, in this slice: have everybody above know, once that is kept."""
        if self._actor.parent is not None:
            self._tell(self._own())
            self.settle_soon()

    def settle_soon(self) -> None:
        """Have the index say what the agent waits for, if it says too much."""
        root = self._tree.root
        if self._actor.parent is not None and (root.busy_elsewhere or self._index.of(self._actor.address) is not None):
            _, settled = self._actor.handle("settle questions", self._settle)
            settled.add_done_callback(lambda settled: settled.cancelled() or settled.exception())

    async def _settle(self) -> None:
        actor = self._actor
        await actor.leave()
        await until_free(actor.database, self._tree.root)
        if actor.detached or (known := self._index.of(actor.address)) is None:
            return
        text = msgspec.json.encode(self._own()).decode()
        if text == "[]":
            self._index.forget(actor.address)
        elif text != known:
            self._index.put(actor.address, actor.database, text)

    def _own(self) -> list[Question]:
        return self._actor.of(Served).worker.questions()

    def _tell(self, questions: Sequence[Question]) -> None:
        """Tell the clients of all above what the agent asks now."""
        outbox, address, above = self._actor.of(Outbox), self._actor.address, self._actor.parent
        while above is not None:
            sockets = [socket for socket in self._actor.host.sockets.of(above.address) if socket.is_protocol]
            if sockets:
                frame = wire.questions(address.steps[len(above.address.steps) :], questions)
                for socket in sockets:
                    outbox.put(socket, frame)
            above = above.parent

    async def all(self) -> list[tuple[Path, Question]]:
        """Return what is asked by this agent and below it, with the steps down to who asks."""
        self._actor.check_use()
        await until_free(self._actor.database, self._tree.root)
        own: list[tuple[Path, Question]] = [((), one) for one in self._own()]
        return own + [(path, one) for path, questions in self._below() for one in questions]

    def _below(self) -> list[tuple[Path, list[Question]]]:
        depth = len(self._actor.address.steps)
        return [(owner.steps[depth:], _stored.decode(body)) for owner, body in self._index.below(self._actor.address)]

    async def approvals(self) -> list[Approval]:
        """Return the tool calls of this agent, and of those below it, that wait for a person."""
        return [Approval(one.id, one.tool, one.input, path) for path, one in await self.all() if one.kind == "approval"]

    async def answer(self, path: Path, id: str, answer: Answer) -> bool:
        """Hand an answer down to who asks; return whether it was waited for."""
        self._actor.check_use()
        if not path:
            return await self.take(id, answer)
        try:
            asking = await self._tree.reach(Address((*self._actor.address.steps, *path)), None, current.get())
        except NotFound:
            return False
        if asking is None:
            return False
        _, reply = asking.handle("answer", asking.of(Questions).take, id, answer)
        return await reply

    async def take(self, id: str, answer: Answer) -> bool:
        """Take an answer to what this agent itself asks."""
        served = self._actor.of(Served)
        await served.may_wake_above()
        is_taken = served.worker.answer(id, answer)
        if not is_taken:
            self.settle_soon()  # the process may have died before it was known above that this is not asked any more
        return is_taken

    def greet(self, socket: Socket) -> None:
        """Tell a new client what is asked below."""
        if self._tree.root.busy_elsewhere:
            _, told = self._actor.handle("tell questions", self._greet_later, socket)
            told.add_done_callback(lambda told: told.cancelled() or told.exception())  # the outbox sees to the client
        else:
            self._greet(socket)

    async def _greet_later(self, socket: Socket) -> None:
        await until_free(self._tree.root)
        self._greet(socket)

    def _greet(self, socket: Socket) -> None:
        for path, questions in self._below():
            self._actor.of(Outbox).put(socket, wire.questions(path, questions))

    def hear(self, socket: Socket, data: str) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Return what takes an answer to something that is asked below; None if it is none."""
        if '"path"' not in data:
            return None
        frame = chat_wire.read(data)
        if frame is None or frame.path is None or frame.type not in ANSWERS:
            return None
        return lambda: self._heard(socket, frame)

    async def _heard(self, socket: Socket, frame: chat_wire.Incoming) -> None:
        try:
            path = _steps(msgspec.convert(frame.path, list[Named]))
        except msgspec.ValidationError:
            return
        if await self._refused(_connection(socket), path) is None and await self.answer(
            path, str(frame.call), _answer_of(frame)
        ):
            return
        asked = [question for where, question in await self.all() if where == path]
        self._actor.of(Outbox).put(socket, wire.questions(path, asked))  # what it showed is not what is asked

    def closed(self, socket: Socket) -> None:
        """A client has left."""

    async def request(self, request: Any) -> Any:
        """Show what is asked here and below, or take an answer; None if the request is for something else."""
        if request.scope["path"] != PATH or request.method not in ("GET", "POST"):
            return None
        if request.method == "GET":
            return _json({"questions": [wire.question(one, path) for path, one in await self.all()]})
        try:
            posted: Posted = read_json(await request.body(), Posted)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise InvalidArguments(f"The body must be a JSON object with an `id`: {error}.") from None
        path = _steps(posted.path)
        if (refused := await self._refused(request, path)) is not None:
            return refused
        taken = await self.answer(path, posted.id, posted.answer())
        return _json({"answered": taken}, 200 if taken else 409)

    async def _refused(self, request: Any, path: Path) -> Any:
        """Ask everybody on the way down, as for a client that goes there itself; return a refusal, if any."""
        from starlette.responses import Response

        actor: Actor | None = self._actor
        for step in path:
            _, reply = actor.handle("on_before_sub_agent", actor.agent.on_before_sub_agent, request, step)
            answer = await reply
            if isinstance(answer, Response):
                return answer
            request = request if answer is None else answer
            try:
                actor = await self._tree.reach(actor.address.child(*step), None, current.get())
            except NotFound:
                actor = None
            if actor is None:
                return _json({"answered": False}, 409)
        return None


def _steps(path: Sequence[Named]) -> Path:
    return tuple(Step(one.type, one.name) for one in path)


def _answer_of(frame: chat_wire.Incoming) -> Answer:
    if frame.type == chat_wire.TOOL_APPROVAL:
        return approval(None, None, approved=frame.approved is True)
    if frame.state == "output-error":
        return Answer("failed", str(frame.error or "Tool execution denied by user"))
    return Answer("done", frame.output)


def _json(body: object, status: int = 200) -> Any:
    from starlette.responses import Response

    return Response(msgspec.json.encode(body), status, media_type="application/json")


def _connection(socket: Socket) -> Any:
    """Return what a socket came with, as gates see it."""
    from starlette.requests import HTTPConnection

    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in socket.headers.items()]
    where = {"path": socket.path, "raw_path": quote(socket.path).encode(), "root_path": ""}
    came_with = {"query_string": socket.query.encode("latin-1"), "headers": headers, "user": socket.user}
    return HTTPConnection({"type": "websocket", **where, **came_with})
