"""The OpenAI API: a client that repeats its request with the same key, after a crash at any commit."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

import pytest
from tests.conformance.openai_client import Stream, post, said, text_of
from tests.conformance.served import Served, served
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App, ChatAgent, agent_tool, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import OpenAi
from sapwood.testing import ScriptedModel, call, calls, text

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


class OpenAiCrashClerk(ChatAgent):
    """Pays when a person allows it."""

    paid: ClassVar[list[int]] = []

    model = ScriptedModel(call("pay", euros=3, id="p1"), text("it is paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        self.paid.append(euros)
        return f"{euros} paid"


class OpenAiCrashDesk(ChatAgent):
    """Looks with the client's eyes, and has a clerk pay."""

    model = ScriptedModel(
        calls(call("look", id="c1"), call("pay", message="pay 3", id="c2")), text("looked and paid"), each=True
    )
    tools = (agent_tool(OpenAiCrashClerk, name="pay"),)


async def repeated(one: Served, body: dict[str, Any], key: str) -> Any:
    """Send a request until it is answered. After a crash, the server starts again."""
    while True:
        asking = asyncio.create_task(post(one, "/v1/responses", body, **{"idempotency-key": key}))
        await until(lambda asking=asking: asking.done() or one.world.points.ended)
        if one.world.points.ended:
            await one.world.crash()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            answer = await asking
            if answer.status == 200:
                return answer.json()
            assert answer.status in (500, 503), answer.text


def answer_to(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "function_call":
        return {"type": "function_call_output", "call_id": item["call_id"], "output": "a tree"}
    return {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}


@pytest.mark.slow
async def test_a_crash_at_any_commit_neither_loses_nor_repeats_a_message_an_answer_or_a_payment() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        OpenAiCrashClerk.paid.clear()
        app = App(agents=[OpenAiCrashDesk], protocols=[OpenAi()])
        async with asyncio.timeout(patience()), served(app) as one:
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            desk: dict[str, Any] = {"model": "open-ai-crash-desk"}
            response = await repeated(one, {**desk, "input": "go", "tools": [LOOK]}, "k0")
            for turn in range(1, 10):
                waiting = [
                    item for item in response["output"] if item["type"] in ("function_call", "mcp_approval_request")
                ]
                if not waiting:
                    break
                body = {**desk, "previous_response_id": response["id"], "input": [answer_to(waiting[0])]}
                response = await repeated(one, body, f"k{turn}")
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()

            assert (response["status"], text_of(response)) == ("completed", "looked and paid"), nth
            assert OpenAiCrashClerk.paid == [3], nth
            whole = await Stream(one, f"/v1/responses/{response['id']}?stream=true").over()
            assert whole[-1]["response"] == response, nth
            assert said(whole) == text_of(response), nth
            assert [event["sequence_number"] for event in whole] == list(range(len(whole))), nth
    assert nth > 10
