"""Calls to MCP servers through crashes: tasks are followed again, questions stay open, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.mcp_servers import Asked, RemoteServer, respond, said, tool
from tests.conformance.served import Served, served
from tests.conformance.worlds import until

from sapwood import Agent, App, ChatAgent
from sapwood.admin.admin import Admin
from sapwood.errors import NotFound, Unavailable
from sapwood.testing import ScriptedModel, call, text
from sapwood.types import McpServer

LOCAL: dict[str, Any] = {"mcp_private_hosts": ("127.0.0.1",)}
FORM = {"type": "object", "properties": {"nights": {"type": "integer"}}, "required": ["nights"]}
ASKS = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "How many nights?", "requestedSchema": FORM},
}


class CallerDesk(ChatAgent):
    """Has a tool of a server called by its model."""

    model = ScriptedModel(call("hotel_book", city="Bonn", id="b1"), text("booked"), each=True)

    async def add(self, url: str, options: dict[str, Any]) -> McpServer:
        return await self.mcp.add("hotel", url, approval="never", **options)


class CallerTwice(CallerDesk):
    """Its model uses the same id in each step, as some servers of models do."""

    model = ScriptedModel(
        call("hotel_book", city="Bonn", id="call_0"),
        call("hotel_book", city="Rome", id="call_0"),
        text("booked"),
        each=True,
    )


class CallerCode(Agent):
    """Calls a tool of a server from a fiber."""

    async def add(self, url: str) -> McpServer:
        return await self.mcp.add("hotel", url, approval="never")

    async def start(self) -> None:
        self.start_fiber("book", self.book)

    async def book(self) -> Any:
        return await self.mcp.call("hotel", "book", {"city": "Bonn"})

    async def start_later(self) -> None:
        self.enqueue(self.book)

    async def queued(self) -> list[str | None]:
        return [one.error for one in self.queues.list()]

    async def booked(self) -> Any:
        fiber = self.fibers.get("book")
        assert fiber is not None
        return await fiber.result()


APP = (CallerDesk, CallerTwice, CallerCode)


class Hotel(RemoteServer):
    """Books in a task, or asks first; counts what it did."""

    def __init__(self, **hints: bool) -> None:
        super().__init__([tool("book", **hints)])
        self.begun: list[dict[str, Any]] = []
        self.task = {"status": "working", "pollIntervalMs": 500}

    def becomes_task(self) -> None:
        self.answers["tools/call"] = self._begin
        self.answers["tasks/get"] = self._look
        self.answers["tasks/update"] = self._update
        self.answers["tasks/cancel"] = self._cancel

    def _begin(self, asked: Asked) -> dict[str, Any]:
        self.begun.append(asked.params["arguments"])
        return {"resultType": "task", "taskId": f"t{len(self.begun)}", **self.task}

    def _look(self, asked: Asked) -> dict[str, Any]:
        assert asked.headers["mcp-name"] == asked.params["taskId"] == "t1"
        return {"resultType": "complete", "taskId": "t1", **self.task}

    def _update(self, asked: Asked) -> dict[str, Any]:
        self.finish(f"booked for {asked.params['inputResponses']['q']['content']['nights']} nights")
        return {"resultType": "complete"}

    def _cancel(self, asked: Asked) -> dict[str, Any]:
        self.task = {"status": "cancelled"}
        return {"resultType": "complete"}

    def finish(self, text: str) -> None:
        self.task = {"status": "completed", "result": said(text)}


def app() -> App:
    return App(agents=list(APP))


async def desk_of(one: Served) -> CallerDesk:
    return await one.world.get_agent(CallerDesk, "d")


async def outputs(one: Served) -> list[Any]:
    messages = await (await desk_of(one)).conversation.messages()
    parts: list[Any] = [part for message in messages for part in message["parts"]]
    return [part.get("output", part.get("errorText")) for part in parts if "toolCallId" in part]


async def attempts(one: Served) -> list[tuple[int, str]]:
    """Return the attempts at the tool calls of the turn, and their ends, as they are recorded."""
    spans = (await Admin(one.world.node).explain("CallerDesk:d", "m1"))["spans"]
    return [(span["attempt"], span["status"]) for span in spans if span["kind"] == "tool"]


async def test_a_task_at_a_server_is_followed_again_after_a_crash() -> None:
    hotel = Hotel()
    hotel.becomes_task()
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await desk_of(one)
        await desk.add(url, {})
        await desk.turns.start("book", id="m1")
        await until(lambda: len(hotel.asked("tasks/get")) > 1)
        await one.world.crash()
        seen = len(hotel.asked("tasks/get"))
        await until(lambda: len(hotel.asked("tasks/get")) > seen)
        hotel.finish("booked")
        await (await desk_of(one)).turns.wait("m1")
        assert hotel.begun == [{"city": "Bonn"}]
        assert await outputs(one) == ["booked"]
        assert await attempts(one) == [(1, "completed")]


async def test_a_task_of_code_in_a_fiber_is_followed_again_after_a_crash() -> None:
    hotel = Hotel()
    hotel.becomes_task()
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        code = await one.world.get_agent(CallerCode, "c")
        await code.add(url)
        await code.start()
        await until(lambda: len(hotel.asked("tasks/get")) > 1)
        await one.world.crash()
        hotel.finish("booked")
        assert await (await one.world.get_agent(CallerCode, "c")).booked() == "booked"
        assert hotel.begun == [{"city": "Bonn"}]


@pytest.mark.parametrize("crashes", [True, *slow([False])])
async def test_a_call_with_the_id_of_an_earlier_one_is_another_call(crashes: bool) -> None:
    hotel = Hotel()

    def book(asked: Asked) -> dict[str, Any]:
        if "inputResponses" not in asked.params:
            return {"resultType": "input_required", "inputRequests": {"q": ASKS}}
        hotel.begun.append(asked.params["arguments"] | asked.params["inputResponses"]["q"]["content"])
        return said("booked")

    hotel.answers["tools/call"] = book
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await one.world.get_agent(CallerTwice, "t")
        await desk.add(url, {})
        await desk.turns.start("book both", id="m1")
        for nights in (1, 2):
            await one.world.settled()
            if crashes:
                await one.world.crash()
                desk = await one.world.get_agent(CallerTwice, "t")
                await one.world.settled()
            (question,) = await desk.questions.list()
            assert await desk.questions.answer(question, {"nights": nights})
        await desk.turns.wait("m1")
        assert hotel.begun == [{"city": "Bonn", "nights": 1}, {"city": "Rome", "nights": 2}]


async def test_a_question_of_a_server_waits_for_a_person_through_a_crash() -> None:
    hotel = Hotel()

    def book(asked: Asked) -> dict[str, Any]:
        if "inputResponses" not in asked.params:
            return {"resultType": "input_required", "inputRequests": {"q": ASKS}, "requestState": "s1"}
        assert asked.params["requestState"] == "s1"
        hotel.begun.append(asked.params["inputResponses"])
        return said("booked")

    hotel.answers["tools/call"] = book
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await desk_of(one)
        await desk.add(url, {})
        await desk.turns.start("book", id="m1")
        await one.world.settled()
        (question,) = await desk.questions.list()
        assert (question.kind, question.prompt, question.schema) == ("form", "hotel: How many nights?", FORM)
        await one.world.crash()
        desk = await desk_of(one)
        await one.world.settled()
        assert await desk.questions.list() == [question]
        assert await desk.questions.answer(question, {"nights": 3})
        await desk.turns.wait("m1")
        assert await outputs(one) == ["booked"]
        assert hotel.begun == [{"q": {"action": "accept", "content": {"nights": 3}}}]
        assert len(hotel.asked("tools/call")) == 2


async def test_an_answer_that_a_crash_has_cut_off_is_sent_again_and_the_question_is_not_asked_again() -> None:
    hotel = Hotel(idempotentHint=True)
    go = asyncio.Event()

    async def book(asked: Asked) -> dict[str, Any]:
        if "inputResponses" not in asked.params:
            return {"resultType": "input_required", "inputRequests": {"q": ASKS}, "requestState": "s1"}
        hotel.begun.append(asked.params["inputResponses"])
        await go.wait()
        return said("booked")

    hotel.answers["tools/call"] = book
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await desk_of(one)
        await desk.add(url, {})
        await desk.turns.start("book", id="m1")
        await one.world.settled()
        (question,) = await desk.questions.list()
        assert await desk.questions.answer(question, {"nights": 3})
        await until(lambda: len(hotel.begun) == 1)
        await one.world.crash()
        go.set()
        desk = await desk_of(one)
        await until(lambda: len(hotel.asked("tools/call")) == 3)
        assert await desk.questions.list() == []
        await desk.turns.wait("m1")
        assert await outputs(one) == ["booked"]
        assert hotel.begun == [{"q": {"action": "accept", "content": {"nights": 3}}}] * 2
        assert [asked.params.get("requestState") for asked in hotel.asked("tools/call")] == [None, "s1", "s1"]


async def test_a_question_of_a_task_is_answered_through_a_crash() -> None:
    hotel = Hotel()
    hotel.becomes_task()
    hotel.task = {"status": "input_required", "inputRequests": {"q": ASKS}, "pollIntervalMs": 500}
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await desk_of(one)
        await desk.add(url, {})
        await desk.turns.start("book", id="m1")
        await one.world.settled()
        await one.world.crash()
        desk = await desk_of(one)
        await one.world.settled()
        (question,) = await desk.questions.list()
        assert await desk.questions.answer(question, {"nights": 3})
        await desk.turns.wait("m1")
        assert await outputs(one) == ["booked for 3 nights"]
        assert len(hotel.begun) == 1


async def test_an_answer_for_a_task_is_sent_again_until_its_server_takes_it() -> None:
    hotel = Hotel()
    hotel.becomes_task()
    hotel.task = {"status": "input_required", "inputRequests": {"q": ASKS}, "pollIntervalMs": 500}
    refused: list[Asked] = []

    async def away(asked: Asked, writer: asyncio.StreamWriter) -> None:
        refused.append(asked)
        if len(refused) == 2:
            del hotel.raw["tasks/update"]
        respond(writer, 503, {})

    hotel.raw["tasks/update"] = away
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await desk_of(one)
        await desk.add(url, {})
        await desk.turns.start("book", id="m1")
        await one.world.settled()
        (question,) = await desk.questions.list()
        assert await desk.questions.answer(question, {"nights": 3})
        await desk.turns.wait("m1")
        assert await outputs(one) == ["booked for 3 nights"]
        assert len(refused) == 2


async def test_a_denied_question_is_told_to_the_server() -> None:
    hotel = Hotel()
    answers: list[Any] = []

    def book(asked: Asked) -> dict[str, Any]:
        answers.append(asked.params.get("inputResponses"))
        if answers[-1] is None:
            return {"resultType": "input_required", "inputRequests": {"q": ASKS}}
        return {"resultType": "complete", "isError": True, "content": [{"type": "text", "text": "no nights"}]}

    hotel.answers["tools/call"] = book
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await desk_of(one)
        await desk.add(url, {})
        await desk.turns.start("book", id="m1")
        await one.world.settled()
        (question,) = await desk.questions.list()
        assert await desk.questions.deny(question)
        await desk.turns.wait("m1")
        assert answers == [None, {"q": {"action": "decline"}}]
        assert await outputs(one) == ["no nights"]


@pytest.mark.parametrize("repeats", [False, True])
async def test_a_call_whose_answer_a_crash_has_cut_off_is_repeated_only_if_that_is_safe(repeats: bool) -> None:
    hotel = Hotel(idempotentHint=repeats)
    go = asyncio.Event()

    async def book(asked: Asked) -> dict[str, Any]:
        await go.wait()
        return said("booked")

    hotel.answers["tools/call"] = book
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await desk_of(one)
        await desk.add(url, {})
        await desk.turns.start("book", id="m1")
        await until(lambda: len(hotel.asked("tools/call")) == 1)
        await one.world.crash()
        go.set()
        await (await desk_of(one)).turns.wait("m1")
        assert len(hotel.asked("tools/call")) == 1 + repeats
        (output,) = await outputs(one)
        assert output == "booked" if repeats else output.startswith("Refused: The call was interrupted")
        assert await attempts(one) == [(1, "interrupted"), *([(2, "completed")] if repeats else [])]


async def test_a_task_is_followed_also_if_its_server_has_failed_meanwhile() -> None:
    hotel = Hotel()
    hotel.becomes_task()
    async with served(app(), **LOCAL) as one:
        async with hotel.serving() as url:
            desk = await desk_of(one)
            await desk.add(url, {})
            await desk.turns.start("book", id="m1")
            await until(lambda: len(hotel.asked("tasks/get")) > 1)
        await one.world.crash()
        desk = await desk_of(one)
        hotel.finish("booked")
        async with hotel.serving():
            await desk.turns.wait("m1")
        assert await outputs(one) == ["booked"]


async def test_the_task_of_a_cancelled_turn_is_cancelled_at_its_server() -> None:
    hotel = Hotel()
    hotel.becomes_task()
    async with served(app(), **LOCAL) as one, hotel.serving() as url:
        desk = await desk_of(one)
        await desk.add(url, {})
        await desk.turns.start("book", id="m1")
        await until(lambda: len(hotel.asked("tasks/get")) > 1)
        assert await desk.turns.cancel("m1")
        await until(lambda: len(hotel.asked("tasks/cancel")) == 1)
        assert hotel.asked("tasks/cancel")[0].params["taskId"] == "t1"


@pytest.mark.slow
async def test_at_every_commit_a_crash_leaves_one_task() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        hotel = Hotel()
        hotel.becomes_task()
        async with served(app(), **LOCAL) as one, hotel.serving() as url:
            desk = await desk_of(one)
            await desk.add(url, {})
            hotel.finish("booked")
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable, NotFound):
                await desk.send("book")
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            desk = await desk_of(one)
            await one.world.settled()
            assert len(hotel.begun) <= 1
            for output in await outputs(one):
                assert output == "booked" or "interrupted" in output
    assert nth > 5


@pytest.mark.parametrize("shakes_hands", [False, True])
async def test_a_call_that_has_not_reached_its_server_is_sent_when_its_work_is_repeated(shakes_hands: bool) -> None:
    hotel = Hotel()
    hotel.answers["tools/call"] = lambda asked: hotel.begun.append(asked.params) or said("booked")
    if shakes_hands:
        hotel.answers["server/discover"] = {"error": {"code": -32601, "message": "not known"}}
        hotel.answers["initialize"] = {"protocolVersion": "2025-11-25", "capabilities": {}}

    async def busy(asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 503, "")

    async with served(app(), **LOCAL) as one:
        code = await one.world.get_agent(CallerCode, "c")
        async with hotel.serving() as url:
            assert (await code.add(url)).status == "ready"
        async with contextlib.AsyncExitStack() as stack:
            if shakes_hands:  # before the call is sent
                hotel.raw["initialize"] = busy
                await stack.enter_async_context(hotel.serving())
            await code.start_later()
            while not any(await code.queued()):  # noqa: ASYNC110 - each look is a call
                await asyncio.sleep(0.01)
            assert hotel.begun == []
        hotel.raw.clear()
        async with hotel.serving():
            await one.world.clock.advance(60)
            await until(lambda: bool(hotel.begun))
            await one.world.settled()
            assert len(hotel.begun) == 1
            assert await code.queued() == []


async def test_a_call_whose_server_is_away_when_its_stream_is_continued_is_not_sent_again() -> None:
    hotel = Hotel()

    async def cut(asked: Asked, writer: asyncio.StreamWriter) -> None:
        hotel.begun.append(asked.params)
        respond(writer, 200, "id: 1\nretry: 5000\ndata:\n\n", content_type="text/event-stream")

    hotel.raw["tools/call"] = cut
    async with served(app(), **LOCAL) as one:
        code = await one.world.get_agent(CallerCode, "c")
        async with hotel.serving() as url:
            await code.add(url)
            await code.start_later()
            await until(lambda: bool(hotel.begun))
        while not any(await code.queued()):  # noqa: ASYNC110 - each look is a call
            await asyncio.sleep(0.01)
        assert "ConnectError" in str(await code.queued())
        async with hotel.serving():
            await one.world.clock.advance(120)
            await one.world.settled()
            assert len(hotel.begun) == 1
