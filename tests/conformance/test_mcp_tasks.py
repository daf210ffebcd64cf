"""Tasks of MCP are runs: they survive crashes, ask from any depth, are answered, cancelled, and belong to one user."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.conformance.mcp_clients import FORMS, TASKS, WITH_TASKS, Mcp, held, mcp_served
from tests.conformance.worlds import until

from sapwood import Agent, App, ChatAgent, Limits, agent_tool, tool
from sapwood.auth import ANY_CLIENT, User
from sapwood.protocols import Mcp as McpProtocol
from sapwood.testing import ScriptedModel, call, text


class McpCounter(Agent):
    """Counts."""

    go: ClassVar[asyncio.Event]
    counted: ClassVar[list[str]] = []

    async def on_run(self, what: str) -> int:
        self.report_progress(0.5, "half of it")
        await self.step("count", self._count, what)
        return 3

    async def _count(self, what: str) -> None:
        await self.go.wait()
        self.counted.append(what)


class McpClerk(ChatAgent):
    """Pays when a person allows it."""

    paid: ClassVar[list[int]] = []
    model = ScriptedModel(call("pay", euros=3, id="p1"), text("it is paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        self.paid.append(euros)
        return f"{euros} paid"


class McpBuyer(ChatAgent):
    """Has a clerk pay."""

    model = ScriptedModel(call("clerk", message="pay 3", id="b1"), text("bought"), each=True)
    tools = (agent_tool(McpClerk, name="clerk"),)


class McpOffice(ChatAgent):
    """Has a buyer buy."""

    model = ScriptedModel(call("buyer", message="buy", id="o1"), text("here it is"), each=True)
    tools = (agent_tool(McpBuyer, name="buyer"),)


class McpBossClerk(McpClerk):
    """Pays when a boss allows it."""

    @tool(requires_approval=True, approvers="boss")
    async def pay(self, euros: int) -> str:
        """Pay."""
        return f"{euros} paid"


@dataclass
class McpSize:
    width: int
    label: str


class McpAsker(Agent):
    """Asks in every way there is."""

    async def on_run(self, topic: str) -> list[Any]:
        color = await self.questions.ask("Which color?", options=["red", "blue"], approvers=ANY_CLIENT)
        name = await self.questions.ask("Which name?", approvers=ANY_CLIENT)
        size = await self.questions.ask("Which size?", schema=McpSize, approvers=ANY_CLIENT)
        count = await self.questions.ask("How many?", schema=int, approvers=ANY_CLIENT)
        parts = await self.questions.ask("Which parts?", schema=list[str], approvers=ANY_CLIENT)
        return [topic, color, name, size.width, size.label, count, parts]


def who(request: Any) -> User | None:
    return User(request.headers["who"]) if "who" in request.headers else None


def app(**more: Any) -> App:
    McpCounter.go, McpCounter.counted, McpClerk.paid = asyncio.Event(), [], []
    tools = [agent_tool(one, name=name) for name, one in TOOLS.items()]
    support: Any = {"must": "required", "never": "forbidden"}
    return App(agents=[], protocols=[McpProtocol(tools=tools, task_support=support)], **more)


TOOLS: dict[str, type[Agent[Any]]] = {
    "count": McpCounter,
    "must": McpCounter,
    "never": McpAsker,
    "office": McpOffice,
    "boss": McpBossClerk,
    "ask": McpAsker,
}
NOTHING: dict[str, Any] = {"action": "accept", "content": {}}
YES = {"action": "accept", "content": {"approved": True}}


def accepted(answer: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"answer": answer}}


async def asked(client: Mcp, task: str) -> tuple[str, dict[str, Any]]:
    """Return the one question of a task, with its id."""
    found = await client.settled(task)
    assert found["status"] == "input_required", found
    ((key, request),) = found["inputRequests"].items()
    assert request["method"] == "elicitation/create"
    return key, request["params"]


async def test_a_task_survives_a_crash_and_its_work_is_done_once() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        made = await client.call("count", {"what": "sheep"})
        assert made["resultType"] == "task"
        assert made["status"] == "working"
        task = made["taskId"]
        await one.world.crash()
        McpCounter.go.set()
        done = await client.settled(task)
        assert done["status"] == "completed"
        assert done["result"]["structuredContent"] == {"result": 3}
        assert McpCounter.counted == ["sheep"]
        assert await client.settled(task) == {**done, "lastUpdatedAt": done["lastUpdatedAt"]}


async def test_a_task_shows_its_progress() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        task = (await client.call("count", {"what": "sheep"}))["taskId"]
        found: dict[str, Any] = {}
        while found.get("statusMessage") != "half of it":
            found = await client.ask("tasks/get", taskId=task)
        assert found["status"] == "working"


async def test_an_approval_three_levels_down_is_answered_after_a_crash_and_paid_once() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        task = (await client.call("office", {"message": "a printer"}))["taskId"]
        key, params = await asked(client, task)
        assert params["message"] == 'McpOffice → McpBuyer → McpClerk wants to call pay with {"euros":3}. Allow it?'
        assert params["requestedSchema"]["properties"]["approved"]["type"] == "boolean"

        await one.world.crash()
        assert await asked(client, task) == (key, params)
        await client.ask("tasks/update", taskId=task, inputResponses={"other": YES, key: YES})
        await one.world.crash()
        done = await client.settled(task)
        assert done["result"]["content"][0]["text"] == "here it is"
        assert McpClerk.paid == [3]
        assert await client.ask("tasks/update", taskId=task, inputResponses={key: YES}) == {"resultType": "complete"}


@pytest.mark.parametrize("response", [{"action": "decline"}, {"action": "accept", "content": {"approved": False}}])
async def test_what_is_declined_is_not_done(response: dict[str, Any]) -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        task = (await client.call("office", {"message": "a printer"}))["taskId"]
        key, _ = await asked(client, task)
        await client.ask("tasks/update", taskId=task, inputResponses={key: response})
        assert (await client.settled(task))["status"] == "completed"
        assert McpClerk.paid == []


ANSWERS = [
    ({"answer": "blue"}, {"answer": "green"}),
    ({"answer": "Ann"}, {"answer": 3}),
    ({"width": 3, "label": "x"}, {"width": "wide", "label": "x"}),
    ({"answer": 7}, {"answer": "seven"}),
    ({"answer": '["a","b"]'}, {"answer": "["}),
]


async def test_every_kind_of_question_is_a_form_and_a_wrong_answer_leaves_it_open() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        task = (await client.call("ask", {"topic": "shoes"}))["taskId"]
        forms: list[Any] = []
        for right, wrong in ANSWERS:
            key, params = await asked(client, task)
            forms.append(params["requestedSchema"]["properties"])
            for bad in ({"action": "accept", "content": wrong}, {"action": "maybe"}, {"action": "accept"}, 3):
                assert (await client.error("tasks/update", taskId=task, inputResponses={key: bad}))["code"] == -32602
            assert (await asked(client, task))[0] == key
            answer = {"action": "accept", "content": right}
            await client.ask("tasks/update", taskId=task, inputResponses={key: answer})
        done = await client.settled(task)
        assert done["result"]["structuredContent"]["result"] == ["shoes", "blue", "Ann", 3, "x", 7, ["a", "b"]]
        assert forms[0]["answer"]["enum"] == ["red", "blue"]
        assert set(forms[2]) == {"width", "label"}


async def test_an_answer_that_is_too_long_is_an_error_of_the_request_and_leaves_the_question_open() -> None:
    async with mcp_served(app(), limits=Limits(payload_bytes=5000)) as one:
        client = Mcp(one, WITH_TASKS)
        task = (await client.call("ask", {"topic": "shoes"}))["taskId"]
        color, _ = await asked(client, task)
        await client.ask("tasks/update", taskId=task, inputResponses={color: accepted("red")})
        key, _ = await asked(client, task)
        error = await client.error("tasks/update", taskId=task, inputResponses={key: accepted("x" * 6000)})
        assert (error["code"], "at most 5000 bytes" in error["message"]) == (-32602, True)
        assert (await asked(client, task))[0] == key


async def test_a_client_without_tasks_is_asked_by_the_result_and_answers_after_a_crash() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, FORMS)
        first = await client.call("office", {"message": "a printer"})
        assert first["resultType"] == "input_required"
        ((key, _),) = first["inputRequests"].items()
        await one.world.crash()
        state = {"requestState": first["requestState"]}
        again = await client.call("office", {"message": "a printer"}, inputResponses={key: NOTHING}, **state)
        assert list(again["inputRequests"]) == [key]
        result = await client.call("office", {"message": "a printer"}, inputResponses={key: YES}, **state)
        assert result["content"][0]["text"] == "here it is"
        assert McpClerk.paid == [3]
        repeated = await client.call("office", {"message": "a printer"}, inputResponses={key: YES}, **state)
        assert repeated["content"] == result["content"]
        assert McpClerk.paid == [3]
        assert (await client.error("tools/call", name="office", inputResponses={key: YES}))["code"] == -32602


async def test_a_client_with_a_session_is_asked_on_the_stream_and_answers_after_a_crash() -> None:
    async with mcp_served(app()) as one:
        client = await Mcp(one, FORMS).begun()
        call = held(one, client, "office", {"message": "a printer"}, id=1)
        await until(lambda: len(call.messages) == 1)
        request = call.messages[0]
        assert request["method"] == "elicitation/create"

        await one.world.crash()
        resumed = held(one, client, after=call.ids[-1])
        await until(lambda: len(resumed.messages) == 1)
        assert resumed.messages[0] == request
        assert (await client.respond(request["id"], {"action": "accept"})).status == 400
        assert (await client.respond(request["id"], YES)).status == 202
        assert (await resumed.over())["result"]["content"][0]["text"] == "here it is"
        assert McpClerk.paid == [3]
        assert (await client.respond(request["id"], YES)).status == 202
        assert McpClerk.paid == [3]


@pytest.mark.parametrize("capabilities", [WITH_TASKS, FORMS])
async def test_a_user_does_not_see_what_only_another_may_answer(capabilities: dict[str, Any]) -> None:
    async with mcp_served(app(authenticate=who)) as one:
        client = Mcp(one, WITH_TASKS, who="ann")
        task = (await client.call("boss", {"message": "pay"}))["taskId"]
        for _ in range(20):
            found = await client.ask("tasks/get", taskId=task)
            assert found["status"] == "working"
            await asyncio.sleep(0.01)


async def test_a_task_is_cancelled_with_all_below_it_and_twice_is_no_error() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, WITH_TASKS)
        task = (await client.call("office", {"message": "a printer"}))["taskId"]
        key, _ = await asked(client, task)
        for _ in range(2):
            assert await client.ask("tasks/cancel", taskId=task) == {"resultType": "complete"}
        assert (await client.settled(task))["status"] == "cancelled"
        await client.ask("tasks/update", taskId=task, inputResponses={key: YES})
        assert McpClerk.paid == []


async def test_another_user_finds_no_task_and_cannot_use_a_state() -> None:
    async with mcp_served(app(authenticate=who)) as one:
        ann, eve = Mcp(one, WITH_TASKS, who="ann"), Mcp(one, WITH_TASKS, who="eve")
        task = (await ann.call("office", {"message": "a printer"}))["taskId"]
        for method in ("tasks/get", "tasks/cancel"):
            assert (await eve.error(method, taskId=task))["code"] == -32602
        assert (await eve.error("tasks/update", taskId=task, inputResponses={}))["code"] == -32602
        eve.capabilities = FORMS
        held_call = await Mcp(one, FORMS, who="bob").call("never", {"topic": "x"})
        state = {"requestState": held_call["requestState"]}
        assert (await eve.error("tools/call", name="never", arguments={"topic": "x"}, **state))["code"] == -32602
        assert (await ann.ask("tasks/get", taskId=task))["taskId"] == task


async def test_tasks_are_for_clients_that_declare_them() -> None:
    async with mcp_served(app()) as one:
        client = Mcp(one, FORMS)
        for method in ("tasks/get", "tasks/cancel"):
            error = await client.error(method, taskId="x")
            assert error["code"] == -32021
            assert error["data"]["requiredCapabilities"] == {"extensions": {TASKS: {}}}
        assert (await client.error("tools/call", name="must", arguments={"what": "x"}))["code"] == -32021
        with_tasks = Mcp(one, WITH_TASKS)
        assert (await with_tasks.call("never", {"topic": "x"}))["resultType"] == "input_required"
        assert (await with_tasks.error("tasks/get", taskId="nothing"))["code"] == -32602
        found = await with_tasks.ask("server/discover")
        assert found["capabilities"]["extensions"] == {TASKS: {}}
