"""What a client sees of an agent through its socket, and an agent of its clients."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from tests.conformance.served import Served, served, type_of
from tests.conformance.serving import serving
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Agent, App, Connection, current_connection, expose
from sapwood.types import PathSegment

pytestmark = pytest.mark.core("workers", "cluster")


@dataclass(frozen=True)
class Score:
    points: int = 0


class Board(Agent[Score]):
    """A child with a state, clients and exposed methods."""

    initial_state = Score()

    @expose
    async def add(self, points: int) -> int:
        self.set_state(Score(self.state.points + points))
        return self.state.points

    @expose
    async def say(self, text: str) -> str:
        self.broadcast(text)
        self.broadcast({"said": text})
        return text

    @expose
    async def nothing(self) -> None:
        pass

    @expose
    async def fail(self) -> None:
        raise ValueError("boom!")

    @expose
    async def next_day(self, day: date) -> date:
        return day.replace(day=day.day + 1)

    @expose
    async def count(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    @expose
    async def unsendable(self) -> Any:
        return object()

    @expose
    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @expose
    async def who(self) -> str:
        connection = current_connection()
        assert connection is not None
        return connection.id

    async def hidden(self) -> str:
        return "not for clients"

    async def tell(self, text: str) -> None:
        self.broadcast(text)

    async def clients(self) -> int:
        return len(self.connections.list())


class Hall(Agent[Score]):
    """A root with boards."""

    initial_state = Score()

    async def board(self, name: str) -> None:
        await self.sub_agent(Board, name)

    async def close_board(self, name: str) -> None:
        await self.children.delete(Board, name)

    async def add_to(self, name: str, points: int) -> int:
        return await (await self.sub_agent(Board, name)).add(points)

    async def shout(self, text: str) -> None:
        self.broadcast(text)

    @expose
    async def make(self, name: str) -> bool:
        await self.sub_agent(Board, name)
        return self.children.has(Board, name)

    @expose
    async def add(self, points: int) -> int:
        self.set_state(Score(self.state.points + points))
        return self.state.points


HALL = "/agents/hall/h"
BOARD = f"{HALL}/sub/board/b"


async def hall(one: Served) -> Hall:
    agent = await one.world.get_agent(Hall, "h")
    await agent.board("b")
    return agent


def app() -> App:
    return App(agents=[Hall])


@pytest.mark.promise("A-236", "CF-130", "CF-132")
async def test_a_client_is_greeted_with_identity_state_and_servers_in_this_order_once_each() -> None:
    async with served(app()) as one:
        await hall(one)

        client = await one.join(BOARD)

        assert client.frames == [
            {"type": "cf_agent_identity", "name": "b", "agent": "board", "stateFollows": True},
            {"type": "cf_agent_state", "state": {"points": 0}},
            {"type": "cf_agent_mcp_servers", "mcp": {"servers": {}, "tools": [], "prompts": [], "resources": []}},
        ]


@pytest.mark.promise("CF-132")
async def test_identity_says_that_no_state_follows_where_there_is_none() -> None:
    class Bare(Agent):
        pass

    async with served(App(agents=[Bare])) as one:
        client = await one.join("/agents/bare/b")

        assert [type_of(frame) for frame in client.frames] == ["cf_agent_identity", "cf_agent_mcp_servers"]
        assert "stateFollows" not in client.frames[0]


@pytest.mark.promise("CF-131")
async def test_identity_can_be_switched_off() -> None:
    class Shy(Agent[Score]):
        initial_state = Score()
        send_identity = False

    async with served(App(agents=[Shy])) as one:
        client = await one.join("/agents/shy/s")

        assert [type_of(frame) for frame in client.frames] == ["cf_agent_state", "cf_agent_mcp_servers"]


@pytest.mark.promise("A-50", "CF-137")
async def test_calls_return_values_dates_and_nothing_with_a_final_reply() -> None:
    async with served(app()) as one:
        await hall(one)
        client = await one.join(BOARD)

        assert await client.call("add", 2) == {
            "type": "rpc",
            "id": "call-1",
            "success": True,
            "done": True,
            "result": 2,
        }
        assert await client.call("nothing") == {"type": "rpc", "id": "call-2", "success": True, "done": True}
        assert (await client.call("next_day", "2026-11-15"))["result"] == "2026-11-16"


@pytest.mark.promise("CF-138")
async def test_errors_of_a_call_reach_the_client() -> None:
    async with served(app()) as one:
        await hall(one)
        client = await one.join(BOARD)

        assert (await client.call("fail"))["error"].startswith("Internal error (reference ")
        assert (await client.call("no_such"))["error"] == "Method no_such does not exist"
        assert (await client.call("hidden"))["error"] == "Method hidden is not callable"
        assert (await client.call("unsendable"))["error"].startswith("Internal error (reference ")
        assert "expects 1 arguments, got 0" in (await client.call("add"))["error"]
        assert "does not fit" in (await client.call("add", "two"))["error"]


@pytest.mark.promise("CF-139")
async def test_a_streaming_call_sends_its_items_in_order_and_one_end() -> None:
    async with served(app()) as one:
        await hall(one)
        client = await one.join(BOARD)

        await client.call("count", 100)

        answers = client.of_type("rpc")
        assert [answer["result"] for answer in answers[:-1]] == list(range(100))
        assert [answer["done"] for answer in answers] == [False] * 100 + [True]


async def test_a_stream_stops_when_its_client_leaves() -> None:
    ended = asyncio.Event()

    class Endless(Agent):
        @expose
        async def numbers(self) -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
                    await asyncio.sleep(0.001)
            finally:
                ended.set()

    async with served(App(agents=[Endless])) as one:
        client = await one.join("/agents/endless/e")
        await client.send({"type": "rpc", "id": "1", "method": "numbers", "args": []})
        await client.until(lambda frame: type_of(frame) == "rpc")

        await client.close()

        await asyncio.wait_for(ended.wait(), patience())


@pytest.mark.promise("CF-140")
async def test_calls_of_one_client_are_answered_independently() -> None:
    async with served(app()) as one:
        await hall(one)
        client = await one.join(BOARD)

        slow = asyncio.create_task(client.call("wait", 0.3))
        await asyncio.sleep(0)
        assert (await client.call("add", 1))["result"] == 1
        assert not slow.done()
        assert (await slow)["result"] == "waited"


@pytest.mark.core  # what a frame may be does not depend on the runtime
@pytest.mark.promise("CF-141")
@pytest.mark.parametrize(
    "frame",
    [
        *("", "{", "null", "[]", "5", '"rpc"', '{"type":"rpc"}', '{"type":"rpc","id":1,"method":"add","args":[]}'),
        *('{"type":"rpc","id":"1","method":"add"}', '{"type":"rpc","id":"1","method":"add","args":{}}', b"\xff\xfe"),
        *('{"type":"cf_agent_state"}', "{" * 5000, '{"type":"nobody knows"}', '{"a":' * 2000 + "1" + "}" * 2000),
    ],
)
async def test_malformed_frames_are_the_users_and_get_no_reply(frame: Any) -> None:
    heard: list[Any] = []

    class Ear(Agent):
        async def on_message(self, connection: Connection, message: str | bytes) -> None:
            heard.append(message)

        @expose
        async def ping(self) -> str:
            return "pong"

    async with served(App(agents=[Ear])) as one:
        client = await one.join("/agents/ear/e")

        await client.send(frame)

        assert (await client.call("ping"))["result"] == "pong"
        assert heard == [frame]
        assert len(client.of_type("rpc")) == 1


@pytest.mark.promise("A-3", "A-24", "A-78", "A-82", "CF-58")
async def test_a_new_state_reaches_the_childs_clients_and_nobody_elses() -> None:
    async with served(app()) as one:
        agent = await hall(one)
        first, second, above = await one.join(BOARD), await one.join(BOARD), await one.join(HALL)

        assert await agent.add_to("b", 3) == 3

        for client in (first, second):
            await client.until(lambda frame: frame == {"type": "cf_agent_state", "state": {"points": 3}})
        assert len(above.of_type("cf_agent_state")) == 1


@pytest.mark.promise("CF-145")
async def test_a_clients_change_of_state_is_kept_and_reaches_the_others_not_the_sender() -> None:
    async with served(app()) as one:
        await hall(one)
        sender, other = await one.join(BOARD), await one.join(BOARD)

        await sender.send({"type": "cf_agent_state", "state": {"points": 7}})

        await other.until(lambda frame: frame == {"type": "cf_agent_state", "state": {"points": 7}})
        assert (await sender.call("add", 1))["result"] == 8
        assert [frame["state"]["points"] for frame in sender.of_type("cf_agent_state")] == [0, 8]
        await one.world.crash()


@pytest.mark.promise("CF-146")
async def test_a_refused_change_is_answered_with_an_error_and_told_to_nobody() -> None:
    class Strict(Agent[Score]):
        initial_state = Score()

        def validate_state(self, state: Score, source: Connection | None) -> None:
            if state.points < 0:
                raise ValueError("no debts")

    async with served(App(agents=[Strict])) as one:
        sender, other = await one.join("/agents/strict/s"), await one.join("/agents/strict/s")

        for state in ({"points": -1}, {"points": "many"}, "nonsense"):
            await sender.send({"type": "cf_agent_state", "state": state})

        await sender.until(lambda _: len(sender.of_type("cf_agent_state_error")) == 3)
        assert sender.of_type("cf_agent_state_error")[0]["error"] == "State update rejected"
        assert len(other.of_type("cf_agent_state")) == 1


@pytest.mark.promise("CF-147")
async def test_the_hook_after_a_change_knows_its_source_and_its_failure_undoes_nothing() -> None:
    seen: list[tuple[int, str | None]] = []

    class Watched(Agent[Score]):
        initial_state = Score()

        async def on_state_changed(self, state: Score, source: Connection | None) -> None:
            seen.append((state.points, source.id if source is not None else None))
            raise RuntimeError("too late")

        @expose
        async def set(self, points: int) -> None:
            self.set_state(Score(points))

        @expose
        async def get(self) -> int:
            return self.state.points

    async with served(App(agents=[Watched])) as one:
        client = await one.join("/agents/watched/w?_pk=me")
        await client.call("set", 1)
        await client.send({"type": "cf_agent_state", "state": {"points": 2}})

        assert (await client.call("get"))["result"] == 2
        assert seen == [(1, None), (2, "me")]


@pytest.mark.promise("CF-65", "CF-149")
async def test_a_readonly_connection_can_call_but_not_change_the_state_until_told_otherwise() -> None:
    class Museum(Agent[Score]):
        initial_state = Score()

        def is_readonly(self, connection: Connection) -> bool:
            return connection.query.get("visitor") == "1"

        @expose
        async def trust(self) -> None:
            for connection in self.connections.list():
                connection.readonly = False

        @expose
        async def add(self) -> int:
            self.set_state(replace(self.state, points=self.state.points + 1))
            return self.state.points

    async with served(App(agents=[Museum])) as one:
        visitor = await one.join("/agents/museum/m?visitor=1")

        await visitor.send({"type": "cf_agent_state", "state": {"points": 9}})
        error = await visitor.until(lambda frame: type_of(frame) == "cf_agent_state_error")
        one.world.sleep()
        await visitor.send({"type": "cf_agent_state", "state": {"points": 9}})
        await visitor.until(lambda _: len(visitor.of_type("cf_agent_state_error")) == 2)
        called = await visitor.call("add")
        await visitor.call("trust")
        await visitor.send({"type": "cf_agent_state", "state": {"points": 9}})

        assert error["error"] == "Connection is readonly"
        assert called["result"] == 1
        assert (await visitor.call("add"))["result"] == 10


@pytest.mark.promise("CF-65", "CF-134")
async def test_a_connection_without_protocol_is_told_nothing_and_can_call() -> None:
    class Plain(Agent[Score]):
        initial_state = Score()

        def send_protocol_frames(self, connection: Connection) -> bool:
            return False

        @expose
        async def add(self) -> int:
            self.set_state(Score(self.state.points + 1))
            self.broadcast("news")
            return self.state.points

    async with served(App(agents=[Plain])) as one:
        client = await one.connect("/agents/plain/p")
        await client.call("add")
        one.world.sleep()
        await client.call("add")

        assert [frame if isinstance(frame, str) else type_of(frame) for frame in client.frames] == ["news", "rpc"] * 2


@pytest.mark.promise("A-81", "A-84", "A-86", "CF-59", "CF-60", "CF-61")
async def test_a_childs_broadcast_reaches_its_own_clients_in_order_and_not_the_parents() -> None:
    async with served(app()) as one:
        agent = await hall(one)
        child, above = await one.join(BOARD), await one.join(HALL)

        assert (await child.call("say", "hello"))["result"] == "hello"
        await agent.shout("from above")
        await above.until(lambda frame: frame == "from above")

        assert [f for f in child.frames[3:] if f != "from above"] == [
            "hello",
            {"said": "hello"},
            {"type": "rpc", "id": "call-1", "success": True, "done": True, "result": "hello"},
        ]
        assert "from above" not in child.frames
        assert "hello" not in above.frames


async def test_a_broadcast_leaves_out_whom_it_is_told_to() -> None:
    class Lounge(Agent):
        async def on_message(self, connection: Connection, message: str | bytes) -> None:
            self.broadcast(f"{connection.id}: {message!s}", exclude=[connection])
            connection.send("sent")

    async with served(App(agents=[Lounge])) as one:
        ann, bob = await one.join("/agents/lounge/r?_pk=ann"), await one.join("/agents/lounge/r?_pk=bob")

        await ann.send("hi")

        await bob.until(lambda frame: frame == "ann: hi")
        await ann.until(lambda frame: frame == "sent")
        assert "ann: hi" not in ann.frames


@pytest.mark.promise("CF-67", "CF-133")
async def test_no_message_is_delivered_before_on_connect_is_done() -> None:
    seen: list[str] = []

    class Slow(Agent):
        async def on_connect(self, connection: Connection) -> None:
            await asyncio.sleep(0.1)
            seen.append("connected")
            connection.set_state({"seat": 4})

        async def on_message(self, connection: Connection, message: str | bytes) -> None:
            seen.append(f"{message!s} from seat {connection.state['seat']}")
            connection.send("heard")

    async with served(App(agents=[Slow])) as one:
        client = await one.connect("/agents/slow/s")
        await client.send("hello")

        await client.until(lambda frame: frame == "heard")

        assert seen == ["connected", "hello from seat 4"]


@pytest.mark.promise("CF-64", "CF-66")
async def test_a_connection_keeps_id_tags_state_and_path_while_its_agent_sleeps() -> None:
    objects: list[Connection] = []

    class Sleeper(Agent):
        def connection_tags(self, connection: Connection) -> list[str]:
            return ["vip"]

        async def on_connect(self, connection: Connection) -> None:
            connection.set_state({"n": 1})

        async def on_message(self, connection: Connection, message: str | bytes) -> None:
            objects.append(connection)
            (same,) = self.connections.list(tag="vip")
            assert same is connection
            assert self.connections.list(tag="other") == []
            connection.send([connection.id, list(connection.tags), connection.state, connection.path])

    async with served(App(agents=[Sleeper])) as one:
        client = await one.join("/agents/sleeper/s/some/where?_pk=me")
        await client.send("1")
        await client.send("2")
        await client.until(lambda _: len(objects) == 2)
        one.world.sleep()
        assert not one.world.node.trees
        await client.send("3")
        await client.until(lambda frame: len(objects) == 3 and isinstance(frame, list))

        assert objects[0] is objects[1]
        assert client.frames[-1] == ["me", ["vip"], {"n": 1}, "/some/where"]
        assert client.closed is None


@pytest.mark.promise("CF-26")
async def test_deleting_a_child_closes_the_sockets_of_its_subtree_and_nobody_comes_back_by_connecting() -> None:
    class Leaf(Agent):
        pass

    class Middle(Agent):
        async def leaf(self) -> None:
            await self.sub_agent(Leaf, "l")

    class Top(Agent):
        async def grow(self) -> None:
            await (await self.sub_agent(Middle, "m")).leaf()

        async def fell(self) -> None:
            await self.children.delete(Middle, "m")

        async def has(self) -> bool:
            return self.children.has(Middle, "m")

    async with served(App(agents=[Top])) as one:
        top = await one.world.get_agent(Top, "t")
        await top.grow()
        middle = await one.join("/agents/top/t/sub/middle/m")
        leaf = await one.join("/agents/top/t/sub/middle/m/sub/leaf/l")
        above = await one.join("/agents/top/t")

        await leaf.send("before")
        await top.fell()

        assert await middle.ended() == (1001, "Sub-agent deleted")
        assert await leaf.ended() == (1001, "Sub-agent deleted")
        assert above.closed is None
        assert not await top.has()
        again = await one.connect("/agents/top/t/sub/middle/m")
        assert (await again.ended())[0] == 4404


@pytest.mark.promise("CF-12", "CF-13")
async def test_a_child_can_be_made_while_a_message_is_handled_and_disturbs_nobody() -> None:
    async with served(app()) as one:
        first, second = await one.join(HALL), await one.join(HALL)

        assert (await first.call("make", "new"))["result"] is True
        child = await one.join(f"{HALL}/sub/board/new")

        assert (await child.call("add", 1))["result"] == 1
        assert second.closed is None
        assert len(second.frames) == 3


@pytest.mark.promise("CF-142")
async def test_an_answer_for_a_client_that_left_is_dropped() -> None:
    async with served(app()) as one:
        await hall(one)
        gone, here = await one.join(BOARD), await one.join(BOARD)
        await gone.send({"type": "rpc", "id": "1", "method": "wait", "args": [0.05]})
        await gone.close()

        assert (await here.call("wait", 0.1))["result"] == "waited"
        assert len(here.of_type("rpc")) == 1


async def test_a_call_knows_the_connection_it_came_by() -> None:
    async with served(app()) as one:
        await hall(one)
        client = await one.join(f"{BOARD}?_pk=it-is-me")

        assert (await client.call("who"))["result"] == "it-is-me"


async def test_what_on_message_raises_goes_to_on_error_and_the_socket_stays() -> None:
    seen: list[str] = []

    class Clumsy(Agent):
        async def on_message(self, connection: Connection, message: str | bytes) -> None:
            raise ValueError(message)

        async def on_error(self, error: BaseException, connection: Connection) -> None:
            seen.append(str(error))
            connection.send("sorry")

    async with served(App(agents=[Clumsy])) as one:
        client = await one.join("/agents/clumsy/c")

        await client.send("oops")

        await client.until(lambda frame: frame == "sorry")
        assert seen == ["oops"]


async def test_on_close_hears_code_and_reason_also_if_the_agent_slept() -> None:
    heard: list[tuple[str, int]] = []
    told = asyncio.Event()

    class Door(Agent):
        async def on_close(self, connection: Connection, code: int, reason: str) -> None:
            heard.append((connection.id, code))
            told.set()

    async with served(App(agents=[Door])) as one:
        client = await one.join("/agents/door/d?_pk=x")
        one.world.sleep()

        await client.close()

        await asyncio.wait_for(told.wait(), patience())
        assert heard == [("x", 1000)]


async def test_an_agent_can_close_a_connection() -> None:
    class Bouncer(Agent):
        async def on_message(self, connection: Connection, message: str | bytes) -> None:
            connection.send("bye")
            connection.close(4001, "out")

    async with served(App(agents=[Bouncer])) as one:
        client = await one.join("/agents/bouncer/b")

        await client.send("hello")

        assert await client.ended() == (4001, "out")
        assert client.frames[-1] == "bye"


@pytest.mark.promise("A-86")
async def test_no_client_hears_of_a_write_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames wait for the disk, in order, with the answer behind them."""
    from sapwood.testing.faults import CountingFiles

    kept, begun, go = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    sync = CountingFiles.sync_descriptor

    def slow(self: CountingFiles, path: Any, descriptor: int) -> None:
        begun.set()
        assert go.wait(60)
        sync(self, path, descriptor)
        loop.call_soon_threadsafe(kept.set)

    async with served(app(), durability="disk") as one:
        await hall(one)
        client, other = await one.join(BOARD), await one.join(BOARD)
        monkeypatch.setattr(CountingFiles, "sync_descriptor", slow)
        kept.clear()

        answer = asyncio.create_task(client.call("add", 5))
        await until(begun.is_set)
        for _ in range(500):  # more than enough for a frame that does not wait
            await asyncio.sleep(0)
        assert {"type": "cf_agent_state", "state": {"points": 5}} not in other.frames
        go.set()
        await other.until(lambda frame: frame == {"type": "cf_agent_state", "state": {"points": 5}})

        assert kept.is_set()
        assert (await answer)["result"] == 5
        order = [type_of(frame) for frame in client.frames[3:]]
        assert order == ["cf_agent_state", "rpc"]


@pytest.mark.promise("CF-143")
async def test_exposed_methods_are_inherited() -> None:
    class Special(Board):
        pass

    async with served(App(agents=[Special])) as one:
        client = await one.join("/agents/special/s")

        assert (await client.call("add", 4))["result"] == 4


async def test_aborting_an_agent_leaves_its_sockets_open_and_tells_callers() -> None:
    class Parent(Agent):
        async def make(self) -> None:
            await self.sub_agent(Board, "b")

        async def stop(self) -> None:
            self.children.abort(Board, "b", "maintenance")

    async with served(App(agents=[Parent])) as one:
        parent = await one.world.get_agent(Parent, "p")
        await parent.make()
        client = await one.join("/agents/parent/p/sub/board/b")
        waiting = asyncio.create_task(client.call("wait", 5))
        await asyncio.sleep(0.05)

        await parent.stop()

        assert (await waiting)["error"] == "maintenance"
        assert (await client.call("add", 1))["error"] == "maintenance"
        await parent.make()
        assert (await client.call("add", 1))["result"] == 1


@pytest.mark.promise("CF-131")
async def test_identity_is_sent_at_every_reconnect() -> None:
    async with served(app()) as one:
        await hall(one)
        for _ in range(3):
            client = await one.join(f"{BOARD}?_pk=same")
            assert client.frames[0]["type"] == "cf_agent_identity"
            await client.close()


@pytest.mark.promise("CF-144")
async def test_initial_state_is_there_at_first_access_kept_and_not_made_again() -> None:
    async with served(app()) as one:
        first = await one.join(HALL)
        assert first.of_type("cf_agent_state") == [{"type": "cf_agent_state", "state": {"points": 0}}]
        assert (await first.call("add", 3))["result"] == 3
        one.world.sleep()

        second = await one.join(HALL)

        assert second.of_type("cf_agent_state") == [{"type": "cf_agent_state", "state": {"points": 3}}]


@pytest.mark.promise("CF-150")
async def test_the_frameworks_flags_are_not_in_a_connections_state() -> None:
    states: list[Any] = []

    class Guest(Agent):
        def is_readonly(self, connection: Connection) -> bool:
            return True

        async def on_message(self, connection: Connection, message: str | bytes) -> None:
            states.append(connection.state)
            connection.set_state({"mine": 1})
            states.append(connection.state)
            connection.set_state(None)
            connection.send(connection.readonly)

    async with served(App(agents=[Guest])) as one:
        client = await one.join("/agents/guest/g")

        await client.send("hi")

        await client.until(lambda frame: frame is True)
        assert states == [None, {"mine": 1}]


async def test_the_figures_of_a_node_can_be_read() -> None:
    async with served(app()) as one:
        await hall(one)
        await one.join(BOARD)

        text = (await one.site.http("/metrics")).text

        for figure, value in (("sockets", "1.0"), ("agents", "2.0"), ("ready", "1.0")):
            assert re.search(rf"^sapwood_{figure}({{worker=.*}})? {value}$", text, re.MULTILINE)


@pytest.mark.promise("CF-136")
async def test_with_a_url_of_the_apps_choosing_identity_names_the_instance() -> None:
    async with served(app()) as one:

        async def mine(websocket: WebSocket) -> None:
            await one.world.app.route_to(Hall, "h")(websocket.scope, websocket.receive, websocket.send)

        async with serving(Starlette(routes=[WebSocketRoute("/me", mine)])) as site:
            client = await Served(one.world, site).join("/me")

            assert client.frames[0] == {
                "type": "cf_agent_identity",
                "name": "h",
                "agent": "hall",
                "stateFollows": True,
            }
            await client.close()


@pytest.mark.promise("CF-40")
async def test_opening_a_socket_through_a_stub_points_to_urls() -> None:
    async with served(app()) as one:
        agent: Any = await hall(one)

        for name in ("fetch", "connect"):
            with pytest.raises(AttributeError, match=r"App\.path_to"):
                getattr(agent, name)


@pytest.mark.promise("CF-70")
async def test_the_gate_of_a_parent_is_asked_about_classes_nobody_knows() -> None:
    asked: list[tuple[str, str]] = []

    class Gatekeeper(Agent):
        async def on_before_sub_agent(self, request: Any, child: PathSegment) -> Any:
            asked.append((child.type, child.name))
            return PlainTextResponse("gone", 410) if child.name == "old" else None

    async with served(App(agents=[Gatekeeper])) as one:
        assert (await (await one.connect("/agents/gatekeeper/g/sub/unheard-of/x")).ended())[0] == 4404
        assert (await (await one.connect("/agents/gatekeeper/g/sub/unheard-of/old")).ended())[0] == 4410

        assert asked == [("unheard-of", "x"), ("unheard-of", "old")]


async def test_clients_are_let_in_though_an_agent_on_their_way_goes_to_sleep() -> None:
    nodes: list[Any] = []

    def sleep(times: int) -> None:
        nodes[0].sleep()
        if times:
            asyncio.get_running_loop().call_soon(sleep, times - 1)

    class SleepyNook(Agent):
        async def make(self) -> None:
            await self.sub_agent(SleepyNook, "n")

        async def on_before_sub_agent(self, request: Any, child: PathSegment) -> None:
            asyncio.get_running_loop().call_soon(sleep, 10)

        async def on_before_request(self, request: Any) -> None:
            asyncio.get_running_loop().call_soon(sleep, 10)

        async def on_request(self, request: Any) -> PlainTextResponse:
            return PlainTextResponse("pong")

        @expose
        async def ping(self) -> str:
            return "pong"

    async with served(App(agents=[SleepyNook])) as one:
        nodes.append(one.world.app.node)
        await (await one.world.get_agent(SleepyNook, "r")).make()
        await (await one.world.get_agent(SleepyNook, "r", sub=[(SleepyNook, "n")])).make()

        path = "/agents/sleepy-nook/r/sub/sleepy-nook/n/sub/sleepy-nook/n"
        client = await one.join(path)
        answer = await one.site.http(path)

        assert (await client.call("ping"))["result"] == "pong"
        assert answer.body == b"pong"
