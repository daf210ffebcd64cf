"""The OpenAI API: models are classes of chat agents, conversations are their agents, and responses are turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sapwood.address import kebab
from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.marshal.call import id_of
from sapwood.protocols.adapter import Adapter, Place
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.openai_chat import ChatRequest
from sapwood.protocols.openai_completions import Completions
from sapwood.protocols.openai_create import CreateRequest, no_response
from sapwood.protocols.openai_errors import ApiError, error_body, invalid, json_response
from sapwood.protocols.openai_ids import AgentId, derived, read_response_id
from sapwood.protocols.openai_parameters import Json, read_body
from sapwood.protocols.openai_responses import Responses
from sapwood.wire.routing import relative

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from sapwood.agent import Agent

V1 = "/v1"
RESPONSES = f"{V1}/responses"
COMPLETIONS = f"{V1}/chat/completions"
CONVERSATION_HEADERS = ("x-conversation-id", "x-openwebui-chat-id")
"""Headers with the conversation of a client that sends the whole history each time."""
MODELS = f"{V1}/models"
KEY = "Idempotency-Key"
LONGEST_KEY = 255
STREAM = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class OpenAi(Adapter):
    """Serves chat agents by the OpenAI API, at `/v1`.

    `models` names the classes that are published, by the names that clients use as `model`. Without it, every chat
    agent class of the app is published by its name in URLs: `SupportDesk` as `support-desk`. With `instructions`, the
    instructions and system messages of clients follow those of the class; otherwise they are refused.
    """

    roots = (V1,)
    paths = (RESPONSES, f"{RESPONSES}/", COMPLETIONS)

    def __init__(self, models: Mapping[str, type[Agent[Any]]] | None = None, *, instructions: bool = False) -> None:
        if models is not None and not isinstance(cast(object, models), Mapping):
            raise UsageError('OpenAi(models=…) must be a dict of classes by name, such as {"support": SupportDesk}.')
        self._takes_instructions = instructions
        self._models = None if models is None else dict(models)
        for name, cls in (self._models or {}).items():
            if not _is_chat(cls):
                raise UsageError(f"OpenAi(models=…): {name!r} must be a chat agent class, got {cls!r}.")

    def refusal(self, status: int, text: str) -> bytes | None:
        """Return an error in the form of the API."""
        return msgspec.json.encode(error_body(status, text or "The request was refused."))

    async def locate(self, request: Request, agents: Sequence[type[Agent[Any]]]) -> Place | Response:
        """Return the agent that the body or the id of a response names, or a new one."""
        models = self._published(agents)
        try:
            return await self._located(request, models)
        except ApiError as error:
            return error.response()

    async def _located(self, request: Request, models: Mapping[str, type[Agent[Any]]]) -> Place | Response:
        scope, method = request.scope, request.method
        path = relative(scope["path"], scope.get("root_path", "")).rstrip("/")
        if path == MODELS or path.startswith(f"{MODELS}/"):
            _check_method(method, "GET")
            return _listed(models, path.removeprefix(MODELS).removeprefix("/"))
        if path == RESPONSES:
            _check_method(method, "POST")
            asked = CreateRequest.read(read_body(await request.body()))
            found = asked.previous or asked.conversation or asked.called
            return _place(models, asked.model, found, RESPONSES, id_of(request.scope["user"]), _key(request))
        if path == COMPLETIONS:
            _check_method(method, "POST")
            return self._located_completion(request, models, ChatRequest.read(read_body(await request.body())))
        if path.startswith(f"{RESPONSES}/"):
            id, _, rest = path.removeprefix(f"{RESPONSES}/").partition("/")
            found, cls = read_response_id(id), None
            if found is not None and rest in ("", "cancel"):
                cls = next((one for one in models.values() if known(one).type == found.type), None)
            if found is None or cls is None:
                raise no_response(id) if rest in ("", "cancel") else _unknown(request)
            _check_method(method, "POST" if rest else "GET")
            return Place(cls, found.name, path)
        raise _unknown(request)

    def _located_completion(
        self, request: Request, models: Mapping[str, type[Agent[Any]]], asked: ChatRequest
    ) -> Place:
        user, found, name = id_of(request.scope["user"]), asked.conversation or asked.called, _conversation_of(request)
        if found is None and name is not None and asked.history.users:
            # With the first message: a client such as Open WebUI also sends a chat's id when it has a title made.
            name = derived("chat", user, name, asked.history.digests()[0])
            found = AgentId("", name)
        return _place(models, asked.model, found, COMPLETIONS, user, _key(request))

    async def answer(self, request: Request, exchange: Exchange) -> Response | None:
        """Answer a request for responses to one agent."""
        if not exchange.has_conversation or len(exchange.address.segments) > 1:
            return None
        try:
            return await self._answered(request, exchange)
        except ApiError as error:
            return error.response()

    async def _answered(self, request: Request, exchange: Exchange) -> Response | None:
        path: str = request.scope["path"].rstrip("/")
        if path == RESPONSES and request.method == "POST":
            asked = CreateRequest.read(read_body(await request.body()))
            read: Any = request
            read._body = b""  # a stream may last for hours, and needs it no more
            model = self._checked_model(exchange, asked.model)
            responses = Responses(exchange, model, takes_instructions=self._takes_instructions)
            row = await responses.create(asked, _key(request))
            if asked.streams:
                return _streamed(responses.events(row))
            shown = await (responses.retrieved(row) if asked.in_background else responses.finished(row))
            return json_response(shown)
        if path == COMPLETIONS and request.method == "POST":
            return await self._completed(request, exchange)
        id, _, rest = path.removeprefix(f"{RESPONSES}/").partition("/")
        found = read_response_id(id)
        if found is None or (found.type, found.name) != (exchange.address.type, exchange.address.name):
            raise no_response(id)
        responses = Responses(exchange, self._model_of(exchange))
        row = responses.row(found.tail, id)
        if rest == "cancel" and request.method == "POST":
            return json_response(await responses.cancelled(row))
        if rest or request.method != "GET":
            return None
        if (refused := await exchange.refused()) is not None:
            return refused
        after, streams = _read_query(request)
        if not streams:
            return json_response(await responses.retrieved(row))
        responses.check_replay(row)
        return _streamed(responses.events(row, after))

    async def _completed(self, request: Request, exchange: Exchange) -> Response:
        asked = ChatRequest.read(read_body(await request.body()))
        read: Any = request
        read._body = b""
        model = self._checked_model(exchange, asked.model)
        responses = Responses(exchange, model, takes_instructions=self._takes_instructions)
        if asked.conversation is not None:
            responses.check_conversation(asked.conversation)
        completions = Completions(exchange, responses, model)
        is_named = asked.conversation is not None or _conversation_of(request) is not None
        resends = asked.conversation is None
        row = await completions.create(asked, _key(request), resends=resends, is_single=not is_named)
        if asked.streams:
            return _streamed(completions.chunks(row, with_usage=asked.with_usage), with_names=False)
        completion, status = await completions.finished(row)
        return json_response(completion, status)

    def _published(self, agents: Sequence[type[Agent[Any]]]) -> Mapping[str, type[Agent[Any]]]:
        if self._models is None:
            return {kebab(known(one).type): one for one in agents if _is_chat(one)}
        return self._models

    def _model_of(self, exchange: Exchange) -> str:
        """Return the name by which the class of an agent is published."""
        type_ = exchange.address.type
        if self._models is None:
            return kebab(type_)
        name = next((name for name, cls in self._models.items() if known(cls).type == type_), None)
        if name is None:
            raise ApiError(f"{kebab(type_)} is not a published model.", code="model_not_found", status=404)
        return name

    def _checked_model(self, exchange: Exchange, model: str) -> str:
        """Return the model of a request, if the agent is of its class."""
        type_ = exchange.address.type
        names = (
            [kebab(type_)]
            if self._models is None
            else [name for name, cls in self._models.items() if known(cls).type == type_]
        )
        if model not in names:
            raise _no_model(model, names)
        return model


def _is_chat(cls: type) -> bool:
    from sapwood.chat.agent import ChatAgent

    return issubclass(cls, ChatAgent)


def _check_method(method: str, wanted: str) -> None:
    if method != wanted:
        raise ApiError(f"Method {method} is not allowed here. Send {wanted}.", status=405)


def _unknown(request: Request) -> ApiError:
    return ApiError(f"Unknown request URL: {request.method} {request.scope['path'][:200]}.", status=404)


def _no_model(model: str, names: Sequence[str]) -> ApiError:
    text = f"The model '{model[:80]}' does not exist. Models here: {', '.join(names)}."
    return ApiError(text, param="model", code="model_not_found", status=404)


def _listed(models: Mapping[str, type[Agent[Any]]], name: str) -> Response:
    found = [{"id": one, "object": "model", "created": 0, "owned_by": "sapwood"} for one in models]
    if not name:
        return json_response({"object": "list", "data": found})
    if name not in models:
        raise _no_model(name, [*models])
    return json_response(next(one for one in found if one["id"] == name))


def _place(
    models: Mapping[str, type[Agent[Any]]],
    model: str,
    found: AgentId | None,
    path: str,
    user: str | None,
    key: str | None,
) -> Place:
    """Return the agent that a request is for: the one it names, or a new one."""
    cls = models.get(model)
    if cls is None:
        raise _no_model(model, [*models])
    if found is None:  # a repeated request finds the agent that the first one has made
        return Place(cls, None if key is None else derived("agent", user, model, key), path)
    if found.type not in ("", known(cls).type):
        raise invalid("model", f"the conversation is one of another model, not of {model[:80]}.")
    return Place(cls, found.name, path)


def _key(request: Request) -> str | None:
    key = request.headers.get(KEY)
    if key is not None and not 0 < len(key) <= LONGEST_KEY:
        raise invalid(KEY, f"expected at most {LONGEST_KEY} characters.")
    return key


def _read_query(request: Request) -> tuple[int, bool]:
    """Return after which event a response is streamed, and whether it is streamed at all."""
    given = request.query_params
    known = {"stream", "starting_after", "include_obfuscation"}
    for name, value in given.items():
        if name not in known or (name == "include_obfuscation" and value != "false"):
            raise ApiError(f"Unsupported parameter: `{name[:80]}`.", param=name[:80], code="unsupported_parameter")
    stream, after = given.get("stream", "false"), given.get("starting_after")
    if stream not in ("true", "false"):
        raise invalid("stream", "expected true or false.")
    if after is None:
        return -1, stream == "true"
    if stream != "true":
        raise invalid("starting_after", "it needs stream=true.")
    if not after.isascii() or not after.isdigit() or len(after) > 12:
        raise invalid("starting_after", "expected the sequence_number of an event.")
    return int(after), True


def _conversation_of(request: Request) -> str | None:
    """Return the conversation that the headers of a request name."""
    return next((id for name in CONVERSATION_HEADERS if (id := request.headers.get(name))), None)


def _streamed(events: AsyncGenerator[Json | None, None], *, with_names: bool = True) -> Response:
    from starlette.responses import StreamingResponse

    async def frames() -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            async for event in events:
                if event is None:
                    yield b": keep-alive\n\n"
                else:
                    name = b"event: " + event["type"].encode() + b"\n" if with_names else b""
                    yield name + b"data: " + msgspec.json.encode(event) + b"\n\n"
        if not with_names:
            yield b"data: [DONE]\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream", headers=STREAM)
