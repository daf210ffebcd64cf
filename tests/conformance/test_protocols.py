"""What protocols are given: turns by the client's id that can be followed again, questions, and paths of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from tests.conformance.served import Served, served
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Run, agent_tool, tool
from sapwood.address import PathSegment
from sapwood.auth import ANY_CLIENT, User
from sapwood.errors import UsageError
from sapwood.protocols.adapter import Adapter, Place
from sapwood.protocols.exchange import Exchange
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.runs.dispatch.turn_events import TurnEvents
from sapwood.runs.events.events import Event
from sapwood.runs.tables.question import Answer
from sapwood.testing import ScriptedModel, call, text


class LinesDesk(Agent):
    """What the protocol of these tests needs of its own."""

    async def on_request(self, request: Request) -> Response:
        return PlainTextResponse(f"{self.name} {(await request.body()).decode()}")


class Lines(Adapter):
    """A protocol that tells what happens in a turn as lines of JSON."""

    paths: ClassVar = ("/lines", "/lines/answer", "/lines/asked", "/lines/cancel")
    roots: ClassVar = ("/by-body",)
    agents: ClassVar = (LinesDesk,)

    async def locate(self, request: Request, agents: Sequence[type[Agent[Any]]]) -> Place | Response:
        said = json.loads(await request.body())
        if "class" not in said:
            return Place(LinesDesk, getattr(request.scope["user"], "id", "anyone"))
        cls = next((one for one in agents if one.__name__ == said["class"]), None)
        return PlainTextResponse("No such class.", 404) if cls is None else Place(cls, said["name"], "/lines")

    async def answer(self, request: Request, exchange: Exchange) -> Response | None:
        if not exchange.has_conversation:
            return None
        said = json.loads(await request.body() or b"{}")
        path = request.scope["path"]
        if path == "/lines/asked":
            return JSONResponse([one.full_id for one in await exchange.questions()])
        if path == "/lines/answer":
            return JSONResponse(await exchange.answer(said["question"], Answer("approved")))
        if path == "/lines/cancel":
            return JSONResponse(exchange.cancel(said["id"]))
        if "text" in said:
            message = {"id": f"m-{said['id']}", "role": "user", "parts": [{"type": "text", "text": said["text"]}]}
            await exchange.begin(said["id"], [message])
        return StreamingResponse(self._told(exchange, said["id"], said.get("after")))

    async def _told(self, exchange: Exchange, id: str, after: str | None) -> AsyncGenerator[str, None]:
        async for event in exchange.events(id, after=after):
            if event is not None:
                path = [step.type for step in event.path]
                yield json.dumps([event.kind, path, event.seq, event.body, event.cursor]) + "\n"
                if event.kind == "waiting" and exchange.waits(id):
                    return


class LinedHelper(ChatAgent):
    """Pays when a person allows it."""

    closed: ClassVar = False

    model = ScriptedModel(call("pay", euros=3, id="p1"), text("it is paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        return f"{euros} paid"


class LinedMiddle(ChatAgent):
    """Has a helper pay."""

    model = ScriptedModel(call("pay", message="pay 3", id="m1"), text("the helper paid"), each=True)
    tools = (agent_tool(LinedHelper, name="pay"),)


class Lined(ChatAgent):
    """A chat agent that the protocol of these tests reaches."""

    tools = (agent_tool(LinedMiddle, name="buy"),)


class Reading:
    """Reads the lines of one response, as they come."""

    def __init__(self, one: Served, path: str, said: Any, **headers: str) -> None:
        self.events: list[Any] = []
        self.status = 0
        self.is_over = False
        self._one, self._path, self._said, self._headers = one, path, said, headers
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._one.site.port)
        body = json.dumps(self._said).encode()
        headers = {
            "host": f"127.0.0.1:{self._one.site.port}",
            "connection": "close",
            "content-length": str(len(body)),
            **self._headers,
        }
        lines = [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([f"POST {self._path} HTTP/1.1", *lines, "", ""]).encode() + body)
        try:
            self.status = int((await reader.readline()).split()[1])
            while line := await reader.readline():
                if line.startswith(b"["):
                    self.events.append(json.loads(line))
        except (ConnectionError, IndexError):
            pass
        finally:
            self.is_over = True
            writer.close()

    async def over(self) -> list[Any]:
        await until(lambda: self.is_over)
        return self.events

    def words(self) -> str:
        return words_of(self.events)


def words_of(events: Sequence[Any]) -> str:
    """Return what the agent itself said, as a reader knows it who forgets what is retracted."""
    found: dict[int, str] = {}
    for kind, path, seq, body, _ in events:
        if len(path) == 1 and kind == "retracted":
            found = {number: word for number, word in found.items() if number <= body["after"]}
        elif len(path) == 1 and kind == "chunk" and body["type"] == "text-delta":
            found[seq] = body["delta"]
    return "".join(found.values())


def kinds_of(events: Sequence[Any]) -> list[str]:
    return [f"{path[-1]} {kind}" for kind, path, *_ in events if kind != "chunk"]


@asynccontextmanager
async def lined(**settings: Any) -> AsyncGenerator[Served, None]:
    async with asyncio.timeout(patience()), served(App(agents=[Lined], protocols=[Lines()]), **settings) as one:
        yield one


URL = "/agents/lined/a/lines"


async def test_a_turn_is_followed_from_its_first_word_and_again_by_its_id_across_a_crash_and_after_its_end() -> None:
    gate = asyncio.Event()
    Lined.model = ScriptedModel(text("once upon a time", gate=gate), text("there was a tree"), text("another"))
    async with lined() as one:
        first = Reading(one, URL, {"id": "t1", "text": "tell"})
        await until(lambda: first.words() == "once")
        cursor = first.events[-1][-1]

        await one.world.crash()
        again, twice = Reading(one, URL, {"id": "t1", "text": "tell"}), Reading(one, URL, {"id": "t1", "after": cursor})
        whole, rest = await again.over(), await twice.over()

        assert words_of(whole) == words_of([*first.events, *rest]) == "there was a tree"
        assert kinds_of(whole)[0], kinds_of(whole)[-1] == ("Lined started", "Lined completed")
        assert [kind for kind, *_ in rest].count("retracted") == 1
        assert len(Lined.model.asked) == 2

        later = await Reading(one, URL, {"id": "t1"}).over()
        assert words_of(later) == "there was a tree"
        assert later[-1][:4] == whole[-1][:4]
        await Reading(one, URL, {"id": "t2", "text": "more"}).over()
        assert words_of(await Reading(one, URL, {"id": "t1"}).over()) == "there was a tree"

        agent = await one.world.get_agent(Lined, "a")
        await agent.conversation.clear()
        await one.world.settled()
        gone = Reading(one, URL, {"id": "t1"})
        await gone.over()
        assert gone.events == []


async def test_only_the_turn_and_the_runs_that_it_started_are_told_and_a_deep_question_is_answered_by_its_full_id() -> (
    None
):
    Lined.model = ScriptedModel(call("buy", message="buy bread"), text("bought"), each=True)
    LinedMiddle.model = ScriptedModel(call("pay", message="pay 3"), text("the helper paid"), each=True)
    async with lined() as one:
        for turn in ("t1", "t2"):
            Lined.model = ScriptedModel(call("buy", message="buy bread"), text("bought"))
            LinedMiddle.model = ScriptedModel(call("pay", message="pay 3"), text("the helper paid"))
            LinedHelper.model = ScriptedModel(call("pay", euros=3), text("it is paid"))
            asked = Reading(one, URL, {"id": turn, "text": "buy"})
            told = await asked.over()
            assert kinds_of(told)[-1] == "LinedHelper waiting"
            await one.world.crash()

            (question,) = (await one.site.http(f"{URL}/asked")).json()
            assert question.startswith("LinedMiddle:")
            body = json.dumps({"question": question}).encode()
            assert (await one.site.http(f"{URL}/answer", method="POST", body=body)).json() is True
            rest = await Reading(one, URL, {"id": turn, "after": told[-1][-1]}).over()
            whole = await Reading(one, URL, {"id": turn}).over()

            assert kinds_of(told)[:4] == [
                "Lined started",
                "LinedMiddle started",
                "LinedHelper started",
                "LinedHelper waiting",
            ]
            assert kinds_of(rest)[-3:] == ["LinedHelper completed", "LinedMiddle completed", "Lined completed"]
            ends = [one for one in kinds_of(whole) if one.endswith("completed")]
            assert ends == ["LinedHelper completed", "LinedMiddle completed", "Lined completed"]
            assert (await one.site.http(f"{URL}/answer", method="POST", body=body)).json() is False


class LinedBehind(Agent):
    """Works for longer than the turn that started it."""

    go: ClassVar[asyncio.Event]

    async def on_run(self, input: str) -> str:
        await self.go.wait()
        return input


class LinedStarter(ChatAgent):
    """Has something done in the background, and does not wait for it."""

    @tool
    async def begin(self) -> str:
        """Begin."""
        run: Run[Any] = await self.start_run(LinedBehind, "work", run_id="behind")
        return run.id


async def test_what_another_turn_started_is_no_part_of_a_turn() -> None:
    LinedBehind.go = asyncio.Event()
    LinedStarter.model = ScriptedModel(call("begin"), text("begun"), text("well"))
    app = App(agents=[LinedStarter], protocols=[Lines()])
    async with asyncio.timeout(patience()), served(app) as one:
        url = "/agents/lined-starter/a/lines"
        first = await Reading(one, url, {"id": "t1", "text": "begin"}).over()
        assert kinds_of(first) == ["LinedStarter started", "LinedBehind started", "LinedStarter completed"]
        LinedBehind.go.set()
        agent = await one.world.get_agent(LinedStarter, "a")
        await until(LinedBehind.go.is_set)

        second = await Reading(one, url, {"id": "t2", "text": "hello"}).over()

        assert kinds_of(second) == ["LinedStarter started", "LinedStarter completed"]
        assert (await agent.turns.wait("t2")).text == "well"


class LinedNames(ChatAgent):
    """Has runs of two classes in sub-agents of one name."""

    async def belonging(self) -> list[bool]:
        runs = self._actor.of(Runs).registry
        for turn, kind in (("t1", LinedMiddle), ("t2", LinedHelper)):
            segment = PathSegment(kind.__name__, "same")
            runs.add(f"run-{turn}", segment, "in", work=turn, tool_call=None, position=0, display=None, options="{}")
        above, now = self._actor.address.segments, self._actor.host.clock.now()
        waiting = Event((*above, PathSegment("LinedMiddle", "same")), None, None, 0, now, "waiting")
        return [TurnEvents(self._actor, turn).has(waiting) for turn in ("t1", "t2")]


async def test_a_question_belongs_to_the_turn_of_its_own_agent_not_of_one_with_the_same_name() -> None:
    async with asyncio.timeout(patience()), served(App(agents=[LinedNames])) as one:
        agent = await one.world.get_agent(LinedNames, "a")
        assert await agent.belonging() == [True, False]


async def test_a_turn_is_cancelled_by_its_id() -> None:
    Lined.model = ScriptedModel(text("once upon", gate=asyncio.Event()))
    async with lined() as one:
        reading = Reading(one, URL, {"id": "t1", "text": "tell"})
        await until(lambda: reading.words() == "once")
        body = json.dumps({"id": "t1"}).encode()
        assert (await one.site.http(f"{URL}/cancel", method="POST", body=body)).json() is True
        assert (await reading.over())[-1][0] == "cancelled"
        assert (await one.site.http(f"{URL}/cancel", method="POST", body=body)).json() is False


def who(request: Any) -> User | None:
    return User(request.headers["who"]) if "who" in request.headers else None


class LinedGuarded(Lined):
    """Lets nobody go to its middle agents."""

    tools = (agent_tool(LinedMiddle, name="buy"),)

    async def on_before_sub_agent(self, request: HTTPConnection, child: Any) -> Response | None:
        return PlainTextResponse("Not you", 403) if "x-staff" not in request.headers else None


async def test_a_client_neither_sees_nor_answers_what_a_gate_keeps_from_it() -> None:
    LinedGuarded.model = ScriptedModel(call("buy", message="buy bread"), text("bought"), each=True)
    LinedMiddle.model = ScriptedModel(call("pay", message="pay 3"), text("the helper paid"), each=True)
    LinedHelper.model = ScriptedModel(call("pay", euros=3), text("it is paid"), each=True)
    app = App(agents=[LinedGuarded], protocols=[Lines()])
    async with asyncio.timeout(patience()), served(app) as one:
        url = "/agents/lined-guarded/a/lines"
        staff = Reading(one, url, {"id": "t1", "text": "buy"}, **{"x-staff": "yes"})
        assert kinds_of(await staff.over())[-1] == "LinedHelper waiting"
        guest = Reading(one, url, {"id": "t1"})
        (question,) = (await one.site.http(f"{url}/asked", headers={"x-staff": "yes"})).json()
        assert (await one.site.http(f"{url}/asked")).json() == []

        body = json.dumps({"question": question}).encode()
        assert (await one.site.http(f"{url}/answer", method="POST", body=body)).status == 403
        answer = await one.site.http(f"{url}/answer", method="POST", body=body, headers={"x-staff": "yes"})
        assert answer.json() is True
        assert kinds_of(await guest.over()) == ["LinedGuarded started", "LinedGuarded completed"]


async def test_a_path_of_the_server_leads_where_the_body_says_past_authentication_and_authorization() -> None:
    Lined.model = ScriptedModel(text("well"))

    def may(user: Any, address: Any, action: str) -> bool:
        return address.name != "secret"

    app = App(agents=[Lined], protocols=[Lines()], authenticate=who, authorize=may)
    async with asyncio.timeout(patience()), served(app, request_bytes=10_000) as one:
        ann = {"who": "ann"}

        async def ask(said: Any, headers: dict[str, str] = ann) -> Any:
            return await one.site.http("/by-body", method="POST", body=json.dumps(said).encode(), headers=headers)

        assert (await ask({"class": "Lined", "name": "b", "id": "t1", "text": "hi"}, {})).status == 401
        assert (await ask({"class": "Lined", "name": "secret", "id": "t1", "text": "hi"})).status == 403
        assert (await ask({"class": "Nobody"})).status == 404
        answer = await ask({"class": "Lined", "name": "b", "id": "t1", "text": "hi"})
        assert answer.status == 200
        assert words_of([json.loads(line) for line in answer.text.splitlines()]) == "well"
        assert (await ask({})).text == "ann {}"
        assert answer.headers["x-content-type-options"] == "nosniff"
        refused = await ask({"class": "Nobody"})
        assert refused.headers["x-content-type-options"] == "nosniff"
        assert (await one.site.http("/agents/lines-desk/ann", headers=ann)).status == 400
        too_large = await one.site.http("/by-body", method="POST", body=b"x" * 10_001, headers=ann)
        assert too_large.status == 413
        assert (await one.site.http("/by-body", method="POST", body=b"{", headers=ann)).status == 500


async def test_what_authenticates_may_read_the_body() -> None:
    async def signed(request: Any) -> User | None:
        return User("ann") if b"signed" in await request.body() else None

    app = App(agents=[Lined], protocols=[Lines()], authenticate=signed)
    async with asyncio.timeout(patience()), served(app) as one:
        answer = await one.site.http("/by-body", method="POST", body=b'{"by":"signed"}')
        assert answer.text == 'ann {"by":"signed"}'
        assert (await one.site.http("/by-body", method="POST", body=b"{}")).status == 401


def test_two_protocols_for_one_path_are_refused() -> None:
    with pytest.raises(UsageError, match="both answer /lines"):
        App(agents=[Lined], protocols=[Lines(), Lines()])
    with pytest.raises(UsageError, match="list of protocols"):
        App(agents=[Lined], protocols=[Lines])  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"Write protocols=\[Lines"):
        App(agents=[Lined], protocols=Lines())  # pyright: ignore[reportArgumentType]
