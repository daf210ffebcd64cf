"""What a Stop closes: the connection that a request has to itself, as long as it has it."""

from __future__ import annotations

import socket
from collections.abc import Generator
from typing import Any

import pytest

from sapwood.chat.models.provider_sockets import ProviderSocket
from sapwood.kernel.histogram import Histogram
from sapwood.runs.execution.cancellation_latency import Stop


class Stream:
    """A connection, as HTTP clients hand it out."""

    def __init__(self, under: socket.socket, protocol: str | None = None) -> None:
        self._under = under
        self._protocol = protocol

    def get_extra_info(self, what: str) -> Any:
        if what == "ssl_object":
            return self if self._protocol else None
        return self._under

    def selected_alpn_protocol(self) -> str | None:
        return self._protocol


@pytest.fixture
def ends() -> Generator[tuple[socket.socket, socket.socket], None, None]:
    """Return both ends of a connection: ours, and the other side's, which never waits."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def is_closed(theirs: socket.socket) -> bool:
    try:
        return theirs.recv(1) == b""
    except BlockingIOError:
        return False


Ends = tuple[socket.socket, socket.socket]


def test_a_connection_that_a_request_has_is_closed_at_once(ends: Ends) -> None:
    wire, timing = ProviderSocket(), Histogram()
    stop = Stop(timing)
    with wire.used():
        wire.hold(1, Stream(ends[0]))

        wire.cut(stop)

        assert is_closed(ends[1])
        stop.ended()
        assert sum(timing.counts) == 1


def test_one_that_was_handed_back_is_left_alone_and_the_end_of_the_request_counts(ends: Ends) -> None:
    wire, timing = ProviderSocket(), Histogram()
    stop = Stop(timing)
    with wire.used():
        wire.hold(1, Stream(ends[0]))
        wire.release(1)

        wire.cut(stop)
        stop.ended()

        assert not is_closed(ends[1])
        assert sum(timing.counts) == 0
    assert sum(timing.counts) == 1


def test_one_that_many_requests_share_is_left_alone(ends: Ends) -> None:
    wire = ProviderSocket()
    with wire.used():
        wire.hold(1, Stream(ends[0], "h2"))

        wire.cut(None)

        assert not is_closed(ends[1])


def test_one_that_opens_after_the_stop_is_closed_as_it_opens(ends: Ends) -> None:
    wire = ProviderSocket()
    with wire.used():
        wire.cut(None)

        wire.hold(1, Stream(ends[0]))

        assert is_closed(ends[1])


def test_one_that_is_closed_already_does_no_harm(ends: Ends) -> None:
    wire = ProviderSocket()
    with wire.used():
        wire.hold(1, Stream(ends[0]))
        ends[0].close()

        wire.cut(None)


def test_a_stop_that_stops_no_request_is_not_timed() -> None:
    timing = Histogram()

    Stop(timing).ended()

    assert sum(timing.counts) == 0


def test_buckets_count_all_that_took_no_longer() -> None:
    timing = Histogram()
    for seconds in (0.0005, 0.02, 20.0):
        timing.note(seconds)

    buckets = dict(timing.buckets())

    assert (buckets["0.001"], buckets["0.025"], buckets["10.0"], buckets["+Inf"]) == (1, 2, 2, 3)
