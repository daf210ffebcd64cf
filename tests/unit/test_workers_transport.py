"""Exchanges between two workers: in order, never more than is taken, and over as soon as one side is gone."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.machine import patience

from sapwood.errors import Crashed, OverLimit, Unavailable
from sapwood.kernel.marshal.exceptions import crossing
from sapwood.kernel.ports.transport import Exchange
from sapwood.runtimes.workers.frames import HEAD, FrameReader, Gap, Kind, framed
from sapwood.runtimes.workers.link import WINDOW, Link
from sapwood.runtimes.workers.placement import ShardPlan
from sapwood.runtimes.workers.supervisor import InheritedFile, Seat
from sapwood.runtimes.workers.transport import UnixTransport
from sapwood.timings import DEFAULTS, Timings


class Pair:
    """Two workers on one loop: `one` asks, `two` answers."""

    def __init__(self, folder: Path, *, secrets: tuple[str, str] = ("s", "s"), timings: Timings = DEFAULTS) -> None:
        paths = {"1": folder / "1", "2": folder / "2"}
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(paths["2"]))
        self.listening.listen()
        self._paths, self._secrets = paths, secrets
        self.one = UnixTransport("1", paths, secrets[0], timings=timings)
        self.two = self.another()

    def another(self) -> UnixTransport:
        """Return a worker that takes the place of the second."""
        return UnixTransport("2", self._paths, self._secrets[1])


@asynccontextmanager
async def pair(folder: Path, answer: Callable[[bytes, Exchange], None] | None = None) -> AsyncGenerator[Pair, None]:
    made = Pair(folder)
    made.two.answer("ask", answer or (lambda message, exchange: exchange.end(message)))
    await made.two.listen(made.listening.dup())
    try:
        yield made
    finally:
        await made.one.close()
        await made.two.close()
        made.listening.close()


async def some_turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_frames_are_read_however_they_were_cut() -> None:
    frames = [framed(number, 7, Kind.MESSAGE, bytes(number)) for number in range(1, 60)]
    stream = b"".join(frames)

    for size in (1, 3, 7, 64, len(stream)):
        reader = FrameReader()
        found = [frame for at in range(0, len(stream), size) for frame in reader.read(stream[at : at + size])]
        assert [len(content) for _, _, content in found] == list(range(1, 60))


@pytest.mark.slow
def test_a_long_frame_in_many_parts_is_put_together_once() -> None:
    frame = framed(1, 7, Kind.MESSAGE, bytes(64 * 1024 * 1024)) + framed(2, 7, Kind.END, b"")
    reader = FrameReader()
    began = time.process_time()

    found = [one for at in range(0, len(frame), 65536) for one in reader.read(frame[at : at + 65536])]

    assert [kind for _, kind, _ in found] == [Kind.MESSAGE, Kind.END]
    assert time.process_time() - began < 2, "what came is copied again and again"


def test_a_frame_that_is_missing_is_noticed() -> None:
    reader = FrameReader()
    list(reader.read(framed(1, 1, Kind.MESSAGE, b"")))

    with pytest.raises(Gap, match="Expected frame 2, got 3"):
        list(reader.read(framed(3, 1, Kind.MESSAGE, b"")))


@pytest.mark.parametrize("damaged", [b"\xff" * HEAD.size, bytes(HEAD.size), b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"])
def test_what_is_no_frame_is_refused(damaged: bytes) -> None:
    with pytest.raises(Gap):
        list(FrameReader().read(damaged))


async def test_what_is_asked_is_answered(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        exchanges = [await both.one.open("2", "ask", str(number).encode()) for number in range(300)]

        assert [await exchange.receive() for exchange in exchanges] == [str(n).encode() for n in range(300)]
        assert await exchanges[0].receive() is None


async def test_items_are_sent_only_as_they_are_taken(tmp_path: Path) -> None:
    sent: list[int] = []

    def answer(message: bytes, exchange: Exchange) -> None:
        async def send() -> None:
            for number in range(10):
                waiting = exchange.send(str(number).encode())
                sent.append(number)
                if waiting is not None:
                    await waiting
            exchange.end()

        tasks.add(asyncio.create_task(send()))

    tasks: set[asyncio.Task[None]] = set()
    async with pair(tmp_path, answer) as both:
        exchange = await both.one.open("2", "ask", b"", items=3)
        await some_turns()
        assert sent == [0, 1, 2]

        assert await exchange.receive() == b"0"
        await some_turns()
        assert sent == [0, 1, 2, 3]

        rest: list[bytes] = []
        while (item := await exchange.receive()) is not None:
            rest.append(item)
        assert rest == [str(number).encode() for number in range(1, 10)]


async def test_bytes_are_sent_only_as_they_are_taken(tmp_path: Path) -> None:
    taken: list[int] = []
    go = asyncio.Event()

    def answer(message: bytes, exchange: Exchange) -> None:
        async def take() -> None:
            await go.wait()
            while (part := await exchange.receive()) is not None:
                taken.append(len(part))
            exchange.end(b"all")

        tasks.add(asyncio.create_task(take()))

    tasks: set[asyncio.Task[None]] = set()
    async with pair(tmp_path, answer) as both:
        exchange = await both.one.open("2", "ask", b"")
        parts = 0
        while (waiting := exchange.send(bytes(10_000))) is None:
            parts += 1
        assert parts <= WINDOW // 10_000

        go.set()
        await waiting
        for _ in range(100):
            if (waiting := exchange.send(bytes(10_000))) is not None:
                await waiting
        exchange.end()
        assert await exchange.receive() == b"all"
        assert sum(taken) == (parts + 101) * 10_000


async def test_an_error_arrives_as_what_it_was(tmp_path: Path) -> None:
    def answer(message: bytes, exchange: Exchange) -> None:
        if message == b"ours":
            exchange.fail(OverLimit("Too much.", path=(), limit="tokens"))
            return
        try:
            int("x")
        except ValueError as error:
            error.add_note("noted")
            exchange.fail(crossing(error, (), 1000))

    async with pair(tmp_path, answer) as both:
        with pytest.raises(OverLimit, match=r"Too much\.") as ours:
            await (await both.one.open("2", "ask", b"ours")).receive()
        with pytest.raises(ValueError, match="invalid literal") as theirs:
            await (await both.one.open("2", "ask", b"theirs")).receive()

    assert ours.value.limit == "tokens"
    assert isinstance(theirs.value, Crashed)
    assert theirs.value.__notes__ == ["noted"]


@dataclass
class Declared:
    number: int


class Odd(Exception):
    """Says something about what it holds."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.about = Declared(text)  # pyright: ignore[reportArgumentType] - what it says is not what it is


class Unspeakable:
    """Cannot be told to anybody."""

    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_an_error_that_cannot_be_copied_whole_still_arrives_and_holds_up_nobody(tmp_path: Path) -> None:
    circle, noted = ValueError("its own cause"), ValueError("has a note")
    circle.__cause__ = circle
    noted.__notes__ = [Unspeakable()]  # pyright: ignore[reportAttributeAccessIssue] - nobody keeps them from it
    errors: dict[bytes, Exception] = {b"odd": Odd("odd"), b"circle": circle, b"noted": noted}
    waiting: list[Exchange] = []

    def answer(message: bytes, exchange: Exchange) -> None:
        if message in errors:
            exchange.fail(errors[message])
        else:
            waiting.append(exchange)

    async with pair(tmp_path, answer) as both, asyncio.timeout(patience()):
        beside = await both.one.open("2", "ask", b"wait")
        for message, error in errors.items():
            with pytest.raises(type(error) if message != b"noted" else Crashed, match=str(error)):
                await (await both.one.open("2", "ask", message)).receive()
        waiting[0].end(b"done")
        assert await beside.receive() == b"done"


async def test_whatever_goes_wrong_at_the_other_side_only_that_exchange_fails(tmp_path: Path) -> None:
    def answer(message: bytes, exchange: Exchange) -> None:
        if message == b"bad":
            raise ValueError("what is this?")
        exchange.end(message)

    async with pair(tmp_path, answer) as both:
        bad, good = await both.one.open("2", "ask", b"bad"), await both.one.open("2", "ask", b"good")

        with pytest.raises(Unavailable, match="what is this"):
            await bad.receive()
        assert await good.receive() == b"good"


async def test_to_stop_reaches_the_other_side_and_returns_when_it_has_ended(tmp_path: Path) -> None:
    log: list[str] = []

    def answer(message: bytes, exchange: Exchange) -> None:
        async def unwind() -> None:
            await some_turns()
            log.append("unwound")
            exchange.fail(Unavailable("stopped"))

        def stop() -> None:
            log.append("asked to")
            tasks.add(asyncio.create_task(unwind()))

        exchange.when_stopped(stop)

    tasks: set[asyncio.Task[None]] = set()
    async with pair(tmp_path, answer) as both:
        exchange = await both.one.open("2", "ask", b"")
        await exchange.stop()

        assert log == ["asked to", "unwound"]


async def test_whoever_is_listened_to_no_more_is_not_held_up(tmp_path: Path) -> None:
    ended = asyncio.Event()

    def answer(message: bytes, exchange: Exchange) -> None:
        async def send() -> None:
            for _ in range(100):
                if (waiting := exchange.send(bytes(WINDOW))) is not None:
                    await waiting
            exchange.end()
            ended.set()

        tasks.add(asyncio.create_task(send()))

    tasks: set[asyncio.Task[None]] = set()
    async with pair(tmp_path, answer) as both:
        exchange = await both.one.open("2", "ask", b"")
        exchange.drop()

        async with asyncio.timeout(patience()):
            await ended.wait()


async def test_when_a_worker_dies_whoever_waits_for_it_is_told(tmp_path: Path) -> None:
    stopped: list[bytes] = []

    def answer(message: bytes, exchange: Exchange) -> None:
        exchange.when_stopped(lambda: stopped.append(message))

    async with pair(tmp_path, answer) as both:
        asked = await both.one.open("2", "ask", b"first")
        await some_turns()
        await both.two.die()

        with pytest.raises(Unavailable, match="Worker 2 exited during the request"):
            await asked.receive()
        assert stopped == [b"first"]


async def test_a_worker_that_is_started_again_is_waited_for(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        assert await (await both.one.open("2", "ask", b"before")).receive() == b"before"
        await both.two.die()
        await some_turns()  # until the first has noticed
        asking = asyncio.create_task(both.one.open("2", "ask", b"after"))
        await some_turns()
        assert not asking.done()

        both.two = both.another()
        both.two.answer("ask", lambda message, exchange: exchange.end(message))
        await both.two.listen(both.listening.dup())

        async with asyncio.timeout(patience()):
            assert await (await asking).receive() == b"after"


@pytest.mark.slow
async def test_what_waited_for_room_is_said_to_the_worker_that_is_started_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as both, asyncio.timeout(patience()):
        assert await (await both.one.open("2", "ask", b"before")).receive() == b"before"
        under_way = await both.one.open("2", "ask", bytes(64 * 1024 * 1024))
        asking = asyncio.create_task(both.one.open("2", "ask", b"after"))
        await asyncio.sleep(0)
        assert not asking.done()
        await both.two.die()
        both.two = both.another()
        both.two.answer("ask", lambda message, exchange: exchange.end(message))
        await both.two.listen(both.listening.dup())

        with pytest.raises(Unavailable):
            await under_way.receive()
        assert await (await asking).receive() == b"after", "it was never sent, so it need not fail"


class Unlucky(UnixTransport):
    """The worker that it reaches dies as soon as it was reached; the next one lives."""

    died = False

    async def _connect(self, node: str) -> Link:
        link = await super()._connect(node)
        if not self.died:
            self.died = True
            link.cut()
            await some_turns()
        return link


async def test_a_worker_that_died_as_soon_as_it_was_reached_is_waited_for_too(tmp_path: Path) -> None:
    async with pair(tmp_path) as both, asyncio.timeout(patience()):
        both.one = Unlucky("1", {"2": tmp_path / "2"}, "s")

        assert await (await both.one.open("2", "ask", b"said")).receive() == b"said", "nothing was sent to the first"


async def test_a_worker_that_does_not_come_back_is_unavailable(tmp_path: Path) -> None:
    both = Pair(tmp_path, timings=Timings(worker_connect_timeout=0.1))

    with pytest.raises(Unavailable, match="Worker 2 does not answer"):
        await both.one.open("2", "ask", b"")

    await both.one.close()
    both.listening.close()


async def test_a_worker_waits_for_another_as_long_as_its_supervisor_says(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    descriptor, (line, other_line) = InheritedFile(listening.fileno()), Pipe()
    sockets = {"0": tmp_path / "0", "1": tmp_path / "1"}
    timings = Timings(worker_connect_timeout=0.01)
    seat = Seat(0, ShardPlan(2), 0, sockets, listening, "s", descriptor, line, descriptor, descriptor, timings=timings)
    transport = seat.share().transport
    began = asyncio.get_running_loop().time()

    with pytest.raises(Unavailable, match="Worker 1 does not answer"):
        await transport.open("1", "ask", b"")

    assert asyncio.get_running_loop().time() - began < DEFAULTS.worker_connect_timeout
    await transport.close()
    for open_file in (listening, line, other_line):
        open_file.close()


async def test_whoever_does_not_know_the_secret_is_not_listened_to(tmp_path: Path) -> None:
    both = Pair(tmp_path, secrets=("wrong", "right"), timings=Timings(worker_connect_timeout=0.2))
    asked: list[bytes] = []
    both.two.answer("ask", lambda message, exchange: asked.append(message))
    await both.two.listen(both.listening.dup())

    with pytest.raises(Unavailable):
        await both.one.open("2", "ask", b"")

    assert asked == []
    await both.one.close()
    await both.two.close()
    both.listening.close()


@pytest.mark.slow
@pytest.mark.realtime("about how real loops write to real sockets")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_small_and_large_messages_arrive_in_order_however_the_loop_writes(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    def answer(message: bytes, exchange: Exchange) -> None:
        async def send() -> None:
            while (part := await exchange.receive()) is not None:
                if (waiting := exchange.send(part)) is not None:
                    await waiting
            exchange.end()

        tasks.add(asyncio.create_task(send()))

    async def talk(both: Pair, number: int) -> None:
        parts = [bytes([number]) * (300_000 if at % 7 == number % 7 else 3) for at in range(40)]
        exchange = await both.one.open("2", "ask", b"")

        async def say() -> None:
            for part in parts:
                if (waiting := exchange.send(part)) is not None:
                    await waiting
            exchange.end()

        saying = asyncio.create_task(say())
        assert [await exchange.receive() for _ in parts] == parts
        await saying

    async def talk_at_once() -> None:
        async with asyncio.timeout(patience()), pair(tmp_path, answer) as both:
            await asyncio.gather(*(talk(both, number) for number in range(20)))

    tasks: set[asyncio.Task[None]] = set()
    run(talk_at_once())


@pytest.mark.realtime("about how real loops write to real sockets")
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_connection_that_was_cut_says_nothing_more(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def cut() -> None:
        asked: list[bytes] = []
        async with pair(tmp_path, lambda message, exchange: asked.append(message)) as both:
            exchange = await both.one.open("2", "ask", b"first")
            while not asked:  # noqa: ASYNC110 - it comes over a socket
                await asyncio.sleep(0)
            dying = asyncio.create_task(both.one.die())
            await asyncio.sleep(0)
            exchange.send(b"more")
            await dying
            with pytest.raises(Unavailable):
                await exchange.reply()
            with pytest.raises(Unavailable):
                await both.one.open("2", "ask", b"second")
        assert asked == [b"first"]

    run(cut())
