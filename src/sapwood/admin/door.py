"""The admin API over HTTP, below `/_sapwood/`.

It answers clients with the token that the server wrote into its data folder, or with one that its key has signed.
What another node runs is asked there; what concerns all trees is asked of all nodes.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from sapwood.address import Address
from sapwood.admin.access import FULL, Access
from sapwood.admin.admin import Admin
from sapwood.admin.arrivals import access_of
from sapwood.admin.audit import Audit
from sapwood.admin.client_presence import answer_while_present
from sapwood.admin.content import HiddenFailure
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, Event, Params, SeveralAgents, addresses_of
from sapwood.admin.endpoints import ENDPOINTS
from sapwood.admin.event_stream import EventStream, events_from, one_stream, together
from sapwood.admin.log_ring import LogRing
from sapwood.admin.operate import Operate
from sapwood.admin.tokens import TokenKey
from sapwood.errors import InvalidArguments, NotFound, SapwoodError, Unavailable, UsageError
from sapwood.kernel.marshal.copier import json_hook
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.transport import Exchange
from sapwood.kernel.rpc.remote import Peers
from sapwood.web.asgi_types import ASGI, Receive, Scope, Send
from sapwood.web.errors import status_of
from sapwood.web.handoff import Handoff
from sapwood.web.origins import cross_origin_refusal
from sapwood.web.proxy import answer_relayed, relay_to
from sapwood.web.stats import silent
from sapwood.wire import frames

PREFIX = "/_sapwood/"
OPERATE = "operate"
BODY_BYTES = 8 * 1024 * 1024
UNAUTHENTICATED = "This request needs the token in operator.json, or one from `sapwood token` that has not expired."
log = logging.getLogger(__name__)


Relayed = tuple[str, dict[str, Any], tuple[str, list[Any], str | None, float | None]]
"""A request as another node sends it: the endpoint, its parameters, and what its sender may do."""


@dataclass(slots=True)
class Received:
    """What is known of a request while it is answered."""

    access: Access | None = None
    endpoint: Endpoint[Any] | None = None
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    is_act: bool = False
    """Whether it is for the audit log."""
    status: int = 500


class AdminDoor:
    """Stands before an ASGI application, and answers what is below `/_sapwood/` itself."""

    def __init__(self, app: ASGI, node: Callable[[], Node], token: str) -> None:
        self._app = app
        self._node = node
        self._token = f"Bearer {token}".encode()
        self._key: TokenKey | None = None
        self._log: LogRing | None = None
        """The last log records; `None` before the server has started."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, self._when_started(send))
            finally:
                if self._log is not None:
                    self._log.detach()
            return
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        request, received, node = Request(scope, receive), Received(), self._node()
        if (refused := cross_origin_refusal(request, node.settings, allows_cors=False)) is not None:
            await refused(scope, receive, send)
            return

        async def noted(message: MutableMapping[str, Any]) -> None:
            received.status = message.get("status", received.status)
            await send(message)

        try:
            response = await _answered(self._read(request, received), lambda: _shows_content(received.access))
            await response(scope, receive, noted)
        finally:
            _record(node, received, received.status)  # the app may have stopped by now

    def _access(self, request: Request) -> Access | None:
        """Return what the token of a request allows; `None` if it is wrong or has expired."""
        given = request.headers.get("authorization", "").encode("latin-1")
        if hmac.compare_digest(given, self._token):
            return FULL
        text = given.removeprefix(b"Bearer ").decode("latin-1")
        if (of_move := access_of(self._node(), text, request.url.path.removeprefix(PREFIX))) is not None:
            return of_move
        if self._key is None:
            self._key = TokenKey(self._node().folder)
        try:
            return self._key.access_of(text, self._node().clock.now())
        except (OSError, UsageError) as error:
            log.warning("cannot check a token of the admin API: %s", error)
            return None

    def _when_started(self, send: Send) -> Send:
        async def started(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._log = self._node().shared(LogRing)
                self._log.attach()
                if (far := self._node().far) is not None:
                    answer_relayed(far.transport, OPERATE, self._asked_by_another)
            await send(message)

        return started

    def _asked_by_another(self, message: bytes) -> ASGI:
        what, asked, by = msgspec.msgpack.decode(
            message, type=tuple[str, dict[str, Any], tuple[str, list[Any], Any, Any]]
        )

        access = Access.unpacked(*by)

        async def read(receive: Receive) -> Response:
            endpoint = ENDPOINTS[what]
            params = endpoint.converted(asked)
            endpoint.check(params, access)
            endpoint.check_class(self._node(), params, access)
            return await self._do(endpoint, params, access, receive=receive)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await (await _answered(read(receive), lambda: _shows_content(access)))(scope, receive, send)

        return answer

    async def _read(self, request: Request, received: Received) -> Response:
        what = request.url.path.removeprefix(PREFIX)
        received.access = access = self._access(request)
        if access is None:
            return JSONResponse({"error": UNAUTHENTICATED, "code": "unauthenticated"}, 401)
        received.endpoint = endpoint = ENDPOINTS.get(what)
        if endpoint is None:
            raise NotFound(f"The admin API has no endpoint {what!r}.", path=())
        received.params = body = await _body(request)
        params = endpoint.converted(body)
        received.is_act = endpoint.is_act(params)
        endpoint.check(params, access)
        endpoint.check_class(self._node(), params, access)
        await self._node().shared(Operate).check(access.name, what, addresses_of(params))
        _record(self._node(), received, None)
        far = self._node().far
        if far is None or endpoint.is_of_any_node:
            return await self._do(endpoint, params, access, request)
        addresses = addresses_of(params)
        if addresses and not isinstance(params, SeveralAgents):
            root = addresses[0].root
            if self._node().owns(root):
                return await self._do(endpoint, params, access, request)
            return Handoff(partial(relay_to, far, root, OPERATE, _message(endpoint, params, access)))
        if endpoint.stream is not None:
            return await self._streamed(self._joined(far, endpoint, params, access), access, request)
        if endpoint.merge is None:
            return await self._do(endpoint, params, access, request)
        return await self._gathered(far, endpoint, params, access)

    async def _joined(
        self, far: Peers, endpoint: Endpoint[Any], params: Params, access: Access
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of all nodes that have a part of what was asked."""
        here, parts = far.directory.here, dict[str, Params]()
        if isinstance(params, SeveralAgents):
            shares: defaultdict[str, list[str]] = defaultdict(list)
            for text in params.addresses:
                root = Address.parse(text).root
                shares[here if self._node().owns(root) else await far.directory.owner(root)].append(text)
            parts = {node: msgspec.structs.replace(params, addresses=share) for node, share in shares.items()}
        elif endpoint.merge is not None:
            parts = dict.fromkeys([here, *await far.others()], params)
        else:
            parts = {here: params}
        sources = [
            self._events(endpoint, part, access)
            if node == here
            else events_from(far.transport.open(node, OPERATE, _message(endpoint, part, access)))
            for node, part in parts.items()
        ]
        async with aclosing(together(sources)) as events:
            async for event in one_stream(endpoint, params, events):
                yield event

    async def _events(self, endpoint: Endpoint[Any], params: Params, access: Access) -> AsyncGenerator[Event, None]:
        assert endpoint.stream is not None
        async for event in endpoint.stream(self._call(access), params):
            yield event

    async def _gathered(self, far: Peers, endpoint: Endpoint[Any], params: Params, access: Access) -> Response:
        """Ask all nodes that share the trees, and join what they answer."""
        assert endpoint.merge is not None
        others, message = await far.others(), _message(endpoint, params, access)
        asking = (collected(far.transport.open(node, OPERATE, message), endpoint.patience) for node in others)
        answers = await asyncio.gather(*asking)
        missing = [node for node, answer in zip(others, answers, strict=True) if answer is None]
        own = await self._do(endpoint, params, access)
        told = [msgspec.json.decode(bytes(own.body), type=Answer), *filter(None, answers)]
        together = endpoint.merge(params, told) | {"unanswered": missing}
        together["called"] = "worker" if self._node().keeper is None else "node"
        if endpoint.name == "top":
            together["silent"] = [asdict(silent(far, self._node().folder, node)) for node in missing]
        return _json_response(together)

    async def _do(
        self,
        endpoint: Endpoint[Any],
        params: Params,
        access: Access,
        request: Request | None = None,
        *,
        receive: Receive | None = None,
    ) -> Response:
        if endpoint.stream is not None:
            return await self._streamed(self._events(endpoint, params, access), access, request)
        assert endpoint.answer is not None
        answering = endpoint.answer(self._call(access), params)
        receive = receive if request is None else request.receive
        if endpoint.needs_client and receive is not None:
            answer = await answer_while_present(answering, receive)
        else:
            answer = await answering
        return answer if isinstance(answer, Response) else _json_response(answer)

    async def _streamed(self, events: AsyncGenerator[Event, None], access: Access, request: Request | None) -> Response:
        """Return a stream, which ends soon after its token is not valid any more. `None` for a request of a node."""

        def is_allowed() -> bool:
            if request is not None:
                return self._access(request) is not None
            return access.expires_at is None or self._node().clock.now() < access.expires_at

        return await EventStream(self._node(), events, is_allowed).response()

    def _call(self, access: Access) -> AdminCall:
        return AdminCall(self._node(), Admin(self._node()), access)


def _message(endpoint: Endpoint[Any], params: Params, access: Access) -> bytes:
    """Return a request as it is sent to another node."""
    return msgspec.msgpack.encode((endpoint.name, msgspec.to_builtins(params), access.packed()))


def _shows_content(access: Access | None) -> bool:
    return access is not None and "content" in access.scopes


def _record(node: Node, received: Received, status: int | None) -> None:
    """Add an act to the audit log, at its beginning and its end."""
    if received.is_act and received.access is not None and received.endpoint is not None:
        audit = Audit(node.folder, node.clock)
        audit.add(received.access.name, received.endpoint.name, received.params, status)


async def _answered(answer: Awaitable[Response], shows_content: Callable[[], bool]) -> Response:
    try:
        return await answer
    except SapwoodError as error:
        status = 400 if isinstance(error, UsageError) else status_of(error)  # here, it is the operator who uses it
        return JSONResponse({"error": str(error), "code": error.code}, status)
    except HiddenFailure as error:
        return JSONResponse({"error": str(error), "code": error.code}, error.status)
    except (OSError, TypeError, ValueError, KeyError) as error:
        text = f"{type(error).__name__}: {error}" if shows_content() else f"{type(error).__name__}."
        return JSONResponse({"error": text, "code": "error"}, 500)


def _json_response(answer: object) -> Response:
    return Response(
        msgspec.json.encode(answer, enc_hook=json_hook),
        media_type="application/json",
        headers={"cache-control": "no-store"},
    )


async def collected(opening: Awaitable[Exchange], patience: float) -> Answer | None:
    """Return what another node answers; None if it does not soon enough, or cannot."""
    body = b""
    try:
        async with asyncio.timeout(patience):
            exchange = await opening
            try:
                while (message := await exchange.receive()) is not None:
                    body += msgspec.msgpack.decode(message, type=dict[str, Any]).get("body", b"")
            finally:
                exchange.drop()  # otherwise the other node never drops the rest of a long answer
    except (Unavailable, TimeoutError):
        return None
    answer = msgspec.json.decode(body, type=Answer)
    return None if "error" in answer else answer


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
