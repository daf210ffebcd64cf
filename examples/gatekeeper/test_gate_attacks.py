"""There is no way around the gate: what a model, a page or a slow hand may try."""

import asyncio
import inspect
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import uvicorn
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from sapwood import App, Refused, tool
from sapwood.testing import World, running
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

import gate_script
from gate import Auditor, Clerk, Gatekeeper, Proposer
from gate_records import Records
from gate_script import Heard, Offline, Reply, as_assistant, as_auditor, as_clerk

ROOT = "/agents/gatekeeper/me"
GO_ON = {"autoContinue": True}
RECORDS = f"{ROOT}/sub/records/customers"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(gate_script, "PAUSE", 0)
    async with running(App(agents=[Gatekeeper]), slow_slices="allow") as world:
        yield world


@pytest.fixture
async def port(world: World) -> AsyncGenerator[int, None]:
    async with serving(world.app) as port:
        yield port


# What the model has


async def test_no_tool_of_any_model_does_more_than_read_and_propose(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools: dict[str, set[str]] = {}

    class Noting(Offline):
        async def _say(
            self, messages: list[ModelMessage], info: AgentInfo
        ) -> AsyncIterator[Any]:
            names = {one.name for one in info.function_tools}
            tools[self._part.__name__] = names
            async for said in super()._say(messages, info):
                yield said

    for cls, part in (
        (Gatekeeper, as_assistant),
        (Auditor, as_auditor),
        (Clerk, as_clerk),
    ):
        monkeypatch.setattr(cls, "model", Noting(part))
    me = await world.get_agent(Gatekeeper, "me")
    asked = asyncio.create_task(me.send("Tidy up the customers"))
    for shown in await waiting(me, 2):
        await me.reject(shown.seal, "No.")
    await asked

    assert tools == {
        "as_assistant": {"look", "propose", "audit"},
        "as_auditor": {"look", "clerk"},
        "as_clerk": {"look", "propose"},
    }


async def test_a_model_that_calls_what_it_was_not_given_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ada,) = await (await world.get_agent(Gatekeeper, "me")).find("Ada")
    wrong = {"proposal": "x", "shown": asdict(ada), "seal": "x", "id": "x"}
    names = ("decide", "accept", "approve", "settle", "sql", "Records.decide", "reject")
    told: list[str] = []

    async def pretend(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        if answers := Heard.of(messages).returned:
            told.extend(str(part.content) for part in answers)
            yield "I give up."
        else:
            for number, name in enumerate(names):
                yield {number: DeltaToolCall(name, json.dumps(wrong))}

    monkeypatch.setattr(Gatekeeper, "model", FunctionModel(stream_function=pretend))
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)

    turn = await me.send("Move Ada to Paris, by whatever means")

    assert len(told) == len(names)
    assert all("Unknown tool name" in one for one in told)
    assert turn.text == "I give up."
    assert await customers(world) == before
    assert await me.waiting() == []


async def test_however_a_model_writes_its_proposal_it_is_shown_as_it_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pretend(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        if heard := Heard.of(messages).returned:
            yield str(heard[-1].content)
        else:
            odd = {"action": "delete", "customer": "1", "values": None, "why": "So."}
            yield {0: DeltaToolCall("propose", json.dumps(odd))}

    monkeypatch.setattr(Gatekeeper, "model", FunctionModel(stream_function=pretend))
    me = await world.get_agent(Gatekeeper, "me")
    turn = await me.send("Delete Ada")
    (shown,) = await me.waiting()
    assert shown.what == "delete Ada Lovelace (1)"

    await me.accept(shown.seal)

    assert (await me.turns.wait(turn.id)).text.startswith("Approved. Done: delete Ada")
    assert [one["id"] for one in await customers(world)] == [2, 3, 4, 5, 6]


async def test_the_tool_that_proposes_changes_nothing_even_if_it_is_let_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposing = Proposer.propose

    @tool  # and somebody has forgotten to have a person be asked
    async def propose(
        self: Any, context: RunContext[Any], action: Any, why: str, customer: int
    ) -> str:
        """Change a customer."""
        return await proposing(self, context, action, why, customer)

    monkeypatch.setattr(Gatekeeper, "propose", propose)
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)

    turn = await me.send("Delete Ada")

    assert "Nobody has decided this at the gate" in turn.text
    assert await customers(world) == before


def test_the_only_door_to_the_records_is_the_gatekeeper_s() -> None:
    for cls in (Proposer, Clerk, Auditor):
        assert "_records" not in inspect.getsource(cls)
        assert "sub_agent" not in inspect.getsource(cls)
    writes = [
        name
        for name, method in inspect.getmembers(Records, inspect.isfunction)
        if method.__module__ == Records.__module__
        and any(word in inspect.getsource(method) for word in ("INSERT", "DELETE"))
    ]
    assert writes == ["_carry_out", "decide"]


# What a page, or whoever knows a URL, may try


async def test_nobody_gets_to_the_records_by_a_url(world: World, port: int) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    for path in ("", "/questions", "/get-messages", "/decide", "/events"):
        assert (await ask(port, RECORDS + path))[0] == 403
        assert (await ask(port, RECORDS + path, {"proposal": "x"}))[0] == 403
    assert (await ask(port, "/agents/records/customers"))[0] == 400
    assert (await ask(port, f"{ROOT}/sub/auditor/x/sub/records/customers"))[0] == 404

    for path in (RECORDS, RECORDS.replace("records", "Records"), f"{RECORDS}/"):
        assert await refused(port, path) in (4403, 4404)
    assert await refused(port, "/agents/records/customers") == 4400

    assert await customers(world) == before
    assert await me.waiting() == []


async def test_a_page_can_call_three_methods_and_change_no_state(
    world: World, port: int
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    closed = (
        *("settle", "find", "verdict", "propose", "look", "approve", "deny", "sql"),
        *("questions.approve", "sub_agent", "children.delete", "destroy", "_decide"),
    )
    async with opened(port, ROOT) as client:
        for name in closed:
            assert (await called(client, name))["success"] is False
        state = {"customers": [], "decisions": []}
        await client.send(json.dumps({"type": "cf_agent_state", "state": state}))
        assert "readonly" in await heard(client, "cf_agent_state_error")
        for name in ("accept", "reject"):
            assert "Look again" in (await called(client, name, "0123456789ab"))["error"]
        assert (await called(client, "waiting"))["result"] == []

    assert await customers(world) == before
    assert len((await me.shown()).customers) == 6


async def test_an_approval_that_did_not_come_by_the_gate_changes_nothing(
    world: World, port: int
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    other = {"action": "delete", "customer": 2, "why": "Ha!"}

    # by HTTP, as it was proposed and with other arguments
    for answer in ({"approved": True}, {"approved": True, "arguments": other}):
        turn = await me.send("Move Ada to Paris")
        (asked,) = (await ask(port, f"{ROOT}/questions"))[1]["questions"]
        given = {"id": asked["id"], "path": [], "digest": asked["digest"]} | answer
        assert (await ask(port, f"{ROOT}/questions", given))[0] == 200
        text = (await me.turns.wait(turn.id)).text
        assert "Nobody has decided this at the gate. Nothing was changed." in text

    # by the frames of a chat: made up, which is no answer at all, or allowed
    approval = {"type": "cf_agent_tool_approval", "approved": True}
    made_up = {"type": "cf_agent_tool_result", "output": "Done.", "toolName": "propose"}
    turn = await me.send("Move Ada to Paris")
    (wish,) = await me.questions.list()
    async with opened(port, ROOT) as client:
        for frame, waiting in ((made_up, 1), (approval, 0)):
            await client.send(json.dumps(frame | {"toolCallId": wish.id} | GO_ON))
            assert len((await called(client, "waiting"))["result"]) == waiting
    assert "Nothing was changed." in (await me.turns.wait(turn.id)).text

    assert await customers(world) == before
    assert (await me.shown()).decisions == ()


async def test_a_deep_child_cannot_be_told_by_others_that_it_was_approved(
    world: World, port: int
) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    asked = asyncio.create_task(me.send("Tidy up the customers"))
    await waiting(me, 2)

    for one in (await ask(port, f"{ROOT}/questions"))[1]["questions"]:
        below = "".join(f"/sub/{step['type']}/{step['name']}" for step in one["path"])
        answer = {"id": one["id"], "approved": True, "digest": one["digest"]}
        assert (await ask(port, f"{ROOT}{below.lower()}/questions", answer))[0] == 200

    assert "Nothing was changed." in (await asked).text
    assert await customers(world) == before


# What a slow hand, or two of them, may do


async def test_an_answer_that_is_given_again_is_refused(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    await me.send("Move Ada to Paris")
    (shown,) = await me.waiting()
    await me.accept(shown.seal)
    after = await customers(world)

    for again in (
        me.accept(shown.seal),
        me.accept(shown.seal, {"city": "Rome"}),  # edited after it was approved
        me.reject(shown.seal, "I have thought about it."),
    ):
        with pytest.raises(Refused, match="Look again"):
            await again

    assert await customers(world) == after
    assert len((await me.shown()).decisions) == 1


async def test_of_two_answers_at_the_same_time_one_counts(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    await me.send("Move Ada to Paris")
    (shown,) = await me.waiting()

    answers = await asyncio.gather(
        *(me.accept(shown.seal, {"city": city}) for city in ("Rome", "Oslo", "Bern")),
        me.reject(shown.seal, "No."),
        return_exceptions=True,
    )

    refusals = [one for one in answers if isinstance(one, Refused)]
    assert len(refusals) == 3
    (decision,) = (await me.shown()).decisions
    assert decision in answers


async def test_who_was_shown_another_customer_is_shown_it_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gatekeeper, "model", Offline(twice))
    me = await world.get_agent(Gatekeeper, "me")
    await me.send("Ada has moved, or has she?")
    by_city = {one.change.values["city"]: one for one in await me.waiting()}
    await me.accept(by_city["Paris"].seal)

    with pytest.raises(Refused, match="not what you were shown"):
        await me.accept(by_city["Rome"].seal)

    assert (await customers(world))[0]["city"] == "Paris"
    (again,) = await me.waiting()
    assert again.what == "change Ada Lovelace (1): city Paris → Rome"
    await me.accept(again.seal)
    assert (await customers(world))[0]["city"] == "Rome"


async def test_a_proposal_that_is_another_one_now_is_not_approved_by_its_old_seal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    cities = iter(("Paris", "Nowhere"))

    async def pretend(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[Any]:
        values = {"city": next(cities)}
        given = {"action": "change", "customer": 1, "values": values, "why": "So."}
        yield {0: DeltaToolCall("propose", json.dumps(given), tool_call_id="same")}

    monkeypatch.setattr(Gatekeeper, "model", FunctionModel(stream_function=pretend))
    me = await world.get_agent(Gatekeeper, "me")
    await me.send("Move Ada")
    (shown,) = await me.waiting()
    await me.send("Go on")  # and the model proposes something else by the same name
    (other,) = await me.waiting()
    assert other.change.values == {"city": "Nowhere"}

    with pytest.raises(Refused, match="not what you were shown"):
        await me.accept(shown.seal)

    assert (await customers(world))[0]["city"] == "London"
    assert await me.waiting() == [other]


async def test_what_nobody_waits_for_any_more_is_not_done(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    before = await customers(world)
    turn = await me.send("Delete Ada")
    (shown,) = await me.waiting()
    await me.turns.cancel(turn.id)

    with pytest.raises(Refused, match="Look again"):
        await me.accept(shown.seal)

    assert await customers(world) == before


async def test_a_seal_of_one_gate_opens_no_other(world: World) -> None:
    me = await world.get_agent(Gatekeeper, "me")
    other = await world.get_agent(Gatekeeper, "other")
    await me.send("Delete Ada")
    await other.send("Delete Ada")
    (mine,), (theirs,) = await me.waiting(), await other.waiting()

    with pytest.raises(Refused, match="Look again"):
        await other.accept(mine.seal)

    assert mine.seal != theirs.seal
    assert len(await other.find("Ada")) == len(await me.find("Ada")) == 1


def twice(heard: Heard) -> Reply:
    if heard.returned:
        return Reply("So be it.")
    calls = [
        gate_script.suggest("change", 1, (("city", city),), "Somebody said so.")
        for city in ("Paris", "Rome")
    ]
    return Reply(calls=tuple(calls))


async def waiting(me: Gatekeeper, many: int) -> list[Any]:
    """Return what waits at the gate, as soon as it is so many."""
    async with asyncio.timeout(60):
        async for _ in me.subscribe("tree"):
            if len(found := await me.waiting()) == many:
                return found
    raise AssertionError


async def customers(world: World) -> list[dict[str, Any]]:
    records = await world.get_agent(Gatekeeper, "me", sub=[(Records, "customers")])
    return [asdict(one) for one in await records.find()]


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[int, None]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    server.should_exit = True
    await task
    listening.close()


async def ask(port: int, path: str, data: Any = None) -> tuple[int, Any]:
    """Send a request; return its status, and what came back."""

    def send() -> tuple[int, str]:
        body = None if data is None else json.dumps(data).encode()
        head = {"content-type": "application/json"}
        request = Request(f"http://127.0.0.1:{port}{path}", body, head)
        try:
            with urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    status, text = await asyncio.to_thread(send)
    return status, json.loads(text) if text.startswith("{") else text


def opened(port: int, path: str) -> connect:
    return connect(f"ws://127.0.0.1:{port}{path}", proxy=None)


async def refused(port: int, path: str) -> int:
    """Return the code a socket is closed with, before anything was told to it."""
    async with asyncio.timeout(60), opened(port, path) as client:
        with pytest.raises(ConnectionClosed):
            await client.recv()
        return client.close_code or 0


async def called(client: ClientConnection, method: str, *args: Any) -> dict[str, Any]:
    call = {"type": "rpc", "id": method, "method": method, "args": args}
    await client.send(json.dumps(call))
    return json.loads(await heard(client, "rpc"))


async def heard(client: ClientConnection, kind: str) -> str:
    """Return the next frame of a kind."""
    async with asyncio.timeout(60):
        async for frame in client:
            if isinstance(frame, str) and json.loads(frame).get("type") == kind:
                return frame
    raise AssertionError
