"""Agents of other systems by A2A: a task is begun once, followed across crashes and cuts, asked, and cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.a2a_servers import OtherSystem, OtherTask, other_system
from tests.conformance.chats import Talking
from tests.conformance.errands import bodies, over, text, told_end
from tests.conformance.served import served
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App, Question, Run, agent, agent_tool
from sapwood.admin.admin import Admin
from sapwood.auth import ANY_CLIENT
from sapwood.errors import Unavailable, UsageError
from sapwood.protocols import A2aAgent, a2a_connection, a2a_progress
from sapwood.testing import ScriptedModel, call
from sapwood.testing import text as says
from sapwood.timings import DEFAULTS

FAST = replace(DEFAULTS, remote_look_delay=0.01)


class Caller(Talking):
    """Has a task done elsewhere."""

    at: type[Any]
    deps: OtherSystem

    async def give(self, input: Any, run_id: str = "r1") -> Run:
        return await self.run_agent(self.at, input, run_id=run_id)

    async def one(self, id: str) -> Run | None:
        return self.runs.get(id)

    async def stop(self, id: str) -> bool:
        return self.runs.cancel(id, "enough")

    async def forget(self) -> None:
        await self.runs.clear()

    async def asked(self) -> list[Question]:
        return await self.questions.list()

    async def reply(self, value: Any) -> bool:
        (question,) = await self.questions.list()
        return await self.questions.answer(question, value)

    async def deny(self, reason: str) -> bool:
        (question,) = await self.questions.list()
        return await self.questions.deny(question, reason)


class Pair:
    """Another system, and a server that calls it."""

    def __init__(self, other: OtherSystem, near: Any, cls: type[Any]) -> None:
        self.other, self.near, self.cls = other, near, cls

    async def caller(self) -> Any:
        return await self.near.world.get_agent(self.cls, "d")

    async def giving(self, input: Any = "dig", tasks: int = 1) -> asyncio.Task[Run]:
        """Give a task, and return when the other system has it."""
        giving = asyncio.create_task((await self.caller()).give(input))
        await until(lambda: len(self.other.tasks) == tasks or giving.done())
        return giving

    async def crash(self) -> None:
        await self.near.world.crash()

    async def question(self) -> Question:
        caller = await self.caller()
        async with asyncio.timeout(patience()):
            while not (asked := await caller.asked()):  # noqa: ASYNC110 - each look is a call
                await asyncio.sleep(0.005)
        return asked[0]

    async def looks_again(self) -> None:
        """Return when the caller has looked at its task since now."""
        looks = self.count("GetTask")
        await until(lambda: self.count("GetTask") > looks + 1)

    def count(self, method: str) -> int:
        return self.other.calls.count(method)


def caller_of(url: str, **members: Any) -> type[Any]:
    """Make the class of a caller, for the URL of another system."""

    class At(A2aAgent):
        deps: OtherSystem
        approvers = ANY_CLIENT

        async def token(self) -> str | None:
            return "t0ken"

        def headers(self) -> dict[str, str]:
            return {"x-api-key": "k3y"}

    At.url = url
    for name, value in members.items():
        setattr(At, name, value)

    class CallerHere(Caller):
        at = agent(type="AtOther")(At)

    return agent(type="A2aCaller")(CallerHere)


@asynccontextmanager
async def pair(members: dict[str, Any] | None = None, path: str = "", **options: Any) -> AsyncGenerator[Pair, None]:
    async with asyncio.timeout(patience()), other_system(**options) as other:
        cls = caller_of(f"{other.url}{path}", **members or {})
        async with served(App(agents=[cls], deps=other), timings=FAST) as near:
            yield Pair(other, near, cls)


def parts(*given: Any) -> list[dict[str, Any]]:
    return [{"text": one} if isinstance(one, str) else {"data": one} for one in given]


def made(*artifacts: Any) -> list[dict[str, Any]]:
    return [{"artifactId": f"a{n}", "parts": parts(*one)} for n, one in enumerate(artifacts)]


@pytest.mark.promise("B-38")
@pytest.mark.parametrize("streams", [False, True], ids=["looked up", "streamed"])
@pytest.mark.parametrize(
    ("artifacts", "output"),
    [
        (made(["it is ", "dug"]), "it is dug"),
        (made(["one"], ["two"]), "one\n\ntwo"),
        (made([{"depth": 3}]), {"depth": 3}),
        (made(["see", {"depth": 3}]), [{"text": "see"}, {"data": {"depth": 3}}]),
        (made(), None),
    ],
    ids=["text", "texts", "data", "mixed", "none"],
)
async def test_a_run_is_a_task_and_its_artifacts_are_its_result(streams: bool, artifacts: Any, output: Any) -> None:
    async with pair(streams=streams) as both:
        giving = await both.giving({"where": "here"})
        await both.other.change("COMPLETED", artifacts=artifacts)

        run = await giving

        assert (run.status, run.output) == ("completed", output)
        (task,) = both.other.tasks
        assert task.history[0]["parts"] == [{"data": {"where": "here"}, "mediaType": "application/json"}]
        assert both.other.headers[0]["authorization"] == "Bearer t0ken"
        assert (both.other.headers[0]["x-api-key"], both.other.headers[0]["a2a-version"]) == ("k3y", "1.0")
        assert both.count("card") == 1


async def test_the_record_of_a_task_has_its_id_while_it_works_and_after_its_end() -> None:
    async with pair() as both:
        giving = await both.giving()
        (task,) = both.other.tasks
        admin, address = Admin(both.near.world.node), "A2aCaller:d/AtOther:r1"

        async def record() -> dict[str, Any]:
            return (await admin.explain(address, "r1"))["spans"][0]

        async with asyncio.timeout(patience()):
            while "task" not in (await record())["facts"]:  # noqa: ASYNC110 - a commit tells nobody
                await asyncio.sleep(0.01)
        assert ((await record())["kind"], (await record())["status"]) == ("remote", "running")
        await both.other.change("COMPLETED", artifacts=made(["dug"]))
        await giving

        ended = await record()
        assert (ended["status"], ended["facts"]["task"]) == ("completed", task.id)
        assert ended["facts"]["url"] == both.other.url


async def test_a_message_instead_of_a_task_is_the_result() -> None:
    reply = {"messageId": "m", "role": "ROLE_AGENT", "parts": parts("hello")}
    async with pair(replies=reply) as both:
        run = await (await both.caller()).give("hi")
        assert (run.status, run.output, both.other.tasks) == ("completed", "hello", [])


@pytest.mark.promise("B-38")
async def test_words_are_streamed_and_continued_after_a_crash_and_after_a_server_that_says_them_again() -> None:
    async with pair(streams=True) as both:
        client = await both.near.join("/agents/a2a-caller/d")
        giving = await both.giving()
        await both.other.tell("one ")
        await both.other.tell("two ")
        await client.until(lambda _: text(client, "r1") == "one two ")
        await both.crash()
        await asyncio.gather(giving, return_exceptions=True)
        caller = await both.caller()  # its stream tells all events again
        await until(lambda: both.count("SubscribeToTask") == 1)
        await both.other.tell("three")
        await both.other.change("COMPLETED", artifacts=[{"artifactId": "a", "parts": parts("one two three")}])

        run = await over(caller, "r1")

        assert (run.status, run.output) == ("completed", "one two three")
        late = await both.near.join("/agents/a2a-caller/d")
        await told_end(late, "r1")
        assert [one["type"] for one in bodies(late, "r1")] == ["text-start", *["text-delta"] * 3, "text-end"]
        assert text(late, "r1") == "one two three"
        assert both.count("SendStreamingMessage") == 1


async def test_words_that_the_other_system_takes_back_are_ended_and_others_begin() -> None:
    async with pair(streams=True) as both:
        client = await both.near.join("/agents/a2a-caller/d")
        giving = await both.giving()
        await both.other.tell("one ")
        await client.until(lambda _: text(client, "r1") == "one ")
        await both.other.tell("two", append=False)
        await both.other.change("COMPLETED", artifacts=[{"artifactId": "a", "parts": parts("two")}])
        assert (await giving).output == "two"
        await told_end(client, "r1")
        told = [(one["type"], one["id"]) for one in bodies(client, "r1")]
        assert told == [(f"text-{kind}", id) for id in ("a~1", "a~2") for kind in ("start", "delta", "end")]


async def test_a_task_that_never_stops_talking_fails_the_run_and_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_progress, "LONGEST", 1000)
    async with pair(streams=True) as both:
        giving = await both.giving()
        for _ in range(12):
            await both.other.tell("word " * 20)
        run = await giving
        assert (run.status, "more than 1000 artifacts" in str(run.error)) == ("failed", True)
        await until(lambda: both.other.tasks[0].state == "CANCELED")


@pytest.mark.promise("B-38")
@pytest.mark.parametrize("streams", [False, True], ids=["looked up", "streamed"])
async def test_a_message_whose_answer_is_lost_is_not_sent_again(streams: bool) -> None:
    async with pair(streams=streams, loses={"SendMessage", "SendStreamingMessage"}) as both:
        giving = await both.giving()
        await until(lambda: both.count("ListTasks") == 1)
        await both.other.change("COMPLETED", artifacts=made(["dug"]))

        assert (await giving).output == "dug"
        assert len(both.other.tasks) == 1


@pytest.mark.parametrize("lost", [500, 503, *slow([504, 520, 524])])
async def test_a_status_of_a_proxy_does_not_mean_that_a_message_has_not_arrived(lost: int) -> None:
    async with pair(loses={"SendMessage"}, lost=lost) as both:
        giving = await both.giving()
        await until(lambda: both.count("ListTasks") == 1)
        await both.other.change("COMPLETED", artifacts=made(["dug"]))
        assert (await giving).output == "dug"
        assert len(both.other.tasks) == 1


async def test_a_task_whose_server_says_that_it_has_failed_to_begin_it_is_cancelled() -> None:
    async with pair(loses={"SendMessage"}, lost=-32603) as both:
        run = await (await both.caller()).give("dig")
        assert (run.status, "-32603" in str(run.error)) == ("failed", True)
        await until(lambda: both.other.tasks[0].state == "CANCELED")


async def test_the_task_of_another_caller_is_not_taken_for_ones_own() -> None:
    async with pair(lists_all=True) as both:
        theirs = OtherTask("t0", "the context of another", [])
        both.other.tasks.append(theirs)
        both.other.status = 503
        giving = asyncio.create_task((await both.caller()).give("dig"))
        await until(lambda: both.count("SendMessage") == 1)
        both.other.status = 200
        await until(lambda: len(both.other.tasks) == 2)
        await both.other.change("COMPLETED", artifacts=made(["dug"]))
        assert (await giving).output == "dug"
        assert theirs.state == "WORKING"


async def test_a_task_that_is_listed_late_is_not_begun_again() -> None:
    async with pair(loses={"SendMessage"}, hides=3) as both:
        giving = await both.giving()
        await both.other.change("COMPLETED", artifacts=made(["dug"]))
        assert (await giving).output == "dug"
        assert (len(both.other.tasks), both.count("ListTasks")) == (1, 4)


async def test_a_message_whose_answer_is_lost_is_not_sent_again_to_a_server_that_lists_no_tasks() -> None:
    async with pair(loses={"SendMessage"}, lists=False) as both:
        run = await (await both.caller()).give("dig")
        assert (run.status, len(both.other.tasks)) == ("failed", 1)
        assert "remote_lost: The message was sent, its answer was lost" in str(run.error)


async def test_a_message_whose_answer_is_lost_is_sent_again_if_the_class_says_so() -> None:
    async with pair({"resends": True}, loses={"SendMessage"}, lists=False) as both:
        giving = await both.giving(tasks=2)
        await both.other.change("COMPLETED", artifacts=made(["dug"]))
        assert (await giving).output == "dug"
        first, second = (one.history[0]["messageId"] for one in both.other.tasks)
        assert first == second


async def test_a_message_that_has_not_arrived_is_sent_again() -> None:
    async with pair() as both:
        both.other.status = 429
        giving = asyncio.create_task((await both.caller()).give("dig"))
        await until(lambda: both.count("SendMessage") == 2)
        both.other.status = 200
        await until(lambda: len(both.other.tasks) == 1)
        await both.other.change("COMPLETED", artifacts=made(["dug"]))
        assert (await giving).output == "dug"


async def test_a_message_to_a_server_that_was_too_busy_is_sent_again_if_it_lists_no_task() -> None:
    async with pair() as both:
        both.other.status = 503
        giving = asyncio.create_task((await both.caller()).give("dig"))
        await until(lambda: both.count("SendMessage") == 1 and both.count("ListTasks") == 1)
        both.other.status = 200
        await until(lambda: len(both.other.tasks) == 1)
        await both.other.change("COMPLETED", artifacts=made(["dug"]))
        assert (await giving).output == "dug"
        assert both.count("SendMessage") == 2


@pytest.mark.promise("B-38")
@pytest.mark.parametrize("streams", [False, True], ids=["looked up", "streamed"])
async def test_what_a_task_asks_is_a_question_of_the_caller_and_its_answer_a_message(streams: bool) -> None:
    def resume(task: OtherTask, message: dict[str, Any]) -> None:
        if message.get("taskId"):
            task.state, task.says = "COMPLETED", parts(f"painted {message['parts'][0]['text']}")

    async with pair(streams=streams, on_message=resume) as both:
        giving = await both.giving("paint")
        await both.other.change("INPUT_REQUIRED", {"text": "Which colour?"})
        question = await both.question()
        assert (question.kind, question.prompt) == ("text", "Which colour?")
        await both.crash()
        await asyncio.gather(giving, return_exceptions=True)
        assert (await both.question()).digest == question.digest
        caller = await both.caller()

        assert await caller.reply("blue")

        run = await over(caller, "r1")
        assert run.output == "painted blue"
        (task,) = both.other.tasks
        assert [one["parts"] for one in task.history] == [parts("paint"), parts("blue")]
        assert [one.get("taskId") for one in task.history] == [None, "t1"]
        assert await caller.asked() == []


@pytest.mark.parametrize("dated", [False, True], ids=["undated", "dated"])
async def test_what_was_answered_is_not_asked_again_while_the_other_system_goes_on(dated: bool) -> None:
    def move(task: OtherTask, message: dict[str, Any]) -> None:
        if message.get("taskId"):  # as the official SDK: until its agent continues, the state is the same without words
            task.history.insert(-1, {"messageId": "asked", "role": "ROLE_AGENT", "parts": task.says})
            task.says = []

    async with pair(on_message=move) as both:
        giving = await both.giving("paint")
        (task,) = both.other.tasks
        task.timestamp = "2026-01-01T00:00:00Z" if dated else None
        await both.other.change("INPUT_REQUIRED", {"text": "Which colour?"})
        await both.question()
        caller = await both.caller()
        assert await caller.reply("blue")
        await both.looks_again()
        assert await caller.asked() == []
        await both.crash()
        await asyncio.gather(giving, return_exceptions=True)
        caller = await both.caller()
        await both.looks_again()
        assert await caller.asked() == []

        if dated:
            task.timestamp = "2026-01-01T00:00:01Z"  # it asks again, without words
            assert (await both.question()).prompt == "The agent asks for input."
            assert await caller.reply("green")
        await both.other.change("COMPLETED")
        assert (await over(caller, "r1")).ok


@pytest.mark.parametrize("tells_history", [False, True], ids=["no history", "history"])
async def test_a_server_that_asks_without_words_is_answered_though_an_answer_is_lost_and_though_it_asks_twice(
    tells_history: bool,
) -> None:
    async with pair(tells_history=tells_history) as both:
        giving = await both.giving("paint")
        await both.other.change("INPUT_REQUIRED")
        await both.question()
        caller = await both.caller()
        both.other.status = 503
        with pytest.raises(Unavailable):
            await caller.reply("blue")
        both.other.status = 200
        await both.looks_again()
        await both.question()
        assert await caller.reply("blue")
        await both.other.change("WORKING")
        await both.looks_again()
        await both.other.change("INPUT_REQUIRED")
        await both.question()
        assert await caller.reply("green")
        await both.other.change("COMPLETED")
        await giving


async def test_a_state_that_arrives_after_the_answer_to_it_asks_nothing() -> None:
    def work(task: OtherTask, message: dict[str, Any]) -> None:
        task.state, task.says = "WORKING", []

    async with pair(on_message=work) as both:
        giving = await both.giving("paint")
        await both.other.change("INPUT_REQUIRED", {"text": "Which colour?"})
        await both.question()
        at_once, late, later = asyncio.Event(), asyncio.Event(), asyncio.Event()
        at_once.set()
        both.other.delays = [at_once, late]  # two looks follow a crash, and the second tells what is asked
        await both.crash()
        await asyncio.gather(giving, return_exceptions=True)
        caller = await both.caller()
        await until(lambda: both.other.delays == [])  # the state in which it asks is on its way
        assert await caller.reply("blue")
        assert await caller.asked() == []

        both.other.delays = [later]
        late.set()
        await until(lambda: both.other.delays == [])  # it has arrived
        assert await caller.asked() == []
        later.set()
        await both.other.change("INPUT_REQUIRED", {"text": "Which paint?"})
        assert (await both.question()).prompt == "Which paint?"
        assert await caller.reply("oil")
        await both.other.change("COMPLETED")
        assert (await over(caller, "r1")).ok


async def test_an_answer_to_what_is_not_asked_any_more_is_not_sent() -> None:
    async with pair() as both:
        giving = await both.giving()
        await both.other.change("INPUT_REQUIRED", {"text": "Which colour?"})
        await both.question()
        both.other.tasks[0].says = [{"text": "How much paint?"}]  # another client has answered
        caller = await both.caller()
        while (await both.question()).prompt == "Which colour?" and not await caller.reply("blue"):
            pass
        assert len(both.other.tasks[0].history) == 1
        await both.other.change("COMPLETED")
        await giving


def each_garbled(**replies: bytes) -> pytest.MarkDecorator:
    """Run a test with each of these replies: all but the first run nightly."""
    first, *others = replies.items()
    params = [pytest.param(body, id=name, marks=pytest.mark.nightly) for name, body in others]
    return pytest.mark.parametrize("garbled", [pytest.param(first[1], id=first[0]), *params])


@each_garbled(html=b"<html>", three=b'{"result": 3}', long=b" " * 20_000)
async def test_an_answer_whose_reply_cannot_be_read_may_have_been_taken(
    garbled: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(task: OtherTask, message: dict[str, Any]) -> None:
        task.state, task.says = "WORKING", []

    monkeypatch.setattr(a2a_connection, "LONGEST", 10_000)
    async with pair(on_message=work) as both:
        giving = await both.giving("paint")
        await both.other.change("INPUT_REQUIRED", {"text": "Which colour?"})
        await both.question()
        both.other.garbles = {"SendMessage": garbled}
        caller = await both.caller()
        with pytest.raises(Unavailable):
            await caller.reply("blue")
        await both.looks_again()
        assert await caller.asked() == []
        await both.other.change("COMPLETED")
        assert (await giving).ok
        assert len(both.other.tasks[0].history) == 2


@pytest.mark.parametrize("method", ["SendMessage", pytest.param("GetTask", marks=pytest.mark.nightly)])
async def test_a_page_of_a_proxy_instead_of_a_reply_is_asked_for_again(method: str) -> None:
    async with pair(garbles={method: b"<html>"}) as both:
        giving = await both.giving()
        await until(lambda: not both.other.garbles)
        await both.other.change("COMPLETED", artifacts=made(["dug"]))
        assert (await giving).output == "dug"
        assert both.count("SendMessage") == 1


@each_garbled(id=b'{"result": {"id": 3}}', list=b"[]", long=b" " * 20_000)
async def test_a_reply_that_is_invalid_or_too_long_fails_the_run_and_says_why(
    garbled: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(a2a_connection, "LONGEST", 10_000)
    async with pair(garbles={"GetTask": garbled}) as both:
        run = await (await both.giving())
        assert run.status == "failed"
        assert (run.error or "").startswith("remote_refused: ")
        assert "invalid" in (run.error or "") or "is longer than 10,000 bytes" in (run.error or "")


async def test_a_denied_question_is_answered_with_the_reason() -> None:
    async with pair() as both:
        giving = await both.giving()
        await both.other.change("INPUT_REQUIRED", {"text": "Which colour?"})
        await both.question()
        assert await (await both.caller()).deny("none at all")
        assert both.other.tasks[0].history[1]["parts"] == parts("none at all")
        await both.other.change("COMPLETED")
        assert (await giving).ok


@pytest.mark.promise("B-38")
async def test_a_cancelled_run_is_cancelled_there_also_after_a_crash() -> None:
    async with pair() as both:
        giving = await both.giving()
        both.other.status = 503
        await (await both.caller()).stop("r1")
        assert (await giving).status == "cancelled"
        await both.crash()
        both.other.status = 200

        await both.caller()

        await until(lambda: both.other.tasks[0].state == "CANCELED")


async def test_a_run_that_is_deleted_is_cancelled_there_though_its_answer_was_lost() -> None:
    async with pair(loses={"SendMessage", "ListTasks"}) as both:
        giving = await both.giving()
        await (await both.caller()).forget()
        await asyncio.gather(giving, return_exceptions=True)
        await until(lambda: both.other.tasks[0].state == "CANCELED")


@pytest.mark.parametrize(
    ("state", "says_why", "wanted"),
    [
        ("FAILED", "no spade", "no spade"),
        ("REJECTED", "not our job", "The agent has rejected the task: not our job"),
        ("AUTH_REQUIRED", "sign in at x", "needs an authentication that this run cannot give: sign in at x"),
        ("CANCELED", "an operator", "an operator"),
    ],
)
async def test_how_a_task_ends_otherwise_is_told(state: str, says_why: str, wanted: str) -> None:
    async with pair() as both:
        giving = await both.giving()
        await both.other.change(state, {"text": says_why})
        run = await giving
        assert run.status == ("cancelled" if state == "CANCELED" else "failed")
        assert wanted in (run.error or run.reason or "")
        assert both.count("CancelTask") == (state == "AUTH_REQUIRED")


async def test_a_task_that_its_server_has_forgotten_is_lost() -> None:
    async with pair() as both:
        giving = await both.giving()
        both.other.tasks[0].id = "another"
        run = await giving
        assert (run.status, run.error is not None and "remote_lost" in run.error) == ("failed", True)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"status": 401}, "remote_unauthorized: http"),
        ({"status": 302}, "a redirect, which is not followed"),
        ({"status": 404}, "whose card is at"),
        ({"card": {"supportedInterfaces": []}}, "no interface with JSONRPC 1.0"),
        (
            {"card": {"supportedInterfaces": [{"url": "x", "protocolBinding": "GRPC", "protocolVersion": "1.0"}]}},
            "but: GRPC 1.0",
        ),
        (
            {
                "card": {
                    "supportedInterfaces": [
                        {"url": "http://127.0.0.1:1/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
                    ]
                }
            },
            "on another server, which would be sent the credentials",
        ),
        ({"card": {"supportedInterfaces": 3}}, "sent an invalid response"),
    ],
)
async def test_a_server_that_cannot_be_used_fails_the_run_and_says_why(options: Any, wanted: str) -> None:
    async with pair(**options) as both:
        run = await (await both.caller()).give("dig")
        assert run.status == "failed"
        assert wanted in str(run.error)
        assert not both.other.tasks


async def test_a_host_of_a_private_network_is_called_only_if_the_code_names_it() -> None:
    async with pair({"allow_private": False}) as both:
        run = await (await both.caller()).give("dig")
        assert "127.0.0.1', a host of a private network" in str(run.error)
        assert both.other.calls == []


@pytest.mark.parametrize("url", ["", "ftp://a/b", "bureau.example", "http://a/?b=c"])
async def test_a_url_that_names_no_agent_is_refused(url: str) -> None:
    cls = caller_of(url)
    async with asyncio.timeout(patience()), served(App(agents=[cls], deps=OtherSystem())) as near:
        with pytest.raises(UsageError, match="must be the URL of an A2A agent"):
            await (await near.world.get_agent(cls, "d")).give("dig")


async def test_a_model_uses_an_agent_of_another_system_as_a_tool() -> None:
    async with asyncio.timeout(patience()), other_system() as other:

        class Bureau(A2aAgent):
            """Books journeys."""

            url = other.url
            deps: OtherSystem

        class BureauDesk(Talking):
            tools = (agent_tool(Bureau, name="bureau"),)
            model = ScriptedModel(call("bureau", id="c1", message="Oslo"), says("thanks"))

        async with served(App(agents=[BureauDesk], deps=other), timings=FAST) as near:
            desk = await near.world.get_agent(BureauDesk, "d")
            sending = asyncio.create_task(desk.send("go"))
            await until(lambda: len(other.tasks) == 1)
            await other.change("COMPLETED", artifacts=made(["booked"]))
            assert (await sending).output == "thanks"
            assert other.tasks[0].history[0]["parts"] == parts("Oslo")
