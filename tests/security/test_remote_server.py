"""Another server that a run is given to, and that means harm: what it sends costs what it weighs, and no more."""

from __future__ import annotations

import time

import pytest

from sapwood.wire import remote

PIECE = 64 * 1024


def event(size: int) -> bytes:
    return remote.RunEvent("chunk", b'"' + b"x" * size + b'"', 1).encoded()


def pieces(data: bytes, size: int = PIECE) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def cpu(data: list[bytes]) -> float:
    """Return the CPU time that reading takes, the least of three."""
    times: list[float] = []
    for _ in range(3):
        reader, began = remote.EventStreamReader(), time.process_time()
        for piece in data:
            reader.read(piece)
        times.append(time.process_time() - began)
    return min(times)


@pytest.mark.slow
def test_an_event_is_read_in_linear_time() -> None:
    small, large = pieces(event(2_000_000), 1024), pieces(event(32_000_000), 1024)
    assert cpu(large) < 60 * max(cpu(small), 0.001)  # quadratic: 256 times


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_events_are_the_same_however_they_are_cut(size: int) -> None:
    told = [remote.RunEvent("chunk", b'"%d"' % number, number) for number in range(1, 20)]
    data, reader = b"".join(one.encoded() for one in told), remote.EventStreamReader()
    assert [one for piece in pieces(data, size) for one in reader.read(piece)] == told


def test_an_event_without_end_is_refused_at_its_limit() -> None:
    reader = remote.EventStreamReader(longest=1000)
    reader.read(b"data: " + b"x" * 900)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        reader.read(b"x" * 200)


@pytest.mark.parametrize("deep", [b"[" * 1000 + b"]" * 1000, b"[" * 100_000])
def test_a_deep_event_is_refused(deep: bytes) -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        remote.EventStreamReader().read(remote.RunEvent("quiet", deep).encoded())
