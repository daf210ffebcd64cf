"""The connections over which models answer now: a Stop closes them before any stack unwinds.

Cancelling a request unwinds everything that waits for it, and only then closes its
connection: milliseconds each, one after the other. A wire knows the socket of a request
while the request has it to itself, and closes it in microseconds. Where it knows none, for
a model that is no HTTP client's or a connection that others share, cancelling does it all.

It also knows what each request sends, byte for byte: the record of the step takes it from here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sapwood.runs.execution.cancellation_latency import Stop

NEW = ("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")
"""What HTTP clients call it when there is a connection that was not there before."""

_current: ContextVar[ProviderSocket | None] = ContextVar("sapwood_wire", default=None)


class ProviderSocket:
    """The sockets that one request to a model has to itself: one, but for redirects and fallbacks."""

    def __init__(self, sent: Callable[[str, bytes], None] | None = None) -> None:
        self.sent = sent
        """Told the URL and the body of each request that is made."""
        self._sockets: dict[int, Any] = {}
        """By the HTTP request that uses it."""
        self._cut = False
        self._stop: Stop | None = None
        """Who waits for the end of the request, if its connection could not be closed at once."""

    @contextmanager
    def used(self) -> Generator[None, None, None]:
        """Know the connections of the requests that are made in this block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            self._sockets.clear()
            if self._stop is not None:
                self._stop.ended()

    def cut(self, stop: Stop | None) -> None:
        """Close what is open, at once, and what opens later."""
        if self._cut:
            return
        self._cut = True
        is_closed = self._close()
        if stop is not None:
            stop.begun()
            if is_closed:
                stop.ended()
            else:
                self._stop = stop

    def _close(self) -> bool:
        """Close what is open; return whether anything was."""
        found = [_shut(one) for one in self._sockets.values()]
        self._sockets.clear()
        return any(found)

    def hold(self, request: int, stream: Any) -> None:
        """A request has this connection to itself from now on."""
        if stream is None or _is_shared(stream):
            self.release(request)
            return
        self._sockets[request] = stream.get_extra_info("socket")
        if self._cut:
            self._close()

    def release(self, request: int) -> None:
        """Release a request's connection, so that another request may use it."""
        self._sockets.pop(request, None)


def _is_shared(stream: Any) -> bool:
    """Return whether a connection carries many requests at once."""
    secured = stream.get_extra_info("ssl_object")
    return secured is not None and secured.selected_alpn_protocol() == "h2"


def _shut(one: Any) -> bool:
    """Close a connection under those who use it: they, and the other side, learn that it has ended."""
    if one is None or (number := one.fileno()) < 0:
        return False
    # What loops hand out as a socket cannot always be shut down; a second handle of it can.
    try:
        with socket.fromfd(number, one.family, one.type, one.proto) as twin:
            twin.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    return True


def watch(model: Any) -> None:
    """Have the HTTP clients of a model tell which connections they use, as far as they can."""
    for client in _clients(model):
        hooks = client.event_hooks
        if _asks not in hooks["request"]:
            hooks["request"].append(_asks)
            hooks["response"].append(_answered)


def _clients(model: Any) -> Iterator[Any]:
    """Yield the HTTP clients of a model: those its provider has made, and those it was given."""
    if (wrapped := getattr(model, "wrapped", None)) is not None:
        yield from _clients(wrapped)
    for one in getattr(model, "models", None) or ():
        yield from _clients(one)
    client = getattr(model, "client", None)
    made = getattr(getattr(model, "provider", None), "_own_http_client", None)
    for one in (client, getattr(client, "_client", None), made):
        hooks = getattr(one, "event_hooks", None)
        if isinstance(hooks, dict) and "request" in hooks and "response" in hooks:
            yield one


async def _asks(request: Any) -> None:
    """Called by a client before a request."""
    wire = _current.get()
    if wire is None:
        return
    if wire.sent is not None and (body := getattr(request, "_content", None)) is not None:
        wire.sent(str(request.url.copy_with(query=None, fragment=None, username="", password="")), body)
    before = request.extensions.get("trace")

    async def trace(event: str, info: dict[str, Any]) -> None:
        if before is not None:
            await before(event, info)
        if event.endswith(NEW):
            wire.hold(id(request), info["return_value"])
        elif event.startswith("http2.") or event == "http11.response_closed.started":
            wire.release(id(request))

    request.extensions = {**request.extensions, "trace": trace}


async def _answered(response: Any) -> None:
    """Called by a client when an answer begins: a connection that was there before is known only now."""
    wire = _current.get()
    if wire is not None and response.extensions.get("http_version") != b"HTTP/2":
        wire.hold(id(response.request), response.extensions.get("network_stream"))
