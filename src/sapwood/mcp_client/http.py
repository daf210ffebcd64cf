"""Requests to one MCP server over HTTP: both kinds of revisions, with limits of size and time.

A connection lasts for one exchange. So there is no session that can be dead, and nothing to restore after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urljoin

import msgspec

from sapwood.capabilities.mcp_servers import without_secrets
from sapwood.errors import InvalidResult, Refused, Unavailable, UsageError
from sapwood.mcp_client.headers import NAMED, encoded
from sapwood.mcp_client.outcomes import NotSent, RpcFailed, Unauthorized
from sapwood.mcp_client.text import cleaned, line_of, seconds_of, texts_in
from sapwood.wire.frames import read_json

if TYPE_CHECKING:
    import httpx2

    from sapwood.client.public_hosts import HostRules

MODERN, LEGACY = "2026-07-28", "2025-11-25"
KNOWN = frozenset({LEGACY, "2025-06-18", "2025-03-26", "2024-11-05"})
"""The revisions with a handshake that are spoken."""
META = "io.modelcontextprotocol"
TASKS = f"{META}/tasks"
UNSUPPORTED_VERSION, METHOD_NOT_FOUND = -32022, -32601
RECONNECTS = 5
"""How often a stream is continued that ended before its answer."""
RECONNECT_AFTER, LONGEST_RECONNECT = 1.0, 30.0
MOST_REQUESTS = 1000
"""Requests of a server that are answered in one exchange."""
GOODBYE = 2.0
"""Seconds for the end of a session."""
OPENING = 2.0
"""Seconds to wait at most until a stream of a server is open."""
EVENT_BYTES, STREAM_BYTES = 4 * 1024 * 1024, 64 * 1024 * 1024
"""Of one event, and of all events of one response: a call that lasts long may report much progress."""
SHOWN = 300
"""Characters of a server's message that an error repeats."""

Asked = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers what a server asks while a call runs: its method and parameters."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server is, and how it may be called."""

    url: str
    headers: Mapping[str, str]
    """Sent only to this server, never to one that it redirects to."""
    rules: HostRules
    timeout: float
    """Seconds of the whole exchange."""
    first_id: int = 0
    """The ids of the requests follow this number: a call that is sent again after a question has another id."""


class McpHttp:
    """One exchange with a server. Use it as an async context manager."""

    def __init__(self, endpoint: Endpoint, asked: Asked | None = None) -> None:
        self._endpoint = endpoint
        self._asked = asked
        self._client: httpx2.AsyncClient | None = None
        self._session: str | None = None
        self._number = endpoint.first_id
        self._heard_requests = 0
        self.protocol: str | None = None
        """The revision that both speak."""
        self.about: dict[str, Any] = {}
        """What the server says of itself."""

    async def __aenter__(self) -> Self:
        self._client = await client_for(self._endpoint)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._client is not None
        try:
            if self._session is not None and error[0] is None:
                with suppress(Exception):  # a courtesy, after which the result is still wanted
                    async with asyncio.timeout(GOODBYE):
                        await self._client.delete(self._endpoint.url, headers=self._headers())
        finally:
            await self._client.aclose()

    async def open(self, protocol: str | None = None) -> None:
        """Agree on a revision: on the one that the server is known to speak, or on one that it names."""
        if protocol == MODERN:
            self.protocol = MODERN
        elif protocol is None:
            await self._discover()
        if self.protocol is None:
            await self._shake_hands()

    async def _discover(self) -> None:
        self.protocol = MODERN
        try:
            about = await self._about()
        except RpcFailed as error:
            if error.number == UNSUPPORTED_VERSION and not _names(error.data, KNOWN):
                raise
            self.protocol = None
            return
        versions = about.get("supportedVersions")
        self.protocol = MODERN if isinstance(versions, list) and MODERN in versions else None
        self.about = about if self.protocol else {}

    async def _about(self) -> dict[str, Any]:
        """Return what a server says of itself. One that refuses a revision which it names is asked once more."""
        try:
            return await self.request("server/discover", {})
        except RpcFailed as error:
            if error.number != UNSUPPORTED_VERSION or not _names(error.data, {MODERN}) or _names(error.data, KNOWN):
                raise
            return await self.request("server/discover", {})

    async def _shake_hands(self) -> None:
        params = {"protocolVersion": LEGACY, "capabilities": self._capabilities(), "clientInfo": _info()}
        about = await self.request("initialize", params)
        chosen = about.get("protocolVersion")
        if not isinstance(chosen, str) or chosen not in KNOWN:
            raise Refused(f"The server wants revision {cleaned(chosen, 40)!r} of MCP, which is not known here.")
        self.protocol, self.about = chosen, about
        await self._notify("notifications/initialized")

    def _capabilities(self) -> dict[str, Any]:
        forms: dict[str, Any] = {} if self._asked is None else {"elicitation": {"form": {}}}
        return {**forms, "extensions": {TASKS: {}}} if self.protocol == MODERN else forms

    async def request(
        self, method: str, params: Mapping[str, Any], more_headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the result of a request. Raises `RpcFailed` if the server answers with an error."""
        self._number += 1
        params, headers = dict(params), self._headers()
        if self.protocol == MODERN:
            meta = {
                f"{META}/protocolVersion": MODERN,
                f"{META}/clientInfo": _info(),
                f"{META}/clientCapabilities": self._capabilities(),
            }
            params["_meta"] = {**params.get("_meta", {}), **meta}
            headers["mcp-method"] = method
            if (name := NAMED.get(method)) is not None:
                headers["mcp-name"] = encoded(params[name])
            headers.update(more_headers or {})
        body = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        async with self._listening(method):
            answer = await self._answer(body, headers)
        error = answer.get("error")
        if isinstance(error, dict):
            told = cast("dict[str, Any]", error)
            number = told.get("code")
            text = line_of(told.get("message"), SHOWN) or "no reason was given"
            raise RpcFailed(number if isinstance(number, int) else 0, f"The server refused: {text}", told.get("data"))
        result = answer.get("result")
        if not isinstance(result, dict):
            raise InvalidResult("The server sent a response without a result.")
        return cast("dict[str, Any]", result)

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self._session is not None:
            headers["mcp-session-id"] = self._session
        if self.protocol is not None:
            headers["mcp-protocol-version"] = self.protocol
        return headers

    async def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """Send a request and return the message that answers it."""
        import httpx2

        self._is_taken = False
        try:
            return await self._first_answer(body, headers)
        except (Unauthorized, httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            if not self._is_taken:
                raise
            # Not as it is, which would mean that the request may be sent again.
            raise Unavailable(f"The server was lost before its answer: {type(error).__name__}.") from None

    async def _first_answer(self, body: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        last_event, wait = "", RECONNECT_AFTER
        for attempt in range(RECONNECTS + 1):
            if attempt:
                await asyncio.sleep(wait)
            again = {**self._headers(), "last-event-id": last_event} if attempt else None
            async with self._sent("GET" if again else "POST", again or headers, None if again else body) as response:
                self._is_taken = True
                if body["method"] == "initialize":
                    self._session = response.headers.get("mcp-session-id")
                kind = response.headers.get("content-type", "").lower()
                if kind.startswith("application/json"):
                    return _message(await response.aread())
                if not kind.startswith("text/event-stream"):
                    raise InvalidResult(
                        f"The server answered with {cleaned(kind, 60) or 'no content'!r}, not with JSON."
                    )
                async for event in _events(response):
                    last_event = event.id or last_event
                    wait = seconds_of(event.retry, 0.0, LONGEST_RECONNECT, wait)
                    if event.event != "message" or not event.data:
                        continue
                    message = _message(event.data)
                    if _is_answer(message, body):
                        return message
                    await self._heard(message)
            if not last_event:
                break
        raise Unavailable("The server ended the response before the answer.")

    @asynccontextmanager
    async def _listening(self, method: str) -> AsyncGenerator[None]:
        """Answer what a server with a session asks beside the response, while a tool is called."""
        if method != "tools/call" or self._session is None or self._asked is None:
            yield
            return
        is_open = asyncio.Event()
        listening = asyncio.create_task(self._listen(is_open))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(OPENING):
                    await is_open.wait()  # what a server asks before is lost
            yield
        finally:
            listening.cancel()
            await asyncio.wait({listening})

    async def _listen(self, is_open: asyncio.Event) -> None:
        """Hear what a server sends of its own accord. Many servers send nothing, and refuse this request."""
        import httpx2

        with suppress(Refused, Unavailable, InvalidResult, Unauthorized, ValueError, httpx2.HTTPError):
            try:
                async with self._sent("GET", self._headers(), None) as response:
                    is_open.set()
                    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                        async for event in _events(response):
                            if event.event == "message" and event.data:
                                await self._heard(_message(event.data))
            finally:
                is_open.set()

    async def _heard(self, message: dict[str, Any]) -> None:
        """Answer a request of the server, which those of revisions with a handshake may make."""
        import httpx2

        id, method, params = message.get("id"), message.get("method"), message.get("params")
        if id is None or not isinstance(method, str):
            return
        self._heard_requests += 1
        if self._heard_requests > MOST_REQUESTS:
            raise Refused(f"The server sent more than {MOST_REQUESTS} requests during one of ours.")
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        if method == "ping":
            answer["result"] = {}
        elif method == "elicitation/create" and self._asked is not None and isinstance(params, dict):
            answer["result"] = await self._asked(method, cast("dict[str, Any]", params))
        else:
            answer["error"] = {"code": METHOD_NOT_FOUND, "message": "This client does not offer it."}
        with suppress(Refused, Unavailable, Unauthorized, httpx2.HTTPError):  # what was called may still be answered
            async with self._sent("POST", self._headers(), answer):
                pass

    async def _notify(self, method: str) -> None:
        async with self._sent("POST", self._headers(), {"jsonrpc": "2.0", "method": method}):
            pass

    @asynccontextmanager
    async def _sent(
        self, method: str, headers: dict[str, str], body: dict[str, Any] | None
    ) -> AsyncGenerator[httpx2.Response]:
        assert self._client is not None
        content = None if body is None else msgspec.json.encode(body)
        url = self._endpoint.url
        for redirected in (False, True):
            async with self._client.stream(method, url, headers=headers, content=content) as response:
                if response.is_redirect and (to := _same_origin(url, response)) is not None and not redirected:
                    url = to
                    continue
                if response.is_redirect:
                    where = without_secrets(urljoin(url, response.headers.get("location", "")))
                    raise Refused(
                        f"The server redirects to {cleaned(where, SHOWN)!r}. Add it with that URL if it is the right "
                        "one."
                    )
                await _check_status(response, body)
                yield response
                return


async def _check_status(response: httpx2.Response, body: dict[str, Any] | None) -> None:
    """Raise what a status means; one with an error of JSON-RPC in its body is an answer."""
    if response.status_code < 400:
        return
    challenge = response.headers.get("www-authenticate", "")
    if response.status_code == 401 or (response.status_code == 403 and "insufficient_scope" in challenge):
        raise Unauthorized(response.status_code, challenge)
    text = ""
    if response.headers.get("content-type", "").lower().startswith("application/json"):
        with suppress(msgspec.MsgspecError, InvalidResult):
            found = _message(await response.aread())
            if body is not None and isinstance(found.get("error"), dict):
                error = cast("dict[str, Any]", found["error"])
                code, text = error.get("code"), line_of(error.get("message"), SHOWN)
                if isinstance(code, int):
                    raise RpcFailed(code, f"The server refused: {text}", error.get("data"))
    if response.status_code in (404, 405) and body is not None and body.get("method") == "server/discover":
        raise RpcFailed(METHOD_NOT_FOUND, "The server does not know this request.")
    if response.status_code in (400, 404, 405, 415, 422) and body is not None:
        raise RpcFailed(0, f"The server answered {response.status_code}.")
    raise Unavailable(f"The server answered {response.status_code}.")


async def client_for(endpoint: Endpoint) -> httpx2.AsyncClient:
    """Return an HTTP client that connects only to hosts that may be called."""
    try:
        import httpx2

        from sapwood.client.checked_transport import CheckedTransport, ResponseLimits, trusted
    except ImportError:
        raise UsageError("MCP servers require httpx2. Run: pip install 'sapwood[mcp]'.") from None
    certificates = await asyncio.to_thread(trusted)  # it takes a while, the first time
    transport = CheckedTransport(
        endpoint.rules,
        ResponseLimits(EVENT_BYTES, endpoint.timeout),
        origin=endpoint.url,
        secrets=endpoint.headers,
        verify=certificates,
    )
    return httpx2.AsyncClient(transport=transport, timeout=endpoint.timeout, follow_redirects=False)


@asynccontextmanager
async def in_words(host: str, timeout: float) -> AsyncGenerator[None]:
    """Raise what goes wrong in a block in words of ours, and end it after some seconds."""
    import httpx2

    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise NotSent(f"{host} cannot be reached: {type(error).__name__}.") from None
    except httpx2.TimeoutException:
        raise Unavailable(f"{host} did not answer in time.") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unavailable(f"{host} cannot be reached: {type(error).__name__}.") from None
    except (InvalidResult, msgspec.MsgspecError, ValueError) as error:
        raise Refused(f"{host} does not speak MCP as expected: {line_of(str(error), SHOWN)}") from None
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unavailable(f"{host} did not answer within {timeout:g} seconds.") from None


def _message(text: bytes | str) -> dict[str, Any]:
    message = read_json(text, object)
    if not isinstance(message, dict):
        raise InvalidResult("The server sent a message that is no JSON object.")
    return cast("dict[str, Any]", message)


def _is_answer(message: dict[str, Any], body: dict[str, Any]) -> bool:
    """Return whether a message answers a request: its id is the same number, and no `true` or `1.0`."""
    id = message.get("id")
    return type(id) is int and id == body["id"] and "method" not in message


async def _events(response: httpx2.Response) -> AsyncGenerator[httpx2.ServerSentEvent]:
    """Yield the events of a stream; one that breaks off just ends."""
    import httpx2

    size = 0
    try:
        async for event in httpx2.EventSource(response, max_event_size=EVENT_BYTES):
            size += len(event.data)
            if size > STREAM_BYTES:
                raise InvalidResult(f"The server sent more than {STREAM_BYTES:,} bytes of events in one response.")
            yield event
    except (httpx2.ReadError, httpx2.RemoteProtocolError):
        return


def _same_origin(url: str, response: httpx2.Response) -> str | None:
    """Return where a response leads to, if that is the same server and the request may be repeated there."""
    import httpx2

    at = httpx2.URL(url)
    to = at.join(response.headers.get("location", ""))
    is_same = (to.scheme, to.host, to.port) == (at.scheme, at.host, at.port)
    return str(to) if is_same and response.status_code in (307, 308) else None


def _names(data: Any, revisions: Container[str]) -> bool:
    """Return whether a server names one of these revisions as one that it speaks, or does not say what it speaks."""
    supported: Any = cast("dict[str, Any]", data).get("supported") if isinstance(data, dict) else None
    return not isinstance(supported, list) or any(one in revisions for one in texts_in(cast("object", supported)))


def _info() -> dict[str, str]:
    return {"name": "sapwood", "version": version_of("sapwood")}
