"""The Python client against a real server: what a program elsewhere may rely on."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.e2e.serving import serving
from tests.machine import patience
from tests.ports import free_port

from sapwood import (
    Agent,
    App,
    ChildFailed,
    Connection,
    NotFound,
    Refused,
    Settings,
    TimedOut,
    Unavailable,
    current_connection,
    deadline,
    expose,
)
from sapwood.address import Address
from sapwood.client import ExposedMethod, RemoteAgent, connect
from sapwood.client.http import get_methods
from sapwood.client.link import Link, backoff
from sapwood.errors import InvalidArguments, InvalidResult, NoSuchMethod, NotCopyable, UsageError
from sapwood.timings import Timings


@dataclass(frozen=True)
class Score:
    points: int = 0
    players: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    title: str
    at: datetime


happened: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""What the agents of this process did, for a test to look at."""


async def has_happened(what: str) -> None:
    async with asyncio.timeout(patience()):
        await happened[what].wait()


class Player(Agent[Score]):
    """What a client can do to every agent of a tree."""

    initial_state = Score()

    @expose
    async def where(self) -> list[str]:
        return [step.name for step in self.address.segments]

    @expose
    async def add(self, a: int, b: int = 10) -> int:
        return a + b

    @expose
    async def later(self, event: Event, *, hours: int = 1) -> Event:
        return Event(event.title.upper(), event.at.replace(hour=event.at.hour + hours))

    @expose
    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @expose
    async def events(self) -> AsyncIterator[Event]:
        yield Event("first", datetime(2026, 1, 2, tzinfo=UTC))

    @expose
    async def fail(self, after: int) -> AsyncIterator[int]:
        for number in range(after):
            yield number
        raise Refused("no more")

    @expose
    async def crash(self) -> None:
        raise Refused("boom")

    @expose
    async def odd(self) -> int:
        return "seven"  # type: ignore[return-value]

    @expose
    async def sleep(self, name: str) -> None:
        happened[f"{name} sleeps"].set()
        try:
            await asyncio.sleep(60)
        finally:
            happened[f"{name} woke"].set()

    @expose
    async def drip(self, name: str) -> AsyncIterator[int]:
        try:
            for number in range(1000):
                yield number
                await asyncio.sleep(0.01)
        finally:
            happened[f"{name} closed"].set()

    @expose
    async def play(self, points: int) -> None:
        self.set_state(Score(points, self.state.players))

    @expose
    async def open(self, path: list[str]) -> None:
        if path:
            child = await self.sub_agent(Player, path[0])
            await child.open(path[1:])

    @expose
    async def me(self) -> str:
        connection = current_connection()
        assert connection is not None
        return connection.id

    @expose
    async def close_all(self, code: int) -> None:
        for connection in self.connections.list():
            connection.close(code, "enough")

    async def hidden(self) -> None:
        """Only for other agents."""

    def validate_state(self, state: Score, source: Connection | None) -> None:
        if state.points < 0:
            raise Refused("Nobody has less than nothing.")

    def is_readonly(self, connection: Connection) -> bool:
        return "readonly" in connection.query

    async def on_connect(self, connection: Connection) -> None:
        connection.send("welcome")

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        connection.send(message)


class Quiet(Agent):
    """An agent that greets nobody."""

    def send_protocol_frames(self, connection: Connection) -> bool:
        return False

    @expose
    async def add(self, a: int, b: int) -> int:
        return a + b


class Unlisted(Agent):
    """Does not list its methods: clients say which status they get instead."""

    async def on_before_watch(self, request: Request) -> Response | None:
        return Response("{}", int(request.query_params["status"]), headers={"location": "/agents/player/ann/methods"})


class Anonymous(Agent):
    send_identity = False

    @expose
    async def add(self, a: int, b: int) -> int:
        return a + b


def at_once(attempt: int) -> float:
    return 0.01


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., App]:
    def make(**more: Any) -> App:
        happened.clear()
        return App(agents=[Player, Quiet, Unlisted, Anonymous], settings=Settings(data=tmp_path / "data"), **more)

    return make


@pytest.fixture
async def url(make_app: Callable[..., App]) -> AsyncIterator[str]:
    async with serving(make_app()) as where:
        yield where


async def test_a_method_is_called_by_its_name_with_its_arguments(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        assert await ann.stub.add(1, 2) == 3
        assert await ann.stub.add(1) == 11
        assert await ann.stub.add(b=5, a=1) == 6
        assert await ann.stub.where() == ["ann"]
        assert (ann.name, ann.agent, str(ann.address)) == ("ann", "player", "Player:ann")


@pytest.mark.promise("CF-143")
async def test_the_exposed_methods_are_listed_at_any_depth(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        await ann.stub.open(["b", "c", "d"])
        methods = {method.name: method for method in await ann.methods()}
    sub = tuple((Player, name) for name in "bcd")
    async with connect(url, Player, "ann", sub=sub, query={"x": "1"}) as deep:
        assert {method.name: method for method in await deep.methods()} == methods

    assert methods["add"] == ExposedMethod(
        name="add",
        doc=None,
        parameters={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        variadic=False,
        streams=False,
        result={"type": "integer"},
    )
    assert methods["count"].streams
    assert "hidden" not in methods


@pytest.mark.parametrize(
    ("status", "error"),
    [(200, InvalidResult), (307, Refused), (401, Refused), (403, Refused), (404, NotFound), (503, Unavailable)],
)
async def test_a_list_of_methods_that_is_refused_is_an_error(url: str, status: int, error: type[Exception]) -> None:
    async with connect(url, Unlisted, "u", query={"status": str(status)}) as unlisted:
        with pytest.raises(error, match="does not list the methods of Unlisted:u"):
            await unlisted.methods()


async def test_methods_of_a_server_that_is_away_are_unavailable() -> None:
    address, port = Address.root_of("Player", "ann"), free_port()

    with pytest.raises(Unavailable, match=r"Player:ann cannot be reached: \w"):
        await get_methods(f"http://127.0.0.1:{port}/agents/player/ann/methods", address, {}, 5.0, {"proxy": None})


async def test_arguments_and_results_are_what_the_annotations_say(url: str) -> None:
    event = Event("tea", datetime(2026, 5, 6, 16, tzinfo=UTC))

    async with connect(url, Player, "ann") as ann:
        assert await ann.stub.later(event) == Event("TEA", datetime(2026, 5, 6, 17, tzinfo=UTC))
        assert [item async for item in ann.stub.events()] == [Event("first", datetime(2026, 1, 2, tzinfo=UTC))]
        with pytest.raises(InvalidResult, match=r"The result of Player.odd\(\) does not fit"):
            await ann.stub.odd()


async def test_an_argument_that_cannot_travel_is_refused_here(url: str) -> None:
    event = Event("tea", datetime(2026, 5, 6, 16, tzinfo=UTC))

    async with connect(url, Player, "ann") as ann:
        with pytest.raises(InvalidArguments, match="keyword-only"):
            await ann.stub.later(event, hours=2)
        with pytest.raises(InvalidArguments, match="missing a required argument"):
            await ann.stub.add()  # type: ignore[call-arg]
        with pytest.raises(NotCopyable):
            await ann.stub.add(object())  # type: ignore[arg-type]
        with pytest.raises(NoSuchMethod):
            await ann.stub.missing()  # type: ignore[attr-defined]
        with pytest.raises(NoSuchMethod):
            await ann.stub.destroy()


async def test_a_stream_is_read_item_by_item(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        assert [number async for number in ann.stub.count(100)] == list(range(100))
        assert [number async for number in ann.stub.count(0)] == []


async def test_an_error_says_what_the_agent_said(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        with pytest.raises(ChildFailed, match="boom") as caught:
            await ann.stub.crash()
        items = ann.stub.fail(2)
        assert [await anext(items), await anext(items)] == [0, 1]
        with pytest.raises(ChildFailed, match="no more"):
            await anext(items)
        with pytest.raises(ChildFailed, match="hidden is not callable"):
            await ann.stub.hidden()
        with pytest.raises(ChildFailed, match="argument 'a' does not fit"):
            await ann.stub.add("one")  # type: ignore[arg-type]

    assert caught.value.path == (("Player", "ann"),)


async def test_everything_works_three_levels_deep(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        await ann.stub.open(["b", "c", "d"])

    async with connect(url, Player, "ann", sub=((Player, "b"), (Player, "c"), (Player, "d"))) as deep:
        assert await deep.stub.where() == ["ann", "b", "c", "d"]
        assert [number async for number in deep.stub.count(3)] == [0, 1, 2]
        with pytest.raises(ChildFailed, match="boom") as caught:
            await deep.stub.crash()
        await deep.set_state(Score(4))
        assert (deep.name, deep.state) == ("d", Score(4))

    assert caught.value.path[-1].name == "d"


@pytest.mark.parametrize("name", ["50%", "%2F", "a/b", "/", "é ü", "雪", "a b?c#d", "sub", "a+b", "…"])
async def test_a_child_may_have_any_name(url: str, name: str) -> None:
    async with connect(url, Player, "ann") as ann:
        await ann.stub.open([name, name])

    async with connect(url, Player, "ann", sub=((Player, name), (Player, name))) as child:
        assert await child.stub.where() == ["ann", name, name]
        assert child.name == name


@pytest.mark.parametrize("name", ["100%", "%41", "a+b", "sub", "a:b@c", "x~y"])
async def test_the_name_of_a_root_stands_in_the_url_as_it_is(url: str, name: str) -> None:
    async with connect(url, Player, name) as root:
        assert await root.stub.where() == [name]


@pytest.mark.parametrize("name", ["a b", "a/b", "é", "..", "a?b"])
async def test_a_root_that_has_no_url_is_refused_before_anything_is_sent(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be part of a URL"):
        async with connect("http://127.0.0.1:1", Player, name):
            pass


async def test_the_state_is_known_once_connected_and_follows(url: str) -> None:
    async with connect(url, Player, "ann") as one, connect(url, Player, "ann") as two:
        assert (one.state, two.state) == (Score(), Score())

        await one.set_state(Score(1, ("x",)))

        assert one.state == Score(1, ("x",))
        assert await first(two, lambda state: state.points == 1) == Score(1, ("x",))

        await two.stub.play(5)

        assert await first(one, lambda state: state.points == 5) == Score(5, ("x",))
        assert await first(two, lambda state: state.points == 5) == Score(5, ("x",))


async def first(remote: RemoteAgent[Player], fits: Callable[[Score], bool]) -> Score:
    async with asyncio.timeout(patience()), aclosing(remote.states()) as states:
        async for state in states:
            if fits(state):
                return state
    raise AssertionError("The states ended.")


async def test_a_state_that_is_refused_raises_and_is_not_taken_over(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        with pytest.raises(Refused, match="State update rejected: Nobody has less than nothing"):
            await ann.set_state(Score(-1))
        assert ann.state == Score()
        with pytest.raises(Refused, match="State update rejected"):
            await ann.set_state("a text")  # type: ignore[arg-type]

    async with connect(url, Player, "ann", query={"readonly": "1"}) as reader:
        with pytest.raises(Refused, match="Connection is readonly"):
            await reader.set_state(Score(1))
        assert await reader.stub.add(1, 1) == 2


async def test_messages_go_both_ways_and_none_is_missed(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        await ann.send("text")
        await ann.send(b"bytes")
        await ann.send({"type": "mine", "n": 1})

        async with asyncio.timeout(patience()), aclosing(ann.messages()) as messages:
            got = [await anext(messages) for _ in range(4)]

    assert got == ["welcome", "text", b"bytes", '{"type":"mine","n":1}']


async def test_reading_ends_with_the_connection(url: str) -> None:
    async def read(remote: RemoteAgent[Player]) -> list[str | bytes]:
        return [message async for message in remote.messages()]

    async with connect(url, Player, "ann") as ann:
        reading = asyncio.create_task(read(ann))
        await ann.stub.add(1)

    assert await reading == ["welcome"]


@pytest.mark.parametrize("cls", [Quiet, Anonymous])
async def test_an_agent_that_says_nothing_of_itself_can_be_called(url: str, cls: type[Quiet | Anonymous]) -> None:
    async with connect(url, cls, "q", timeout=patience()) as quiet:
        assert await quiet.stub.add(1, 2) == 3
        assert quiet.name == "q"


async def test_a_client_comes_back_after_a_restart_as_the_same(make_app: Callable[..., App]) -> None:
    port = free_port()
    server = serving(make_app(), port)
    url = await server.__aenter__()
    async with connect(url, Player, "ann", delay=at_once) as ann:
        await ann.set_state(Score(7))
        before = await ann.stub.me()
        sent = asyncio.create_task(ann.stub.sleep("ann"))
        await has_happened("ann sleeps")

        await server.__aexit__(None, None, None)

        with pytest.raises(Unavailable, match="Connection closed"):
            await sent
        assert not ann.is_connected
        unsent = asyncio.create_task(ann.stub.add(1, 2))
        await asyncio.sleep(0.05)
        assert not unsent.done()

        async with serving(make_app(), port):
            assert await unsent == 3
            await ann.ready()
            assert ann.state == Score(7)
            assert await ann.stub.me() == before == ann.id


async def test_a_stream_that_is_cut_off_raises(make_app: Callable[..., App]) -> None:
    async with serving(make_app()) as url, connect(url, Player, "ann", delay=at_once) as ann:
        items = ann.stub.drip("ann")
        assert await anext(items) == 0

        with pytest.raises(Unavailable, match="Connection closed"):
            await ann.stub.close_all(1011)

        with pytest.raises(Unavailable, match=r"Connection closed \(1011: enough\)"):
            _ = [item async for item in items]
        assert await ann.stub.add(1, 1) == 2


@pytest.mark.parametrize("code", [1008, 4000, 4321])
async def test_a_close_that_is_final_is_not_answered_by_coming_back(url: str, code: int) -> None:
    async with connect(url, Player, "ann", delay=at_once) as ann:
        with pytest.raises(Refused, match=f"enough \\({code}\\)"):
            await ann.stub.close_all(code)

        with pytest.raises(Refused, match="enough"):
            await ann.stub.add(1, 2)
        with pytest.raises(Refused, match="enough"):
            await ann.ready()
        with pytest.raises(Refused, match="enough"):
            async for _ in ann.messages():
                pass


async def test_a_child_that_was_never_made_is_not_found(url: str) -> None:
    with pytest.raises(NotFound, match=r"4404") as caught:
        async with connect(url, Player, "ann", sub=[(Player, "nobody")]):
            pass

    assert caught.value.path == (("Player", "ann"), ("Player", "nobody"))


async def test_a_class_the_server_does_not_serve_is_refused(url: str) -> None:
    class Stranger(Agent):
        pass

    with pytest.raises(Refused, match=r"4400"):
        async with connect(url, Stranger, "x"):
            pass


async def test_a_token_is_sent_and_asked_for_anew_at_every_connect(make_app: Callable[..., App]) -> None:
    given: list[str] = []

    def authenticate(request: Any) -> str | None:
        given.append(request.headers.get("authorization", ""))
        return "ann" if given[-1].startswith("Bearer t") else None

    async def token() -> str:
        return f"t{len(given)}"

    async with serving(make_app(authenticate=authenticate)) as url:
        async with connect(url, Player, "ann", token=token, headers={"x-more": "1"}, delay=at_once) as ann:
            with pytest.raises(Unavailable):
                await ann.stub.close_all(1012)
            await ann.ready()
        with pytest.raises(Refused, match="4401"):
            async with connect(url, Player, "ann", token="wrong"):
                pass

    assert given == ["Bearer t0", "Bearer t1", "Bearer wrong"]


async def test_a_server_that_is_not_there_is_unavailable_in_time() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    with pytest.raises(Unavailable, match=r"could not be reached within 0\.1 s"):
        async with connect(url, Player, "ann", timeout=0.1, delay=at_once):
            pass


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host?x=1", ""])
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        async with connect(url, Player, "ann"):
            pass


async def test_a_call_that_takes_too_long_times_out_and_ends_there(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        ann._talk._timeout = 0.2  # pyright: ignore[reportPrivateUsage] - not for connecting, which may take longer
        with pytest.raises(TimedOut, match=r"Player:ann did not answer sleep\(\) in time"):
            await ann.stub.sleep("slow")
        await has_happened("slow woke")

    async with connect(url, Player, "ann") as ann:
        with pytest.raises(TimedOut), deadline(0.05):
            await ann.stub.sleep("late")
        with pytest.raises(TimedOut), deadline(0.1):
            async for _ in ann.stub.drip("drop"):
                pass
        await has_happened("late woke")
        await has_happened("drop closed")


async def test_a_stream_may_take_longer_than_a_call(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        ann._talk._timeout = 0.1  # pyright: ignore[reportPrivateUsage] - not for connecting, which may take longer
        async for number in ann.stub.drip("long"):
            if number == 15:
                break


async def test_a_call_that_is_cancelled_ends_there(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        call = asyncio.create_task(ann.stub.sleep("ann"))
        await has_happened("ann sleeps")

        call.cancel()

        await has_happened("ann woke")
        assert await ann.stub.add(1, 1) == 2


@pytest.mark.parametrize("how", ["break", "aclose", "cancel"])
async def test_who_stops_reading_a_stream_closes_the_generator(url: str, how: str) -> None:
    began = asyncio.Event()

    async def read(remote: RemoteAgent[Player]) -> None:
        stream: Any = remote.stub.drip(how)
        async for number in stream:
            began.set()
            if how == "break" and number == 1:
                break
            if how == "aclose" and number == 1:
                await stream.aclose()
                break

    async with connect(url, Player, "ann") as ann:
        reading = asyncio.create_task(read(ann))
        await began.wait()
        if how == "cancel":
            reading.cancel()
        await asyncio.wait({reading})

        await has_happened(f"{how} closed")
        assert await ann.stub.add(1, 1) == 2


async def test_leaving_the_block_closes_the_generators_of_its_streams(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        stream = ann.stub.drip("left")
        assert await anext(stream) == 0

    await has_happened("left closed")
    with pytest.raises(Unavailable, match="Connection closed"):
        _ = [item async for item in stream]


async def test_many_calls_share_one_connection(url: str) -> None:
    async with connect(url, Player, "ann") as ann:
        results = await asyncio.gather(*(ann.stub.add(number, 1) for number in range(300)))
        ids = {await ann.stub.me() for _ in range(3)}

    assert results == list(range(1, 301))
    assert len(ids) == 1


async def test_an_answer_may_be_large(url: str) -> None:
    big = "x" * 900_000

    async with connect(url, Player, "ann") as ann:
        await ann.set_state(Score(0, (big, big[:90_000])))

    async with connect(url, Player, "ann") as ann:
        assert ann.state.players[0] == big


async def test_a_message_that_is_too_long_for_the_server_ends_only_its_own_call(url: str) -> None:
    async with connect(url, Player, "ann", delay=at_once) as ann:
        with pytest.raises(Unavailable, match=r"Connection closed \(1009: The message is too long\)"):
            await ann.stub.open(["x" * 1_100_000])

        assert await ann.stub.add(1, 1) == 2


async def test_messages_that_nobody_reads_do_not_pile_up(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with connect(url, Player, "ann") as ann:
        for number in range(1100):
            await ann.send(str(number))
        await ann.stub.add(1)
        async with asyncio.timeout(patience()), aclosing(ann.messages()) as messages:
            while (last := await anext(messages)) != "1099":
                pass

    assert last == "1099"
    assert [record.message for record in caplog.records if record.name.startswith("sapwood.client")] == [
        "unread messages dropped, oldest first address=Player:ann"
    ]


async def test_without_the_library_the_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sapwood.client.socket", raising=False)
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)

    with pytest.raises(UsageError, match="pip install"):
        async with connect("http://127.0.0.1:1", Player, "ann"):
            pass


async def test_attempts_are_counted_while_connections_do_not_last(make_app: Callable[..., App]) -> None:
    asked: list[int] = []

    def delay(attempt: int) -> float:
        asked.append(attempt)
        return 0.001

    async with serving(make_app()) as url, connect(url, Player, "ann", delay=delay) as ann:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await ann.stub.close_all(1001)
            await ann.ready()

    assert asked == [1, 2]


class LostSocket:
    """A socket that is lost before it has said anything, and a listener that does not mind."""

    is_open = False
    closed = (1006, "")

    async def send(self, message: str | bytes) -> None:
        raise OSError

    async def receive(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        pass

    def opened(self) -> None:
        pass

    def heard(self, message: str | bytes) -> None:
        pass

    def lost(self, error: Exception) -> None:
        pass

    def ended(self, error: Exception | None) -> None:
        pass


async def test_attempts_are_counted_anew_once_a_connection_has_lasted() -> None:
    asked: list[int] = []
    enough = asyncio.Event()

    def delay(attempt: int) -> float:
        asked.append(attempt)
        if len(asked) == 4:
            enough.set()
        return 0.0

    async def dial() -> LostSocket:
        if len(asked) == 2:
            return LostSocket()
        raise OSError("The server does not answer.")

    any_uptime = Timings(client_steady_after=1e-9)
    link = Link(Address.root_of("Player", "ann"), dial, LostSocket(), delay, any_uptime)
    link.start()
    async with asyncio.timeout(30):
        await enough.wait()
    await link.close()

    assert asked[:4] == [1, 2, 1, 2]


def test_the_delays_are_those_of_the_npm_clients() -> None:
    assert [round(backoff(attempt), 2) for attempt in range(1, 8)] == [3.0, 3.9, 5.07, 6.59, 8.57, 10.0, 10.0]
    assert backoff(10_000) == 10.0
