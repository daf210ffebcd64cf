"""A2A 1.0: tasks of other agents, which survive crashes, ask what is asked at any depth, and belong to one user."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.conformance.served import Served, served
from tests.conformance.serving import serving
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Refused, agent_tool, tool
from sapwood.auth import ANY_CLIENT, User
from sapwood.errors import UsageError
from sapwood.protocols import A2a, A2aMessage, A2aPart
from sapwood.protocols.a2a_push import deliver, refuse_private
from sapwood.protocols.a2a_stream import or_silence
from sapwood.protocols.a2a_wire import A2aError, PushConfig
from sapwood.runs.dispatch.run_monitor import RunMonitor
from sapwood.runs.http.events_http import OpenStreams
from sapwood.testing import ScriptedModel, call, text


class TaskClerk(ChatAgent):
    """Pays when somebody allows it."""

    paid: ClassVar[list[int]] = []

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        self.paid.append(euros)
        return "paid"


class TaskBuyer(ChatAgent):
    """Has a clerk pay."""

    tools = (agent_tool(TaskClerk, name="clerk"),)


class TaskOffice(ChatAgent):
    """Has a buyer buy."""

    tools = (agent_tool(TaskBuyer, name="buyer"),)


class TaskWorker(Agent):
    """Works, and says what it was given."""

    begun: ClassVar[list[str]] = []
    go: ClassVar[asyncio.Event]

    async def on_run(self, input: A2aMessage) -> list[A2aPart] | A2aMessage | str:
        self.begun.append(input.message_id)
        word = input.parts[0].text
        if word == "wait":
            self.report_progress(0.5, "half done")
            await self.go.wait()
        if word == "refuse":
            raise Refused("not this")
        if word == "fail":
            raise RuntimeError("a secret")
        if word == "message":
            return A2aMessage("m", "ROLE_AGENT", [A2aPart(text="only a message")])
        if word == "file":
            return [A2aPart(raw="aGVsbG8=", filename="a.txt", media_type="text/plain")]
        if word == "ask":
            return await self.questions.ask("Which?", options=["red", "blue"], approvers=ANY_CLIENT)
        return f"you said {word}"


class TaskPlain(Agent):
    """Can do no task."""


@pytest.fixture(autouse=True)
def scripts() -> None:
    TaskOffice.model = ScriptedModel(call("buyer", message="buy"), text("all is bought"), each=True)
    TaskBuyer.model = ScriptedModel(call("clerk", message="pay 3"), text("it is bought"), each=True)
    TaskClerk.model = ScriptedModel(call("pay", euros=3, id="p1"), text("it is paid"), each=True)
    TaskWorker.begun, TaskWorker.go, TaskClerk.paid = [], asyncio.Event(), []


def who(request: Any) -> User | None:
    return User(request.headers["who"]) if "who" in request.headers else None


@asynccontextmanager
async def tasked(adapter: A2a | None = None, **options: Any) -> AsyncGenerator[Served, None]:
    adapter = adapter or A2a([TaskWorker, TaskOffice])
    async with asyncio.timeout(patience()), served(App(agents=[TaskOffice], protocols=[adapter], **options)) as one:
        yield one


async def rpc(one: Served, method: str, params: Any, path: str = "task-worker", **headers: str) -> Any:
    """Return the result, or the code of the error."""
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()
    answer = await one.site.http(f"/a2a/{path}", method="POST", body=body, headers={"A2A-Version": "1.0", **headers})
    assert answer.status == 200, answer.text
    told = answer.json()
    assert told["id"] == 7
    return told["error"]["code"] if "error" in told else told["result"]


def saying(word: str, id: str, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": id, "role": "ROLE_USER", "parts": [{"text": word}], **more}}


def at_once(params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "configuration": {"returnImmediately": True}}


def state_of(task: dict[str, Any]) -> str:
    return task["status"]["state"].removeprefix("TASK_STATE_")


async def events(one: Served, method: str, params: Any, path: str = "task-worker") -> list[dict[str, Any]]:
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()
    answer = await one.site.http(f"/a2a/{path}", method="POST", body=body, headers={"A2A-Version": "1.0"})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line)["result"] for line in lines]


async def test_a_message_begins_a_task_once_and_its_end_is_told_as_often_as_asked() -> None:
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", saying("hello", "m1")))["task"]
        again = (await rpc(one, "SendMessage", saying("hello", "m1")))["task"]

        assert (state_of(task), again) == ("COMPLETED", task)
        assert task["artifacts"][0]["parts"] == [{"text": "you said hello"}]
        assert [one["messageId"] for one in task["history"]] == ["m1"]
        assert await rpc(one, "GetTask", {"id": task["id"]}) == task
        assert "history" not in await rpc(one, "GetTask", {"task_id": "", "id": task["id"], "historyLength": 0})
        assert TaskWorker.begun == ["m1"]
        assert await rpc(one, "GetTask", {"id": task["id"], "historyLength": 10**30}) == task
        assert await rpc(one, "GetTask", {"id": "task-none"}) == -32001
        assert await rpc(one, "CancelTask", {"id": task["id"]}) == -32002
        assert await rpc(one, "SubscribeToTask", {"id": task["id"]}) == -32004
        assert await rpc(one, "GetTask", {"id": task["id"]}, "task-office") == -32001


async def test_a_task_goes_on_after_a_crash_and_the_same_message_finds_it() -> None:
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", at_once(saying("wait", "m1"))))["task"]
        await until(lambda: TaskWorker.begun == ["m1"])
        following = asyncio.create_task(events(one, "SubscribeToTask", {"id": task["id"]}))

        await one.world.crash()
        TaskWorker.go.set()
        ended = (await rpc(one, "SendMessage", saying("wait", "m1")))["task"]

        assert (ended["id"], state_of(ended)) == (task["id"], "COMPLETED")
        assert TaskWorker.begun == ["m1", "m1"]  # the method is called again, in the same run
        assert await rpc(one, "ListTasks", {}) == {
            "tasks": [{key: one for key, one in ended.items() if key not in ("artifacts", "history")}],
            "nextPageToken": "",
            "pageSize": 50,
            "totalSize": 1,
        }
        following.cancel()
        await asyncio.wait({following})


async def test_a_task_that_nobody_had_taken_before_a_crash_begins_when_its_message_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = asyncio.Event()

    async def awake(_: RunMonitor) -> None:
        tried.set()
        await asyncio.Event().wait()

    async with tasked() as one:
        with monkeypatch.context() as patched:
            patched.setattr(RunMonitor, "_awake", awake)
            asking = asyncio.create_task(rpc(one, "SendMessage", saying("hello", "m1")))
            await tried.wait()
            listed = await rpc(one, "ListTasks", {})
            await one.world.crash()
        asking.cancel()
        await asyncio.wait({asking})

        ended = (await rpc(one, "SendMessage", saying("hello", "m1")))["task"]
        assert (ended["id"], state_of(ended)) == (listed["tasks"][0]["id"], "COMPLETED")
        assert TaskWorker.begun == ["m1"]


async def test_a_message_with_a_notification_that_cannot_be_sent_begins_nothing() -> None:
    async with tasked() as one:
        params = saying("hello", "m1") | {"configuration": {"taskPushNotificationConfig": {"url": "http://10.0.0.1/"}}}
        assert await rpc(one, "SendMessage", params) == -32602
        assert (await rpc(one, "ListTasks", {}))["totalSize"] == 0


async def test_what_is_asked_three_levels_down_is_answered_by_a_message_to_the_task_also_after_a_crash() -> None:
    async with tasked() as one:
        told = await events(one, "SendStreamingMessage", saying("buy", "m1"), "task-office")
        task, last = told[0]["task"], told[-1]["statusUpdate"]
        assert last["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        line, data = last["status"]["message"]["parts"]
        assert line["text"] == 'TaskOffice/TaskBuyer/TaskClerk: May pay be called with {"euros":3}?'
        assert data["data"]["questions"][0]["arguments"] == {"euros": 3}

        await one.world.crash()
        reply = {"taskId": task["id"], "contextId": task["contextId"]}
        assert await rpc(one, "SendMessage", saying("perhaps", "m2", **reply), "task-office") == -32602
        assert (
            await rpc(one, "SendMessage", saying("yes", "m3", taskId=task["id"], contextId="other"), "task-office")
            == -32602
        )
        ended = (await rpc(one, "SendMessage", saying("yes", "m3", **reply), "task-office"))["task"]

        assert (state_of(ended), TaskClerk.paid) == ("COMPLETED", [3])
        assert ended["artifacts"][0]["parts"] == [{"text": "all is bought"}]
        again = (await rpc(one, "SendMessage", saying("yes", "m3", **reply), "task-office"))["task"]
        assert again == ended
        assert await rpc(one, "SendMessage", saying("yes", "m4", **reply), "task-office") == -32004


async def test_an_approval_may_be_data() -> None:
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", saying("buy", "m1"), "task-office"))["task"]
        approval = {"parts": [{"data": {"approved": False, "reason": "too much"}}], "taskId": task["id"]}
        await rpc(one, "SendMessage", saying("", "m2", **approval), "task-office")
        assert TaskClerk.paid == []
        other = (await rpc(one, "SendMessage", saying("buy", "m3"), "task-office"))["task"]
        approval = {"parts": [{"data": {"approved": True}}], "taskId": other["id"]}
        ended = (await rpc(one, "SendMessage", saying("", "m4", **approval), "task-office"))["task"]
        assert (state_of(ended), TaskClerk.paid) == ("COMPLETED", [3])


async def test_a_question_with_options_takes_one_of_them() -> None:
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", saying("ask", "m1")))["task"]
        assert state_of(task) == "INPUT_REQUIRED"
        assert await rpc(one, "SendMessage", saying("green", "m2", taskId=task["id"])) == -32602
        (question,) = task["status"]["message"]["parts"][1]["data"]["questions"]
        answer = {"parts": [{"data": {"answers": {question["id"]: "blue"}}}], "taskId": task["id"]}
        ended = (await rpc(one, "SendMessage", saying("", "m3", **answer)))["task"]
        assert ended["artifacts"][0]["parts"] == [{"text": "blue"}]


@pytest.mark.promise("B-24")
async def test_a_stream_tells_words_and_ends_with_the_whole_result() -> None:
    TaskOffice.model = ScriptedModel(text("once upon a time"))
    async with tasked() as one:
        told = await events(one, "SendStreamingMessage", saying("tell", "m1"), "task-office")
        artifacts = [one["artifactUpdate"] for one in told if "artifactUpdate" in one]
        words = "".join(one["artifact"]["parts"][0]["text"] for one in artifacts if one["append"])
        assert words == "once upon a time"
        assert (artifacts[-1]["append"], artifacts[-1]["lastChunk"]) == (False, True)
        assert artifacts[-1]["artifact"]["parts"] == [{"text": "once upon a time"}]
        assert told[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_context_is_one_conversation() -> None:
    TaskOffice.model = model = ScriptedModel(text("first"), text("second"), text("third"))
    async with tasked() as one:
        first = (await rpc(one, "SendMessage", saying("one", "m1"), "task-office"))["task"]
        context = {"contextId": first["contextId"]}
        await rpc(one, "SendMessage", saying("two", "m2", **context), "task-office")
        await rpc(one, "SendMessage", saying("three", "m3"), "task-office")

        assert [len(messages) for messages in model.asked] == [1, 3, 1]
        listed = await rpc(one, "ListTasks", {**context, "pageSize": 1}, "task-office")
        assert (len(listed["tasks"]), listed["totalSize"]) == (1, 2)
        after = {**context, "pageSize": 1, "pageToken": listed["nextPageToken"]}
        following = await rpc(one, "ListTasks", after, "task-office")
        assert ([one["id"] for one in following["tasks"]], following["nextPageToken"]) == ([first["id"]], "")
        assert (await rpc(one, "ListTasks", {"status": "TASK_STATE_FAILED"}, "task-office"))["totalSize"] == 0


@pytest.mark.parametrize(("word", "told"), [("refuse", "not this"), ("fail", "Internal error (reference")])
async def test_a_failure_is_told_without_the_text_of_an_internal_error(word: str, told: str) -> None:
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", saying(word, "m1")))["task"]
        assert state_of(task) == "FAILED"
        assert task["status"]["message"]["parts"][0]["text"].startswith(told)
        assert "secret" not in json.dumps(task)


async def test_a_result_may_be_a_file_or_a_message() -> None:
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", saying("file", "m1")))["task"]
        assert task["artifacts"][0]["parts"] == [{"raw": "aGVsbG8=", "filename": "a.txt", "mediaType": "text/plain"}]
        message = (await rpc(one, "SendMessage", saying("message", "m2")))["message"]
        assert (message["role"], message["parts"]) == ("ROLE_AGENT", [{"text": "only a message"}])


async def test_a_task_is_cancelled() -> None:
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", at_once(saying("wait", "m1"))))["task"]
        await until(lambda: TaskWorker.begun == ["m1"])
        assert state_of(await rpc(one, "CancelTask", {"id": task["id"]})) == "CANCELED"
        assert await rpc(one, "CancelTask", {"id": task["id"]}) == -32002


async def test_a_server_that_stops_ends_what_waits_for_a_task() -> None:
    async with tasked() as one:
        waiting = asyncio.create_task(rpc(one, "SendMessage", saying("wait", "m1")))
        await until(lambda: TaskWorker.begun == ["m1"])
        (task,) = (await rpc(one, "ListTasks", {}))["tasks"]
        following = asyncio.create_task(events(one, "SubscribeToTask", {"id": task["id"]}))
        streams = one.world.node.shared(OpenStreams)
        await until(lambda: len(streams.readers) == 2)

        streams.end()
        assert state_of((await waiting)["task"]) == "WORKING"
        assert state_of((await following)[0]["task"]) == "WORKING"
        await until(lambda: not streams.readers)


async def test_a_client_that_goes_is_not_waited_for() -> None:
    async with tasked() as one:
        waiting = asyncio.create_task(rpc(one, "SendMessage", saying("wait", "m1")))
        streams = one.world.node.shared(OpenStreams)
        await until(lambda: len(streams.readers) == 1)
        waiting.cancel()
        await until(lambda: not streams.readers)

        TaskWorker.go.set()
        assert state_of((await rpc(one, "SendMessage", saying("wait", "m1")))["task"]) == "COMPLETED"


async def test_events_may_end() -> None:
    async def none() -> AsyncGenerator[Any, None]:
        return
        yield

    async with tasked() as one:
        streams = one.world.node.shared(OpenStreams)
        assert [event async for event in or_silence(streams, none(), 9)] == []
        assert not streams.readers


async def test_nobody_reaches_the_tasks_of_another_user() -> None:
    async with tasked(authenticate=who) as one:
        assert (await one.site.http("/a2a/task-worker", method="POST", body=b"{}")).status == 401
        task = (await rpc(one, "SendMessage", saying("hello", "m1"), who="ann"))["task"]
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            assert await rpc(one, method, {"id": task["id"]}, who="bob") == -32001
        assert await rpc(one, "SendMessage", saying("hello", "m2", taskId=task["id"]), who="bob") == -32001
        assert (await rpc(one, "ListTasks", {}, who="bob"))["tasks"] == []
        theirs = (await rpc(one, "SendMessage", saying("hello", "m1"), who="bob"))["task"]
        assert theirs["id"] != task["id"]
        for name in ("user:ann", "everyone"):
            url = f"/agents/sapwood-a2a-desk/{name}"
            assert (await one.site.http(url, headers={"who": "ann"})).status == 400
        config = {"taskId": task["id"], "url": "https://example.com/"}
        assert await rpc(one, "CreateTaskPushNotificationConfig", config, who="bob") == -32001


class Numbered:
    """A user whose id is no string."""

    id = 7


async def test_users_without_an_id_do_not_share_tasks() -> None:
    async with tasked(authenticate=lambda request: Numbered()) as one:
        answer = await one.site.http("/a2a/task-worker", method="POST", body=a_message(parts=[{"text": "hello"}]))
        assert (answer.status, TaskWorker.begun) == (500, [])


async def test_an_app_below_a_path_of_another_one_has_the_same_agents() -> None:
    async with tasked() as one:
        app = Starlette(routes=[Mount("/below", app=one.world.app)])
        async with serving(app, one.world) as site:
            card = (await site.http("/below/a2a/task-worker/.well-known/agent-card.json")).json()
            url = f"http://127.0.0.1:{site.port}/below/a2a/task-worker"
            assert card["supportedInterfaces"][0]["url"] == url
            body, headers = a_call("SendMessage", saying("hello", "m1")), {"A2A-Version": "1.0"}
            answer = await site.http("/below/a2a/task-worker", method="POST", body=body, headers=headers)
            assert state_of(answer.json()["result"]["task"]) == "COMPLETED"


async def test_cards_are_public_and_name_the_agent_and_its_url() -> None:
    adapter = A2a([TaskWorker, TaskOffice], url="https://agents.example.com/", security={"key": {"x": 1}})
    async with tasked(adapter, authenticate=who) as one:
        first = (await one.site.http("/.well-known/agent-card.json")).json()
        own = (await one.site.http("/a2a/task-office/.well-known/agent-card.json")).json()

        assert (first["name"], own["name"], own["description"]) == ("TaskWorker", "TaskOffice", "Has a buyer buy.")
        assert own["supportedInterfaces"][0]["url"] == "https://agents.example.com/a2a/task-office"
        assert own["securityRequirements"] == [{"schemes": {"key": {"list": []}}}]
        again = await one.site.http("/.well-known/agent-card.json")
        tag = again.headers["etag"]
        cached = await one.site.http("/.well-known/agent-card.json", headers={"if-none-match": tag})
        assert (cached.status, cached.text, cached.headers["etag"]) == (304, "", tag)
        other = await one.site.http("/a2a/task-office/.well-known/agent-card.json", headers={"if-none-match": tag})
        assert other.status == 200
        assert (await one.site.http("/a2a/nobody/.well-known/agent-card.json", headers={"who": "ann"})).status == 404
        unknown = await one.site.http("/a2a/nobody", method="POST", headers={"who": "ann"})
        assert (unknown.status, "/a2a/task-worker" in unknown.text) == (404, True)
        assert (await one.site.http("/a2a/task-worker", headers={"who": "ann"})).status == 405


def a_call(method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def a_message(**fields: Any) -> bytes:
    return a_call("SendMessage", {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [], **fields}})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b'{"jsonrpc":"2.0","method":"GetTask","params":{"id":"\xff"}}', -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b'{"jsonrpc":"1.0","method":"GetTask"}', -32600),
        (a_call("Nothing", {}), -32601),
        (a_call("GetTask", {}), -32602),
        (a_call("GetTask", {"id": "x", "tenant": "t"}), -32602),
        (a_message(), -32602),
        (a_message(parts=[{}]), -32602),
        (a_message(parts=[{"text": "a", "url": "b"}]), -32602),
        (a_message(parts=[{"text": "a"}], role="ROLE_AGENT"), -32602),
        (a_message(parts=[{"text": "a"}], messageId=""), -32602),
        (a_message(parts=[{"text": "a"}], messageId="m" * 513), -32602),
        (a_message(parts=[{"text": "a"}], contextId="ä" * 257), -32602),
        (a_message(parts=[{"text": "a"}], contextId="a\0"), -32602),
        (a_call("ListTasks", {"pageSize": 0}), -32602),
        (a_call("ListTasks", {"statusTimestampAfter": "2020-01-01T00:00:00"}), -32602),
        (a_call("ListTasks", {"status": "DONE"}), -32602),
        (a_call("ListTasks", {"pageToken": "x"}), -32602),
        (a_call("GetExtendedAgentCard", {}), -32007),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":' + b"[" * 5000 + b"]" * 5000 + b"}", -32700),
        (a_message(parts=[{"data": json.loads("[" * 300 + "]" * 300)}]), -32700),
    ],
)
async def test_what_is_no_request_is_answered_with_the_code_of_its_mistake(body: bytes, code: int) -> None:
    async with tasked() as one:
        answer = await one.site.http("/a2a/task-worker", method="POST", body=body, headers={"A2A-Version": "1.0"})
        assert (answer.status, answer.json()["error"]["code"]) == (200, code)
        assert TaskWorker.begun == []


async def test_another_version_or_type_of_content_is_refused() -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"ListTasks"}'
    async with tasked() as one:
        for headers, code in (
            ({}, -32009),
            ({"A2A-Version": "0.3"}, -32009),
            ({"A2A-Version": "1.0", "content-type": "text/plain"}, -32005),
        ):
            answer = await one.site.http("/a2a/task-worker", method="POST", body=body, headers=headers)
            assert answer.json()["error"]["code"] == code


async def test_the_end_of_a_task_is_pushed_though_the_process_dies_and_the_receiver_fails_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []

    async def deliver(config: Any, body: Any, allowed: Any) -> None:
        sent.append((config.url, config.token, state_of(body["task"])))
        if len(sent) == 1:
            raise RuntimeError("not now")

    monkeypatch.setattr("sapwood.protocols.a2a_desk.deliver", deliver)
    async with tasked(A2a([TaskWorker], push_hosts=["127.0.0.1"])) as one:
        config = {"url": "http://127.0.0.1:9/hook", "token": "t0k", "id": "c1"}
        params = saying("wait", "m1") | {
            "configuration": {"returnImmediately": True, "taskPushNotificationConfig": config}
        }
        task = (await rpc(one, "SendMessage", params))["task"]
        of_task = {"taskId": task["id"], "id": "c1"}
        kept = await rpc(one, "GetTaskPushNotificationConfig", of_task)
        assert (kept["url"], kept["taskId"]) == (config["url"], task["id"])
        await until(lambda: TaskWorker.begun == ["m1"])
        await one.world.crash()
        TaskWorker.go.set()
        assert state_of((await rpc(one, "SendMessage", saying("wait", "m1")))["task"]) == "COMPLETED"
        while len(sent) < 2:
            await one.world.clock.advance(5)
            await asyncio.sleep(0.01)

        assert sent == [("http://127.0.0.1:9/hook", "t0k", "COMPLETED")] * 2
        assert (await rpc(one, "ListTaskPushNotificationConfigs", {"taskId": task["id"]}))["configs"] == [kept]
        assert await rpc(one, "DeleteTaskPushNotificationConfig", of_task) is None
        assert await rpc(one, "GetTaskPushNotificationConfig", of_task) == -32001


async def test_a_message_that_comes_again_adds_no_second_notification(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    async def deliver(config: Any, body: Any, allowed: Any) -> None:
        sent.append(config.url)

    monkeypatch.setattr("sapwood.protocols.a2a_desk.deliver", deliver)
    async with tasked(A2a([TaskWorker], push_hosts=["127.0.0.1"])) as one:

        def hooked(url: str) -> dict[str, Any]:
            config = {"url": url, "token": "t0k"}
            return saying("wait", "m1") | {
                "configuration": {"returnImmediately": True, "taskPushNotificationConfig": config}
            }

        first, second = "http://127.0.0.1:9/first", "http://127.0.0.1:9/second"
        task = (await rpc(one, "SendMessage", hooked(first)))["task"]
        for url in (first, first, second):
            assert (await rpc(one, "SendMessage", hooked(url)))["task"]["id"] == task["id"]
        listed = (await rpc(one, "ListTaskPushNotificationConfigs", {"taskId": task["id"]}))["configs"]
        assert sorted(config["url"] for config in listed) == [first, second]

        TaskWorker.go.set()
        await until(lambda: len(sent) == 2)
        await rpc(one, "SendMessage", hooked(first))  # the task is over, and its end was told
        await one.world.settled()
        assert sorted(sent) == [first, second]


PRIVATE = (
    "http://127.0.0.1/",
    "http://10.0.0.1/",
    "http://169.254.169.254/latest",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[::7f00:1]/",
    "http://[fec0::1]/",
    "http://[ff0e::1]/",
    "http://224.0.0.1/",
    "http://[::1",
    "http://a:99999/",
    "http://a..b/",
    "file:///etc",
    "/x",
)


@pytest.mark.parametrize("url", PRIVATE)
async def test_notifications_are_sent_to_no_private_host(url: str) -> None:
    with pytest.raises(A2aError):
        await refuse_private(url, frozenset())
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", saying("hello", "m1")))["task"]
        config = {"taskId": task["id"], "url": url}
        assert await rpc(one, "CreateTaskPushNotificationConfig", config) == -32602


PUBLIC = "http://8.8.8.8/"


@pytest.mark.parametrize(
    "config",
    [
        {"url": ""},
        {"url": f"{PUBLIC}a b"},
        {"url": PUBLIC + "a" * 2048},
        {"url": PUBLIC, "id": "a" * 201},
        {"url": PUBLIC, "token": "a\r\nHost: b"},
        {"url": PUBLIC, "token": "ü"},
        {"url": PUBLIC, "authentication": {"scheme": "Bearer\r\nHost: b"}},
        {"url": PUBLIC, "authentication": {"scheme": "Bearer", "credentials": "a\nb"}},
    ],
)
async def test_a_notification_that_could_never_be_sent_is_refused_at_once(config: dict[str, Any]) -> None:
    async with tasked() as one:
        task = (await rpc(one, "SendMessage", saying("hello", "m1")))["task"]
        assert await rpc(one, "CreateTaskPushNotificationConfig", {"taskId": task["id"], **config}) == -32602


async def test_what_a_receiver_says_is_not_read() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n")
        with suppress(OSError):
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()

    async with asyncio.timeout(patience()), await asyncio.start_server(endless, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await deliver(PushConfig(url=f"http://127.0.0.1:{port}/"), {}, {"127.0.0.1"})


def test_an_adapter_without_agents_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one agent class"):
        A2a([])
    with pytest.raises(UsageError, match=r"Write A2a\(\[TaskClerk\]\)"):
        A2a(TaskClerk)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"TaskPlain must be a chat agent class, or an agent class with on_run"):
        A2a([TaskPlain])
