"""The OpenAI API: functions of the client, approvals at any depth, and questions that code asks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from tests.conformance.openai_client import Stream, create, post, refused, text_of
from tests.conformance.served import Served, served
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App, ChatAgent, Limits, agent_tool, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import OpenAi
from sapwood.testing import ScriptedModel, call, calls, text

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


class OpenAiLooker(ChatAgent):
    """Has a tool of its own beside those of the client."""

    counted: ClassVar[list[str]] = []

    @tool
    async def count(self) -> str:
        """Count."""
        self.counted.append("once")
        return "one"


class OpenAiBusy(ChatAgent):
    """Works while the client executes its function."""

    go: ClassVar[asyncio.Event]

    @tool
    async def work(self) -> str:
        """Work."""
        await self.go.wait()
        return "done"


class OpenAiClerk(ChatAgent):
    """Pays when a person allows it."""

    paid: ClassVar[list[int]] = []

    model = ScriptedModel(call("pay", euros=3, id="p1"), text("it is paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        self.paid.append(euros)
        return f"{euros} paid"


class OpenAiBuyer(ChatAgent):
    """Has a clerk pay."""

    model = ScriptedModel(call("pay", message="pay 3", id="b1"), text("the clerk paid"), each=True)
    tools = (agent_tool(OpenAiClerk, name="pay"),)


class OpenAiOffice(ChatAgent):
    """Has a buyer buy."""

    model = ScriptedModel(call("buy", message="bread", id="o1"), text("bought"), each=True)
    tools = (agent_tool(OpenAiBuyer, name="buy"),)

    async def on_before_sub_agent(self, request: HTTPConnection, child: Any) -> Response | None:
        return PlainTextResponse("Not you", 403) if "x-guest" in request.headers else None


class OpenAiSurvey(ChatAgent):
    """Asks a person in its own code."""

    model = ScriptedModel(call("ask_size", id="s1"), text("thanks"), each=True)

    @tool
    async def ask_size(self) -> str:
        """Ask."""
        return await self.questions.ask("Which size?", options=["S", "L"], approvers=ANY_CLIENT)


class OpenAiNamer(ChatAgent):
    """Asks a person for a text."""

    limits = Limits(payload_bytes=10_000)
    model = ScriptedModel(call("ask_name", id="n1"), text("welcome"), each=True)

    @tool
    async def ask_name(self) -> str:
        """Ask."""
        return await self.questions.ask("Who are you?", approvers=ANY_CLIENT)


@asynccontextmanager
async def openai() -> AsyncGenerator[Served, None]:
    app = App(
        agents=[OpenAiLooker, OpenAiBusy, OpenAiClerk, OpenAiOffice, OpenAiSurvey, OpenAiNamer], protocols=[OpenAi()]
    )
    OpenAiLooker.counted.clear()
    OpenAiClerk.paid.clear()
    async with asyncio.timeout(patience()), served(app) as one:
        yield one


def output_of(call_id: str, output: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def verdict_on(request: str, **answer: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request, **answer}


async def test_a_function_of_the_client_ends_a_response_and_its_output_begins_the_next() -> None:
    OpenAiLooker.model = ScriptedModel(call("look", far=True, id="c1"), text("a tree"), each=True)
    async with openai() as one:
        asked = {"model": "open-ai-looker", "input": "what is there?", "tools": [LOOK], "stream": True}
        events = await Stream(one, "/v1/responses", asked).over()
        first = events[-1]["response"]
        (function,) = first["output"]
        assert (first["status"], function["type"]) == ("completed", "function_call")
        assert (function["name"], json.loads(function["arguments"])) == ("look", {"far": True})
        assert first["tools"] == [LOOK]

        await one.world.crash()
        said = {"model": "open-ai-looker", "previous_response_id": first["id"], "tools": [LOOK]}
        unknown = await refused(one, **said, input=[output_of("c2", "a tree")])
        assert unknown == (400, "no_tool_call_found", "input[0]")
        wrong = await refused(one, **said, input=[verdict_on(function["call_id"], approve=True)])
        assert wrong == (400, "invalid_value", "input[0]")
        mixed = [output_of(function["call_id"], "a tree"), {"role": "user", "content": "and?"}]
        assert (await refused(one, **said, input=mixed))[1:] == ("invalid_value", "input")
        second = await create(
            one, **said, input=[output_of(function["call_id"], [{"type": "input_text", "text": "a tree"}])]
        )

        assert (text_of(second), second["status"]) == ("a tree", "completed")
        assert second["id"] != first["id"]
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["output_tokens"] > 0
        assert (await one.site.http(f"/v1/responses/{first['id']}")).json() == first
        again = await Stream(one, f"/v1/responses/{first['id']}?stream=true").over()
        assert again == events
        whole = await Stream(one, f"/v1/responses/{second['id']}?stream=true").over()
        assert whole[-1]["response"] == second
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert [event["item"]["type"] for event in whole if "item" in event] == ["message", "message"]
        late = [output_of(function["call_id"], "a tree")]
        assert (await refused(one, **said, input=late))[1] == "no_tool_call_found"
        assert len(OpenAiLooker.model.asked) == 2


async def test_answers_can_come_one_by_one_and_own_tools_run_once() -> None:
    both = calls(call("look", id="c1"), call("look", id="c2"), call("count", id="c3"))
    OpenAiLooker.model = ScriptedModel(both, text("two trees"), each=True)
    async with openai() as one:
        said = {"model": "open-ai-looker", "tools": [LOOK]}
        first = await create(one, **said, input="what is there?")
        assert sorted(item["type"] for item in first["output"]) == ["function_call", "function_call", "mcp_call"]
        calls_made = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
        second = await create(one, **said, input=[output_of(calls_made[0], "a")], previous_response_id=first["id"])
        (left,) = second["output"]
        assert left["type"] == "function_call"
        third = await create(one, **said, input=[output_of(left["call_id"], "b")], previous_response_id=second["id"])
        assert text_of(third) == "two trees"
        assert OpenAiLooker.counted == ["once"]


@pytest.mark.parametrize("approve", [True, False])
async def test_an_approval_three_levels_down_is_answered_from_the_top_across_crashes(*, approve: bool) -> None:
    async with openai() as one:
        first = await create(one, model="open-ai-office", input="bread")
        request = first["output"][-1]
        assert (request["type"], request["name"]) == ("mcp_approval_request", "pay")
        assert (json.loads(request["arguments"]), request["server_label"]) == (
            {"euros": 3},
            "OpenAiBuyer/OpenAiClerk",
        )
        await one.world.crash()
        path = f"/v1/responses/{first['id']}"
        assert (await one.site.http(path)).json() == first

        said = {"model": "open-ai-office", "previous_response_id": first["id"]}
        answer = [verdict_on(request["id"], approve=approve, reason=None if approve else "no")]
        guest = await post(one, "/v1/responses", {**said, "input": answer}, **{"x-guest": "yes"})
        assert guest.status == 400
        second = await create(one, **said, input=answer)
        assert (second["status"], text_of(second)) == ("completed", "bought")
        await one.world.crash()
        assert (await one.site.http(f"/v1/responses/{second['id']}")).json() == second
        assert OpenAiClerk.paid == ([3] if approve else [])
        assert (await refused(one, **said, input=answer))[1] == "no_tool_call_found"


async def test_an_own_approval_is_asked_and_the_call_follows_in_the_next_response() -> None:
    async with openai() as one:
        events = await Stream(one, "/v1/responses", {"model": "open-ai-clerk", "input": "pay", "stream": True}).over()
        first = events[-1]["response"]
        (request,) = first["output"]
        assert request["type"] == "mcp_approval_request"
        said = {"model": "open-ai-clerk", "conversation": first["conversation"]}
        second = await create(one, **said, input=[verdict_on(request["id"], approve=True)])
        made, answer = second["output"]
        assert (made["type"], made["output"], made["approval_request_id"]) == ("mcp_call", "3 paid", request["id"])
        assert answer["type"] == "message"


async def test_what_code_asks_is_a_function_whose_output_is_the_answer() -> None:
    async with openai() as one:
        first = await create(one, model="open-ai-survey", input="size")
        asked = first["output"][-1]
        assert (asked["type"], asked["name"]) == ("function_call", "ask_person")
        assert json.loads(asked["arguments"]) == {"prompt": "Which size?", "options": ["S", "L"]}
        said = {"model": "open-ai-survey", "previous_response_id": first["id"]}
        wrong = await refused(one, **said, input=[output_of(asked["call_id"], "M")])
        assert wrong == (400, "invalid_value", "input[0].output")
        second = await create(one, **said, input=[output_of(asked["call_id"], "L")])
        assert text_of(second) == "thanks"


async def test_an_answer_that_is_too_long_is_refused_and_leaves_no_response_and_another_is_taken() -> None:
    async with openai() as one:
        first = await create(one, model="open-ai-namer", input="hello")
        asked = first["output"][-1]
        said = {"model": "open-ai-namer", "previous_response_id": first["id"]}
        wrong = await refused(one, **said, input=[output_of(asked["call_id"], "x" * 20_000)])
        assert wrong == (400, "invalid_value", "input[0]")
        second = await create(one, **said, input=[output_of(asked["call_id"], "ann")])
        assert text_of(second) == "welcome"
        assert second["previous_response_id"] == first["id"]


async def test_a_repeated_answer_with_the_same_key_joins_the_response() -> None:
    OpenAiLooker.model = ScriptedModel(call("look", id="c1"), text("a tree"), each=True)
    async with openai() as one:
        first = await create(one, model="open-ai-looker", input="what is there?", tools=[LOOK])
        said = {
            "model": "open-ai-looker",
            "previous_response_id": first["id"],
        }
        said["input"] = [output_of(first["output"][0]["call_id"], "a tree")]
        answers = [await post(one, "/v1/responses", said, **{"idempotency-key": "k1"}) for _ in range(2)]
        assert answers[0].json() == answers[1].json()
        assert text_of(answers[0].json()) == "a tree"
        assert len(OpenAiLooker.model.asked) == 2


async def test_a_new_message_ends_what_waits_and_cancel_does_so_too() -> None:
    OpenAiLooker.model = ScriptedModel(call("look", id="c1"), text("never mind"), call("look", id="c2"))
    async with openai() as one:
        first = await create(one, model="open-ai-looker", input="what is there?", tools=[LOOK])
        second = await create(one, model="open-ai-looker", input="stop", previous_response_id=first["id"])
        assert text_of(second) == "never mind"
        said = {"model": "open-ai-looker", "previous_response_id": second["id"]}
        third = await create(one, **said, input="what is there?", tools=[LOOK])
        path = f"/v1/responses/{third['id']}"
        assert (await post(one, f"{path}/cancel", {})).json() == third
        late = {"model": "open-ai-looker", "previous_response_id": third["id"], "input": [output_of("c2", "a tree")]}
        assert (await refused(one, **late))[1] == "no_tool_call_found"


async def test_a_framework_that_sends_the_whole_input_each_time_is_served_by_the_ids_of_its_tool_calls() -> None:
    OpenAiLooker.model = ScriptedModel(call("look", id="c1"), text("a tree"), text("bye"), each=True)
    async with openai() as one:
        said: dict[str, Any] = {"model": "open-ai-looker", "tools": [LOOK]}
        items: list[Any] = [{"role": "user", "content": "what is there?"}]
        first = await create(one, **said, input=items)
        (function,) = first["output"]
        items += [function, output_of(function["call_id"], "a tree")]
        second = await create(one, **said, input=items)
        assert (text_of(second), second["conversation"]) == ("a tree", first["conversation"])
        items += [*second["output"], {"role": "user", "content": "thanks"}]
        third = await create(one, **said, input=items)
        assert (text_of(third), third["conversation"]) == ("bye", first["conversation"])
        assert len(OpenAiLooker.model.asked[-1]) == 5
        assert (await refused(one, **said, input=items, conversation=first["conversation"]))[1:] == (
            "unsupported_parameter",
            "input",
        )
        items[0] = {"role": "user", "content": "something else"}
        assert (await refused(one, **said, input=items))[:2] == (409, "history_mismatch")

        OpenAiLooker.model = ScriptedModel(text("well"))
        plain = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        alone = await create(one, model="open-ai-looker", input=plain)
        assert alone["conversation"] != first["conversation"]
        prompt = OpenAiLooker.model.asked[-1][-1].parts[0].content
        assert prompt == "[Earlier in this conversation]\n\nUser: a\n\nAssistant: b\n\n[Now]\n\nc"


async def test_two_clients_that_answer_at_once_continue_the_turn_once() -> None:
    OpenAiLooker.model = ScriptedModel(call("look", id="c1"), text("a tree"), each=True)
    async with openai() as one:
        first = await create(one, model="open-ai-looker", input="what is there?", tools=[LOOK])
        said: dict[str, Any] = {"model": "open-ai-looker", "previous_response_id": first["id"]}
        said["input"] = [output_of(first["output"][0]["call_id"], "a tree")]
        answers = await asyncio.gather(*(post(one, "/v1/responses", said) for _ in range(5)))
        assert sorted(answer.status for answer in answers) == [200, 400, 400, 400, 400]
        assert len(OpenAiLooker.model.asked) == 2


async def test_an_answer_before_the_response_has_ended_is_refused_and_taken_afterwards() -> None:
    OpenAiBusy.go = asyncio.Event()
    OpenAiBusy.model = ScriptedModel(calls(call("look", id="c1"), call("work", id="c2")), text("both"), each=True)
    async with openai() as one:
        said: dict[str, Any] = {"model": "open-ai-busy", "tools": [LOOK]}
        stream = Stream(one, "/v1/responses", {**said, "input": "go", "stream": True})
        await until(lambda: any("arguments.done" in name for name in stream.names))
        made = [event["item"] for event in stream.events if event["type"] == "response.output_item.added"]
        answer = {
            "previous_response_id": stream.events[0]["response"]["id"],
            "input": [output_of(made[0]["call_id"], "a tree")],
        }
        assert (await refused(one, **said, **answer))[:2] == (409, "response_not_ended")
        OpenAiBusy.go.set()
        await stream.over()
        assert text_of(await create(one, **said, **answer)) == "both"
