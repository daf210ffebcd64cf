"""A message that answers a task of A2A, in a process that dies at each of its commits: it answers one question."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from tests.conformance.served import Served, served
from tests.conformance.test_a2a import rpc, saying, state_of
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App, ChatAgent, agent_tool, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import A2a
from sapwood.protocols.a2a_desk import EVERYONE, A2aDesk
from sapwood.testing import ScriptedModel, call, text


class TwicePayer(ChatAgent):
    """Pays twice, and asks each time."""

    paid: ClassVar[list[int]] = []

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        self.paid.append(euros)
        return "paid"


class TwiceOffice(ChatAgent):
    """Has a payer pay."""

    tools = (agent_tool(TwicePayer, name="payer"),)


def is_dead(one: Served) -> bool:
    return one.world.points.ended


async def listed(desk: A2aDesk, id: str) -> None:
    """Wait until only this question is open, without showing it to the client."""
    while True:
        if [question.id for question in await desk.questions.list()] == [id]:
            return
        await asyncio.sleep(0.005)


async def said(one: Served, params: dict[str, Any]) -> tuple[Any, bool]:
    """Send a message until it is answered; return the answer, and whether the process has died meanwhile."""
    was_killed = False
    while True:
        sending = asyncio.create_task(rpc(one, "SendMessage", params, "twice-office"))
        await until(lambda: sending.done() or is_dead(one))  # noqa: B023 - of this round
        was_killed = was_killed or is_dead(one)
        if not is_dead(one):
            return await sending, was_killed
        await one.world.crash()
        sending.cancel()
        await asyncio.wait({sending})


@pytest.mark.nightly
@pytest.mark.slow
async def test_an_answer_that_is_repeated_after_a_crash_does_not_answer_the_next_question() -> None:
    nth, was_killed = 0, True
    while was_killed:
        nth += 1
        TwicePayer.paid.clear()
        TwiceOffice.model = ScriptedModel(call("payer", message="pay"), text("all is paid"), each=True)
        TwicePayer.model = ScriptedModel(
            call("pay", euros=3, id="p1"), call("pay", euros=5, id="p2"), text("paid"), each=True
        )
        app = App(agents=[TwiceOffice], protocols=[A2a([TwiceOffice])])
        async with asyncio.timeout(patience()), served(app) as one:
            task = (await rpc(one, "SendMessage", saying("pay", "m1"), "twice-office"))["task"]
            one.world.crash_at("committed", nth)

            answer, was_killed = await said(one, saying("yes", "m2", taskId=task["id"]))

            (question,) = answer["task"]["status"]["message"]["parts"][1]["data"]["questions"]
            assert question["arguments"] == {"euros": 5}, nth
            again, _ = await said(one, saying("yes", "m2", taskId=task["id"]))
            assert again["task"]["status"]["message"]["parts"][1]["data"]["questions"] == [question], nth
            assert TwicePayer.paid in ([3], []), nth  # a tool that was cut off is not called again
            ended, _ = await said(one, saying("yes", "m3", taskId=task["id"]))
            assert state_of(ended["task"]) == "COMPLETED", nth
            assert [one["messageId"] for one in ended["task"]["history"]] == ["m1", "m2", "m3"], nth
    assert nth > 10


@pytest.mark.slow
async def test_a_text_for_a_question_that_is_settled_does_not_answer_the_next_one_though_its_process_dies() -> None:
    nth, was_killed = 0, True
    while was_killed:
        nth += 1
        TwicePayer.paid.clear()
        TwiceOffice.model = ScriptedModel(call("payer", message="pay"), text("all is paid"), each=True)
        TwicePayer.model = ScriptedModel(
            call("pay", euros=3, id="p1"), call("pay", euros=5, id="p2"), text("paid"), each=True
        )
        app = App(agents=[TwiceOffice], protocols=[A2a([TwiceOffice])])
        async with asyncio.timeout(patience()), served(app) as one:
            task = (await rpc(one, "SendMessage", saying("pay", "m1"), "twice-office"))["task"]
            desk = await one.world.get_agent(A2aDesk, EVERYONE)
            (first,) = await desk.questions.list()
            assert await desk.questions.deny(first)
            await listed(desk, "p2")
            one.world.crash_at("committed", nth)

            was_killed = False
            for _ in range(2):
                shown, has_died = await said(one, saying("yes", "m2", taskId=task["id"]))
                was_killed = was_killed or has_died
                (question,) = shown["task"]["status"]["message"]["parts"][1]["data"]["questions"]
                assert question["arguments"] == {"euros": 5}, nth
                assert [message["messageId"] for message in shown["task"]["history"]] == ["m1"], nth
            assert TwicePayer.paid == [], nth
            ended, _ = await said(one, saying("yes", "m3", taskId=task["id"]))
            assert (state_of(ended["task"]), TwicePayer.paid) == ("COMPLETED", [5]), nth
    assert nth > 2
