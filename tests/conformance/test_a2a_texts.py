"""A text that is sent to a task of A2A answers the question that its client was shown, and never a later one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from tests.conformance.served import Served, served
from tests.conformance.test_a2a import a_call, at_once, events, rpc, saying, state_of
from tests.machine import patience

from sapwood import Agent, App
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import A2a
from sapwood.protocols.a2a_answers import MessageAnswers, StoredAnswer
from sapwood.protocols.a2a_desk import EVERYONE, A2aDesk


class TextAsker(Agent):
    """Asks two things: one after the other, or the second one also while the first one is open."""

    go: ClassVar[asyncio.Event]

    async def on_run(self, input: str) -> str:
        if input == "both":
            return " ".join(await asyncio.gather(self._ask("First?"), self._second()))
        return f"{await self._ask('First?')} {await self._ask('Second?')}"

    async def _second(self) -> str:
        await self.go.wait()
        return await self._ask("Second?")

    async def _ask(self, prompt: str) -> str:
        return await self.questions.ask(prompt, key=prompt, approvers=ANY_CLIENT)


@pytest.fixture(autouse=True)
def go() -> None:
    TextAsker.go = asyncio.Event()


@asynccontextmanager
async def asking() -> AsyncGenerator[Served, None]:
    async with asyncio.timeout(patience()), served(App(agents=[TextAsker], protocols=[A2a([TextAsker])])) as one:
        yield one


async def send(one: Served, word: str, id: str, **more: Any) -> dict[str, Any]:
    return (await rpc(one, "SendMessage", saying(word, id, **more), "text-asker"))["task"]


async def refused(one: Served, params: dict[str, Any]) -> tuple[int, str]:
    """Return the code and the text of the error that answers a message."""
    body, headers = a_call("SendMessage", params), {"A2A-Version": "1.0"}
    answer = await one.site.http("/a2a/text-asker", method="POST", body=body, headers=headers)
    error = json.loads(answer.text)["error"]
    return error["code"], error["message"]


async def listed(one: Served, *prompts: str) -> list[Any]:
    """Return the open questions, once they are these, without showing them to the client."""
    desk = await one.world.get_agent(A2aDesk, EVERYONE)
    while True:
        questions = sorted(await desk.questions.list(), key=lambda question: question.prompt)
        if tuple(question.prompt for question in questions) == prompts:
            return questions
        await asyncio.sleep(0.005)


async def settle(one: Served, prompt: str, *remaining: str) -> None:
    """Answer a question as another client does, and wait for those that are then open."""
    desk = await one.world.get_agent(A2aDesk, EVERYONE)
    (question,) = [question for question in await desk.questions.list() if question.prompt == prompt]
    assert await desk.questions.answer(question, "other")
    await listed(one, *remaining)


def prompts_of(task: dict[str, Any]) -> list[str]:
    assert state_of(task) == "INPUT_REQUIRED"
    return sorted(question["prompt"] for question in task["status"]["message"]["parts"][1]["data"]["questions"])


def output_of(task: dict[str, Any]) -> Any:
    assert state_of(task) == "COMPLETED"
    return task["artifacts"][0]["parts"][0]["text"]


def messages_of(task: dict[str, Any]) -> list[str]:
    return [message["messageId"] for message in task["history"]]


def naming(task: dict[str, Any], **answers: Any) -> dict[str, Any]:
    return {"taskId": task["id"], "parts": [{"data": {"answers": answers}}]}


async def id_of(one: Served, *prompts: str) -> str:
    desk = await one.world.get_agent(A2aDesk, EVERYONE)
    return next(question.full_id for question in await desk.questions.list() if question.prompt in prompts)


async def test_a_text_does_not_answer_a_question_that_its_client_was_not_shown_also_after_a_crash() -> None:
    async with asking() as one:
        task = await send(one, "in turn", "m1")
        assert prompts_of(task) == ["First?"]
        await settle(one, "First?", "Second?")
        await one.world.crash()

        shown = await send(one, "mine", "m2", taskId=task["id"])
        await one.world.crash()
        again = await send(one, "mine", "m2", taskId=task["id"])

        for reply in (shown, again):
            assert prompts_of(reply) == ["Second?"]
            assert messages_of(reply) == ["m1"]  # it changes nothing
        ended = await send(one, "mine", "m3", taskId=task["id"])
        assert (output_of(ended), messages_of(ended)) == ("other mine", ["m1", "m3"])


@pytest.mark.parametrize(
    ("method", "params"),
    [("GetTask", None), ("ListTasks", {}), ("SendStreamingMessage", saying("in turn", "m1"))],
)
async def test_a_text_answers_a_question_that_its_client_was_shown_in_any_way(method: str, params: Any) -> None:
    async with asking() as one:
        task = await send(one, "in turn", "m1")
        await settle(one, "First?", "Second?")
        if method == "SendStreamingMessage":
            told = await events(one, method, params, "text-asker")
            assert prompts_of(told[0]["task"]) == ["Second?"]
        else:
            await rpc(one, method, {"id": task["id"]} if params is None else params, "text-asker")
        assert output_of(await send(one, "mine", "m2", taskId=task["id"])) == "other mine"


async def test_a_client_that_was_shown_no_question_is_shown_it_before_it_can_answer() -> None:
    async with asking() as one:
        params = at_once(saying("in turn", "m1"))
        task = (await rpc(one, "SendMessage", params, "text-asker"))["task"]
        if state_of(task) != "INPUT_REQUIRED":
            await listed(one, "First?")
            assert prompts_of(await send(one, "mine", "m2", taskId=task["id"])) == ["First?"]
        assert prompts_of(await send(one, "mine", "m3", taskId=task["id"])) == ["Second?"]


async def test_a_text_answers_the_question_that_was_shown_though_another_one_was_opened_since() -> None:
    async with asking() as one:
        task = await send(one, "both", "m1")
        assert prompts_of(task) == ["First?"]
        TextAsker.go.set()
        await listed(one, "First?", "Second?")

        assert prompts_of(await send(one, "one", "m2", taskId=task["id"])) == ["Second?"]
        assert output_of(await send(one, "two", "m3", taskId=task["id"])) == "one two"


async def test_a_text_for_one_of_two_questions_is_refused_and_for_the_one_that_is_left_asked_again() -> None:
    TextAsker.go.set()
    async with asking() as one:
        task = (await rpc(one, "SendMessage", at_once(saying("both", "m1")), "text-asker"))["task"]
        await listed(one, "First?", "Second?")
        assert prompts_of(await rpc(one, "GetTask", {"id": task["id"]}, "text-asker")) == ["First?", "Second?"]

        code, told = await refused(one, saying("mine", "m2", taskId=task["id"]))
        assert (code, "asks several questions" in told) == (-32602, True)
        assert await id_of(one, "First?") in told
        await settle(one, "First?", "Second?")
        assert prompts_of(await send(one, "mine", "m3", taskId=task["id"])) == ["Second?"]  # it may be for the other
        assert output_of(await send(one, "mine", "m4", taskId=task["id"])) == "other mine"


async def test_a_message_that_names_what_is_missing_is_told_which() -> None:
    async with asking() as one:
        task = await send(one, "in turn", "m1")
        first = await id_of(one, "First?")
        code, told = await refused(one, saying("mine", "m2", taskId="task-none"))
        assert (code, "'task-none'" in told) == (-32001, True)
        code, told = await refused(one, saying("", "m3", **naming(task, none="mine")))
        assert (code, "'none' is not open" in told) == (-32602, True)
        await settle(one, "First?", "Second?")
        code, told = await refused(one, saying("", "m4", **naming(task, **{first: "mine"})))
        assert (code, f"{first!r} is not open" in told) == (-32602, True)


async def test_a_question_that_was_not_shown_cannot_be_answered_by_its_id_either() -> None:
    async with asking() as one:
        task = await send(one, "in turn", "m1")
        await settle(one, "First?", "Second?")
        answers = {await id_of(one, "Second?"): "mine"}
        assert prompts_of(await send(one, "", "m2", **naming(task, **answers))) == ["Second?"]
        assert output_of(await send(one, "", "m3", **naming(task, **answers))) == "other mine"


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_question_that_is_settled_while_its_answer_is_stored_takes_no_other_one(
    monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    store = MessageAnswers.store

    async with asking() as one:

        async def late(self: MessageAnswers, given: Sequence[StoredAnswer]) -> None:
            await store(self, given)
            if given:
                await settle(one, "First?", "Second?")

        task = await send(one, "in turn", "m1")
        first = await id_of(one, "First?")
        with monkeypatch.context() as patched:
            patched.setattr(MessageAnswers, "store", late)
            if is_named:
                code, told = await refused(one, saying("", "m2", **naming(task, **{first: "mine"})))
                assert (code, first in told) == (-32004, True)
            else:
                assert prompts_of(await send(one, "mine", "m2", taskId=task["id"])) == ["Second?"]
        if is_named:
            assert (await refused(one, saying("", "m2", **naming(task, **{first: "mine"}))))[0] == -32602
            assert prompts_of(await rpc(one, "GetTask", {"id": task["id"]}, "text-asker")) == ["Second?"]
        else:
            assert prompts_of(await send(one, "mine", "m2", taskId=task["id"])) == ["Second?"]
        assert output_of(await send(one, "mine", "m3", taskId=task["id"])) == "other mine"
