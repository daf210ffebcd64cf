"""The OpenAI API: chat completions, and conversations of clients that send the whole history each time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.conformance.openai_client import Stream, post, text_of
from tests.conformance.openai_client import said as said_by
from tests.conformance.served import Served, served
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App, ChatAgent, tool
from sapwood.auth import ANY_CLIENT
from sapwood.protocols import OpenAi
from sapwood.testing import ScriptedModel, call, calls, fails, text

PATH = "/v1/chat/completions"
CHAT = {"x-openwebui-chat-id": "2f9f8f0e-0c1b-4d0f-8a3a-9a2a6b1c7d11"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class OpenAiChatter(ChatAgent):
    """Talks."""


class OpenAiPayer(ChatAgent):
    """Pays when a person allows it."""

    model = ScriptedModel(call("pay", euros=3, id="p1"), text("paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        return "paid"


@asynccontextmanager
async def openai(**options: Any) -> AsyncGenerator[Served, None]:
    app = App(agents=[OpenAiChatter, OpenAiPayer], protocols=[OpenAi(**options)])
    async with asyncio.timeout(patience()), served(app) as one:
        yield one


def user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


def assistant(said: str) -> dict[str, Any]:
    return {"role": "assistant", "content": said}


async def chat(one: Served, *messages: Any, headers: dict[str, str] | None = None, **more: Any) -> Any:
    body = {"model": "open-ai-chatter", "messages": messages, **more}
    answer = await post(one, PATH, body, **(headers or {}))
    assert answer.status == 200, answer.text
    return answer.json()


async def refused(one: Served, *messages: Any, headers: dict[str, str] | None = None, **more: Any) -> tuple[int, str]:
    answer = await post(one, PATH, {"model": "open-ai-chatter", "messages": messages, **more}, **(headers or {}))
    return answer.status, answer.json()["error"]["code"]


def content_of(completion: Any) -> str:
    return completion["choices"][0]["message"]["content"]


def prompts(messages: Any) -> list[str]:
    """Return what the user said, as a model was sent it."""
    return [
        str(part.content)
        for message in messages
        if message.kind == "request"
        for part in message.parts
        if part.part_kind == "user-prompt"
    ]


async def test_a_completion_is_returned_whole_or_in_chunks() -> None:
    OpenAiChatter.model = ScriptedModel(text("well said"))
    async with openai() as one:
        whole = await chat(one, user("hi"))
        assert (whole["object"], whole["model"], content_of(whole)) == (
            "chat.completion",
            "open-ai-chatter",
            "well said",
        )
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert (
            whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"] > 0
        )

        for options in ({}, {"stream_options": {"include_usage": True}}):
            body = {"model": "open-ai-chatter", "messages": [user("hi")], "stream": True, **options}
            stream = Stream(one, PATH, body)
            chunks = await stream.over()
            said = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
            assert (said, chunks[0]["choices"][0]["delta"]["role"]) == ("well said", "assistant")
            assert "data: [DONE]" in stream.text
            ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
            assert ends == [None] * (len(ends) - 1) + ["stop"]
            assert (chunks[-1].get("usage") is not None) == bool(options)
            assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}


async def test_the_sequence_of_open_webui_is_one_conversation_and_its_title_another() -> None:
    OpenAiChatter.model = ScriptedModel(text("hello"), text('{"title": "Trees"}'), text("they grow"), text("they do"))
    async with openai() as one:
        assert (await one.site.http("/v1/models")).json()["data"][0]["id"] == "open-ai-chatter"
        first = Stream(one, PATH, {"model": "open-ai-chatter", "messages": [user("hi")], "stream": True}, **CHAT)
        await first.over()
        title = user("### Task:\nGenerate a title.\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>")
        named = await chat(one, title, headers=CHAT, stream=False, max_completion_tokens=1000)
        assert content_of(named) == '{"title": "Trees"}'

        second = await chat(one, user("hi"), assistant("hello"), user("trees?"), headers=CHAT)
        assert second["conversation"]["id"] == first.events[0]["conversation"]["id"] != named["conversation"]["id"]
        assert prompts(OpenAiChatter.model.asked[-1]) == ["hi", "trees?"]
        assert len(OpenAiChatter.model.asked[-1]) == 3

        again = await chat(one, user("hi"), assistant("hello"), user("trees?"), headers=CHAT)
        assert (content_of(again), again["conversation"]) == ("they do", second["conversation"])
        assert prompts(OpenAiChatter.model.asked[-1]) == ["hi", "trees?"]
        edited = await chat(one, user("hi"), assistant("hello"), user("bushes?"), headers=CHAT)
        assert prompts(OpenAiChatter.model.asked[-1]) == ["hi", "bushes?"]
        assert edited["conversation"] == second["conversation"]
        third = [user("hi"), assistant("hello"), user("bushes?"), assistant("they do"), user("thanks")]
        await chat(one, *third, headers=CHAT)
        assert prompts(OpenAiChatter.model.asked[-1]) == ["hi", "bushes?", "thanks"]
        back = [user("hi"), assistant("hello"), user("trees?"), assistant("they do"), user("why?")]
        await chat(one, *back, headers=CHAT)  # the history of another branch
        assert prompts(OpenAiChatter.model.asked[-1]) == ["hi", "trees?", "why?"]
        await chat(one, *third, assistant("they do"), user("bye"), headers=CHAT)
        assert prompts(OpenAiChatter.model.asked[-1]) == ["hi", "bushes?", "thanks", "bye"]
        wrong = [user("hi"), assistant("hello"), user("moss?"), assistant("no"), user("thanks")]
        assert await refused(one, *wrong, headers=CHAT) == (409, "history_mismatch")


async def test_a_request_without_a_conversation_has_the_history_quoted_and_its_agent_is_deleted() -> None:
    OpenAiChatter.model = ScriptedModel(text("well"))
    async with openai() as one:
        first = await chat(one, user("hi"), assistant("hello"), user("trees?"))
        second = await chat(one, user("hi"), assistant("hello"), user("trees?"))
        assert first["conversation"] != second["conversation"]
        (said,) = prompts(OpenAiChatter.model.asked[-1])
        assert said == "[Earlier in this conversation]\n\nUser: hi\n\nAssistant: hello\n\n[Now]\n\ntrees?"

        third = await chat(one, user("more"), conversation=first["conversation"])
        assert third["conversation"] == first["conversation"]
        assert prompts(OpenAiChatter.model.asked[-1]) == [said, "more"]
        fourth = await chat(one, user("more"), conversation=first["conversation"])
        assert prompts(OpenAiChatter.model.asked[-1]) == [said, "more", "more"]
        whole = [user("hi"), assistant("a"), user("trees?"), assistant("b"), user("more"), assistant("c"), user("more")]
        await chat(one, *whole, assistant("d"), user("end"), conversation=first["conversation"])
        assert prompts(OpenAiChatter.model.asked[-1]) == [said, "more", "more", "end"]
        assert fourth["usage"]["prompt_tokens"] > 0

        await one.world.clock.advance(25 * 3600)
        await one.world.settled()
        answer = await post(
            one, PATH, {"model": "open-ai-chatter", "messages": [user("x")], "conversation": second["conversation"]}
        )
        assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")
        assert content_of(await chat(one, user("x"), conversation=first["conversation"])) == "well"


async def test_functions_of_the_client_are_found_again_by_the_ids_of_their_calls() -> None:
    both = calls(call("look", far=True, id="c1"), call("look", far=False, id="c2"))
    OpenAiChatter.model = ScriptedModel(both, text("trees"), text("bye"), each=True)
    async with openai() as one:
        asked = {"model": "open-ai-chatter", "messages": [user("what?")], "tools": [LOOK], "stream": True}
        chunks = await Stream(one, PATH, asked).over()
        (delta,) = [one["choices"][0]["delta"] for one in chunks if one["choices"][0]["delta"].get("tool_calls")]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        made = [{key: value for key, value in one.items() if key != "index"} for one in delta["tool_calls"]]
        assert [json.loads(one["function"]["arguments"]) for one in made] == [{"far": True}, {"far": False}]

        await one.world.crash()
        said = [user("what?"), {"role": "assistant", "content": None, "tool_calls": made}]
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "tree"} for one in made]
        second = await chat(one, *said, *results, tools=[LOOK])
        assert content_of(second) == "trees"
        third = await chat(one, *said, *results, assistant("trees"), user("bye"), tools=[LOOK])
        assert (content_of(third), third["conversation"]) == ("bye", second["conversation"])
        assert await refused(one, *said, *results, tools=[LOOK]) == (400, "no_tool_call_found")
        strange = [{"role": "tool", "tool_call_id": "call_1", "content": "tree"}]
        assert await refused(one, user("what?"), *strange) == (400, "no_tool_call_found")
        assert len(OpenAiChatter.model.asked) == 3


async def test_an_approval_is_told_in_words() -> None:
    async with openai() as one:
        body = {"model": "open-ai-payer", "messages": [user("pay")]}
        answer = (await post(one, PATH, body)).json()
        assert content_of(answer) == '[Waiting for an approval of pay {"euros":3} by OpenAiPayer]'


async def test_a_repeated_completion_with_the_same_key_joins_the_turn() -> None:
    OpenAiChatter.model = ScriptedModel(text("well"))
    async with openai() as one:
        answers = [await chat(one, user("hi"), headers={"idempotency-key": "k1"}) for _ in range(2)]
        assert answers[0] == answers[1]
        assert len(OpenAiChatter.model.asked) == 1


async def test_parameters_of_a_completion_are_used_or_refused() -> None:
    OpenAiChatter.model = ScriptedModel(text("well"))
    async with openai() as one:
        for name, value in {"n": 2, "store": False, "reasoning_effort": "low", "functions": []}.items():
            assert await refused(one, user("hi"), **{name: value}) == (400, "unsupported_parameter")
        assert await refused(one, user("hi"), colour="red") == (400, "unknown_parameter")
        assert await refused(one, user("hi"), temperature="hot") == (400, "invalid_value")
        assert await refused(one) == (400, "invalid_value")
        assert await refused(one, assistant("hi")) == (400, "invalid_value")
        assert await refused(one, user("hi"), stream_options={"include_usage": True}) == (400, "invalid_value")
        assert await refused(one, {"role": "system", "content": "x"}, user("hi")) == (400, "unsupported_parameter")
        assert await refused(one, user("hi"), response_format={"type": "json_object"}) == (400, "invalid_value")
        assert OpenAiChatter.model.asked == []
        plain = {"n": 1, "temperature": 0.2, "max_tokens": 5, "stop": ["."], "seed": 3, "presence_penalty": 0}
        assert content_of(await chat(one, user("hi"), **plain)) == "well"
    async with openai(instructions=True) as one:
        await chat(one, {"role": "system", "content": "Be brief."}, user("hi"))
        assert OpenAiChatter.model.asked[-1][-1].instructions == "Be brief."


async def test_a_completion_that_fails_is_an_error() -> None:
    OpenAiChatter.model = ScriptedModel(fails(ValueError("secret")))
    async with openai() as one:
        answer = await post(one, PATH, {"model": "open-ai-chatter", "messages": [user("hi")]})
        assert (answer.status, answer.json()["error"]["type"]) == (500, "server_error")
        assert "secret" not in answer.text
        body = {"model": "open-ai-chatter", "messages": [user("hi")], "stream": True}
        assert (await Stream(one, PATH, body).over())[-1]["error"]["type"] == "server_error"


async def test_words_that_are_said_again_end_a_completion_and_are_incomplete_in_a_response() -> None:
    OpenAiChatter.model = ScriptedModel(text("once upon", gate=asyncio.Event()), text("there was"))
    async with openai() as one:
        said = {"model": "open-ai-chatter", "stream": True, "conversation": "ann"}
        chatting = Stream(one, PATH, {**said, "messages": [user("tell")]})
        await until(lambda: any("once" in str(chunk) for chunk in chatting.events))
        while len(OpenAiChatter.model.asked) == 1:
            await one.world.clock.advance(601)
            await asyncio.sleep(0.01)
        chunks = await chatting.over()
        assert (chunks[-1]["error"]["code"], chunks[-1]["error"]["type"]) == ("answer_interrupted", "server_error")

        OpenAiChatter.model = ScriptedModel(text("once upon", gate=asyncio.Event()), text("there was"))
        responding = Stream(one, "/v1/responses", {**said, "input": "tell"})
        await responding.until_said("once")
        while len(OpenAiChatter.model.asked) == 1:
            await one.world.clock.advance(601)
            await asyncio.sleep(0.01)
        events = await responding.over()
        assert said_by(events) == text_of(events[-1]["response"]) == "there was"
        id = events[-1]["response"]["id"]
        assert await Stream(one, f"/v1/responses/{id}?stream=true").over() == events


async def test_two_clients_that_send_the_same_history_at_once_join_one_turn() -> None:
    gate = asyncio.Event()
    OpenAiChatter.model = ScriptedModel(text("once upon", gate=gate))
    async with openai() as one:
        body = {"model": "open-ai-chatter", "messages": [user("tell")], "stream": True}
        streams = [Stream(one, PATH, body, **CHAT)]
        await until(lambda: any("once" in str(chunk) for chunk in streams[0].events))
        streams.append(Stream(one, PATH, body, **CHAT))
        await until(lambda: any("once" in str(chunk) for chunk in streams[1].events))
        gate.set()
        assert await streams[0].over() == await streams[1].over()
        assert len(OpenAiChatter.model.asked) == 1
