"""uvicorn's HTTP connections, with a deadline for everything that a client has to do.

A client has to send its request headers in time, its body at a minimum rate, and to read what it is sent. Without
deadlines, a client that does none of this holds a descriptor indefinitely, before it is authenticated.
"""

from __future__ import annotations

import contextlib
import os
from asyncio import BaseTransport, TimerHandle, Transport
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from sapwood.timings import Timings
from sapwood.web.connection_limits import ADDRESS, ConnectionLimits, IdleConnection
from sapwood.web.server import WebSockets, reset

RETRY_AFTER = 1


class HttpConnection(H11Protocol):
    """One connection; for `uvicorn.Config(http=…)`, as a partial with `limits` and `timings`."""

    received_before = b""
    """What another process has received of its first request; see `detach`."""

    def __init__(self, *args: Any, limits: ConnectionLimits, timings: Timings, **more: Any) -> None:
        super().__init__(*args, **more)
        self._limits = limits
        self._timings = timings
        self._key: str | None = None
        """What it is counted under; `None` if it was refused or is counted no more."""
        self._deadline: TimerHandle | None = None
        self._deadline_state: Any = None
        """What the client has to do until the deadline: h11's IDLE (send headers) or SEND_BODY."""
        self._body_began = 0.0
        self._body_bytes = 0
        self._stall: TimerHandle | None = None
        self._unwritten = 0

    def connection_made(self, transport: BaseTransport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(cast("Transport", transport))
        self._key, limit = self._limits.enter(self.client[0] if self.client else "")
        if self._key is None:
            self._refuse(429 if limit == ADDRESS else 503)
        else:
            self._update_deadline()
            if self.received_before:
                self.data_received(self.received_before)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._body_bytes += len(data)
        super().data_received(data)
        self._update_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_close()
        self._update_deadline()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._clear_deadline()
        self._limits.busy(self)
        super().handle_websocket_upgrade(event)
        upgraded = self.transport.get_protocol()
        assert isinstance(upgraded, WebSockets)
        upgraded.on_lost = lambda: self._leave(upgraded)
        upgraded.on_closing = lambda: self._wait_closing(upgraded)
        if not upgraded.handshake_initiated:
            # h11 took the request and websockets does not: uvicorn would neither answer nor close.
            response = b"".join(upgraded.conn.data_to_send())
            self.transport.write(response or BAD_REQUEST)
            self.transport.close()
            self._watch_close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        if self._stall is not None:
            self._stall.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it if the connection was reset
        self._leave(self)

    def close_waiting(self) -> None:
        """Make room for another connection: this one waits for a request."""
        self._clear_deadline()
        reset(self.transport)

    def detach(self) -> tuple[int, bytes] | None:
        """Give up the connection, and leave it open for another process. `None` if that is not possible now.

        It is not while a request is being answered.

        Returns its open file, and what the client has sent of the next request.
        """
        received, has_ended = self.conn.trailing_data
        is_waiting = self.conn.their_state is h11.IDLE and self._unanswered() is None
        if not is_waiting or has_ended or self.transport.is_closing() or self.transport.get_write_buffer_size():
            return None
        try:
            descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
        except OSError:  # too many are open, until those that were given up before are closed
            return None
        self._clear_deadline()
        self.transport.abort()  # only here: the other process has it open
        return descriptor, received

    def _leave(self, connection: IdleConnection) -> None:
        if self._key is not None:
            self._limits.leave(connection, self._key)
            self._key = None

    def _wait_closing(self, upgraded: WebSockets) -> None:
        if self._key is not None:
            self._limits.wait(upgraded, self._key)

    # Deadlines for what the client sends

    def _update_deadline(self) -> None:
        if self._key is None or isinstance(self.transport.get_protocol(), WebSockets):
            return
        state = self.conn.their_state
        if state is h11.IDLE and not self.transport.is_closing():
            self._limits.wait(self, self._key)
        else:
            self._limits.busy(self)
        if state not in (h11.IDLE, h11.SEND_BODY) or self.transport.is_closing():
            self._clear_deadline()
        elif state is not self._deadline_state:
            self._clear_deadline()
            self._deadline_state = state
            # What came with the headers counts too; the app has not taken any of it yet.
            self._body_began = self.loop.time()
            self._body_bytes = len(self.cycle.body) if state is h11.SEND_BODY else 0
            timings = self._timings
            seconds = timings.request_header_timeout if state is h11.IDLE else timings.request_body_timeout
            self._deadline = self.loop.call_later(seconds, self._check_deadline)

    def _check_deadline(self) -> None:
        self._deadline = None
        if self._deadline_state is h11.SEND_BODY:
            now = self.loop.time()
            if self.flow.read_paused or self.cycle.waiting_for_100_continue:  # the app has not asked for more
                self._body_began, self._body_bytes = now, 0
            due = self._body_began + self._timings.request_body_timeout
            due += self._body_bytes / self._timings.request_body_rate
            if due > now:
                self._deadline = self.loop.call_later(due - now, self._check_deadline)
                return
        self._deadline_state = None
        if self._is_untouched():
            reset(self.transport)
        else:
            self._refuse(408)

    def _is_untouched(self) -> bool:
        """Return whether no request has begun: a client that sent nothing expects no response."""
        return self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

    def _clear_deadline(self) -> None:
        self._deadline_state = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Ends

    def _refuse(self, status: int) -> None:
        """Answer with an error, unless another response is under way, and close."""
        if (cycle := self._unanswered()) is None or not cycle.response_started:
            self.transport.write(
                b"HTTP/1.1 %d %s\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: %d\r\n\r\n"
                % (status, PHRASES[status], RETRY_AFTER)
            )
        self._end_cycle()
        self.transport.close()
        self._watch_close()

    def _end_cycle(self) -> None:
        """Let the app read and send no more."""
        if (cycle := self._unanswered()) is not None:
            cycle.disconnected = True
            cycle.message_event.set()

    def _unanswered(self) -> RequestResponseCycle | None:
        """Return the request that is under way, if there is one."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return None if cycle is None or cycle.response_complete else cycle

    def send_400_response(self, msg: str) -> None:
        # What is under way ends: an app that answered now would raise h11's error about the state of the connection.
        cycle = self._unanswered()
        self._end_cycle()
        if cycle is None or not cycle.response_started:
            with contextlib.suppress(h11.LocalProtocolError):
                super().send_400_response(msg)
        self.transport.close()
        self._watch_close()

    def timeout_keep_alive_handler(self) -> None:
        with contextlib.suppress(h11.LocalProtocolError):
            super().timeout_keep_alive_handler()
        self.transport.close()
        self._watch_close()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.transport.close()
        self._watch_close()

    # Clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writes()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None and not self.transport.is_closing():
            self._stall.cancel()
            self._stall = None

    def _watch_close(self) -> None:
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self._watch_writes()

    def _watch_writes(self) -> None:
        if self._stall is None:
            self._unwritten = self.transport.get_write_buffer_size()
            self._stall = self.loop.call_later(self._timings.response_stall_timeout, self._check_writes)

    def _check_writes(self) -> None:
        self._stall = None
        left = self.transport.get_write_buffer_size()
        if left >= self._unwritten:
            reset(self.transport)
        elif left:
            self._watch_writes()


BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
PHRASES = {408: b"Request Timeout", 429: b"Too Many Requests", 503: b"Service Unavailable"}
