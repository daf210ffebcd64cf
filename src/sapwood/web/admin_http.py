"""The administration of a node over HTTP, below `/_sapwood/`.

It answers only clients with the token that the server wrote into its data folder. What another
node runs is asked there; what concerns all trees is asked of all nodes.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from sapwood.address import Address
from sapwood.errors import Crashed, InvalidArguments, SapwoodError, Unavailable
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.transport import Exchange
from sapwood.web.admin import MOST_AGENTS, Admin
from sapwood.web.admin_spending import DEFAULT_LIMIT, most_expensive
from sapwood.web.asgi_types import ASGI, Receive, Scope, Send
from sapwood.web.errors import status_of
from sapwood.web.handoff import Handoff
from sapwood.web.origins import cross_origin_refusal
from sapwood.web.proxy import answer_relayed, relay_to
from sapwood.web.stats import silent
from sapwood.wire import frames

PREFIX = "/_sapwood/"
OPERATE = "operate"
PATIENCE = 3.0
"""Seconds that another process is given to say what it knows; one that is stuck is left out."""
LONG_PATIENCE = 60.0
"""And how many if it has to read all its trees."""
AT_ONCE = 1.0
"""And how many if it is asked again and again."""
ANYWHERE = ("backup", "restore", "verify", "release")
"""What any of several nodes does: copies find their way by themselves, and strikes are read or told by all."""
LOOKS = ("runs", "questions", "decisions", "explain")
BODY_BYTES = 8 * 1024 * 1024


class OperatorDoor:
    """Stands before an ASGI application, and answers what is below `/_sapwood/` itself."""

    def __init__(self, app: ASGI, node: Callable[[], Node], token: str) -> None:
        self._app = app
        self._node = node
        self._token = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._when_started(send))
            return
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        given = request.headers.get("authorization", "").encode("latin-1")
        if (refused := cross_origin_refusal(request, self._node().settings)) is not None:
            await refused(scope, receive, send)
            return
        if not hmac.compare_digest(given, self._token):
            response: Response = JSONResponse({"error": "This request needs the token in operator.json."}, 401)
        else:
            response = await self._answer(request)
        await response(scope, receive, send)

    def _when_started(self, send: Send) -> Send:
        async def started(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete" and (far := self._node().far) is not None:
                answer_relayed(far.transport, OPERATE, self._asked_by_another)
            await send(message)

        return started

    def _asked_by_another(self, message: bytes) -> ASGI:
        what, asked = msgspec.msgpack.decode(message, type=tuple[str, dict[str, Any]])

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await (await self._answered(self._do(what, asked)))(scope, receive, send)

        return answer

    async def _answer(self, request: Request) -> Response:
        return await self._answered(self._read(request))

    async def _read(self, request: Request) -> Response:
        asked = await _body(request)
        what = request.url.path.removeprefix(PREFIX)
        far, address = self._node().far, asked.get("address")
        if far is None or what in ANYWHERE:
            return await self._do(what, asked)
        message = msgspec.msgpack.encode((what, asked))
        if address is None:
            others = await far.others()
            patience = {"top": AT_ONCE, "spending": LONG_PATIENCE}.get(what, PATIENCE)
            asking = (_collected(far.transport.open(node, OPERATE, message), patience) for node in others)
            answers = await asyncio.gather(*asking)
            missing = [node for node, answer in zip(others, answers, strict=True) if answer is None]
            own = _json(await self._do(what, asked))
            together = _together([own, *filter(None, answers)]) | {"unanswered": missing}
            together["called"] = "worker" if self._node().keeper is None else "node"
            if what == "top":
                together["silent"] = [asdict(silent(far, self._node().folder, node)) for node in missing]
            if what == "tree":
                together["odd"] = own["odd"]  # of one folder; each worker has seen all of it
                del together["roots"][int(asked.get("agents", MOST_AGENTS)) :]
            if what == "spending":
                trees = cast("list[dict[str, Any]]", together["trees"])
                together["trees"] = most_expensive(trees, int(asked.get("limit", DEFAULT_LIMIT)))
            return JSONResponse(together)
        root = Address.parse(str(address)).root
        if self._node().owns(root):
            return await self._do(what, asked)
        return Handoff(partial(relay_to, far, root, OPERATE, message))

    async def _answered(self, answer: Awaitable[Response]) -> Response:
        try:
            return await answer
        except SapwoodError as error:
            return JSONResponse({"error": str(error), "code": error.code}, status_of(error))
        except (OSError, TypeError, ValueError, KeyError) as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500)

    async def _do(self, what: str, asked: dict[str, Any]) -> Response:
        operator = Admin(self._node())
        address: Any = asked.get("address")
        if what == "tree":
            sizes = {name: int(asked[name]) for name in ("agents", "children") if name in asked}
            return JSONResponse(await operator.tree(address, **sizes))
        if what == "top":
            return JSONResponse(operator.top(trees=int(asked.get("trees", 20))))
        if what == "state":
            return JSONResponse({"state": await operator.state(str(address))})
        if what == "methods":
            return Response(await operator.methods(str(address)), media_type="application/json")
        if what == "sql":
            arguments = cast("list[Any]", asked.get("arguments") or [])
            write = asked.get("write") is True
            return JSONResponse(await operator.sql(str(address), str(asked["sql"]), arguments, write=write))
        if what == "call":
            answer = operator.call(str(address), str(asked["method"]), cast("list[Any]", asked.get("arguments") or []))
            return StreamingResponse(_lines(answer), media_type="application/x-ndjson")
        if what in ("dead-letters", "spending"):
            find = self._letters if what == "dead-letters" else self._spending
            return JSONResponse(await find(operator, address, asked))
        if what in LOOKS:
            return JSONResponse(await _look(operator, what, str(address), asked))
        if what == "release":
            operator.release(str(address))
            return JSONResponse({})
        if what == "backup":
            return JSONResponse(await operator.backup(str(asked["folder"]), address))
        if what == "verify":
            return JSONResponse(await operator.verify(address))
        if what == "restore":
            damaged = str(asked.get("damaged", "refuse"))
            return JSONResponse(await operator.restore(str(asked["folder"]), address, damaged))
        return JSONResponse({"error": f"Unknown operator request {what!r}."}, 404)

    async def _letters(self, operator: Admin, address: str | None, asked: dict[str, Any]) -> dict[str, Any]:
        below = asked.get("below") is True
        if asked.get("replay") is not None:
            return {"done": await operator.dead_letters.replay(str(address), str(asked["replay"]), below=below)}
        if asked.get("delete") is not None:
            return {"done": await operator.dead_letters.delete(str(address), str(asked["delete"]), below=below)}
        return await operator.dead_letters.list(address, below=below)

    async def _spending(self, operator: Admin, address: str | None, asked: dict[str, Any]) -> dict[str, Any]:
        by_class, limit = asked.get("by_class") is True, int(asked.get("limit", DEFAULT_LIMIT))
        return await operator.spending.list(address, by_class=by_class, limit=limit)


async def _look(operator: Admin, what: str, address: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored of one agent, or of it and all below it."""
    if what == "runs":
        return await operator.runs(address, asked.get("status"))
    if what == "questions":
        return await operator.questions(address)
    if what == "decisions":
        return await operator.decisions(address)
    turn, step = asked.get("turn"), asked.get("step")
    return await operator.explain(address, turn and str(turn), None if step is None else int(step))


async def _collected(opening: Awaitable[Exchange], patience: float) -> dict[str, Any] | None:
    """Return what another node answers; None if it does not soon enough, or cannot."""
    body = b""
    try:
        async with asyncio.timeout(patience):
            exchange = await opening
            while (message := await exchange.receive()) is not None:
                body += msgspec.msgpack.decode(message, type=dict[str, Any]).get("body", b"")
    except (Unavailable, TimeoutError):
        return None
    answer = msgspec.json.decode(body, type=dict[str, Any])
    return None if "error" in answer else answer


def _json(response: Response) -> dict[str, Any]:
    return msgspec.json.decode(bytes(response.body), type=dict[str, Any])


def _together(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what several nodes say as one answer: lists are joined, numbers added."""
    joined: dict[str, Any] = {}
    for answer in answers:
        for key, value in answer.items():
            if isinstance(value, bool):
                joined[key] = value and joined.get(key, True) if key == "ready" else value or joined.get(key, False)
            elif isinstance(value, int | list):
                joined[key] = joined[key] + value if key in joined else value
            else:
                joined[key] = value
    if "roots" in joined:
        joined["roots"].sort(key=itemgetter("address"))
    return joined


async def _lines(answer: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield results as lines of JSON; the last one says that it is done, or what went wrong.

    The status has been sent by then, and a connection that broke looks like one that ended.
    """
    try:
        async for item in answer:
            yield b'{"result":' + item + b"}\n"
        yield b'{"done":true}\n'
    except SapwoodError as error:
        # What the user's own code raised keeps its name; ours are sentences.
        text = f"{type(error).__name__}: {error}" if isinstance(error, Crashed) else str(error)
        yield json.dumps({"error": text, "code": error.code}).encode() + b"\n"
    except Exception as error:  # noqa: BLE001 - whatever the user's method raised; the operator may know it
        yield json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n"


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            raise InvalidArguments(f"The body of a request must have at most {BODY_BYTES} bytes.")
    try:
        return frames.read_json(body, dict[str, Any]) if body else {}
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"The body of a request must be a JSON object: {error}.") from None
