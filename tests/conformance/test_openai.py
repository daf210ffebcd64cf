"""The OpenAI API: responses are created, streamed, replayed after a crash, cancelled and refused."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.conformance.drivers import running
from tests.conformance.openai_client import Stream, create, post, refused, said, text_of
from tests.conformance.runtimes import serve
from tests.conformance.served import Served, served
from tests.conformance.serving import serving
from tests.machine import patience

from sapwood import App, ChatAgent, tool
from sapwood.auth import User
from sapwood.errors import UsageError
from sapwood.protocols import OpenAi
from sapwood.testing import ScriptedModel, call, fails, text

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class OpenAiTeller(ChatAgent):
    """Tells stories."""


class OpenAiWorker(ChatAgent):
    """Has a tool of its own."""

    @tool
    async def weigh(self, loaves: int) -> str:
        """Weigh loaves."""
        return f"{loaves} kg"


@asynccontextmanager
async def openai(*agents: type[ChatAgent[Any]], **options: Any) -> AsyncGenerator[Served, None]:
    settings = options.pop("settings", {})
    app = App(agents=agents or (OpenAiTeller, OpenAiWorker), protocols=[OpenAi()], **options)
    async with asyncio.timeout(patience()), served(app, **settings) as one:
        yield one


async def test_a_response_is_created_retrieved_and_continued() -> None:
    OpenAiTeller.model = ScriptedModel(text("once upon a time"), text("the end"))
    async with openai() as one:
        first = await create(one, model="open-ai-teller", input="tell", metadata={"of": "trees"})

        assert (first["object"], first["status"], text_of(first)) == ("response", "completed", "once upon a time")
        assert (first["model"], first["metadata"], first["error"]) == ("open-ai-teller", {"of": "trees"}, None)
        assert first["usage"]["output_tokens"] > 0
        assert (await one.site.http(f"/v1/responses/{first['id']}")).json() == first

        second = await create(one, model="open-ai-teller", input="more", previous_response_id=first["id"])
        assert (text_of(second), second["previous_response_id"]) == ("the end", first["id"])
        assert second["conversation"] == first["conversation"]
        assert len(OpenAiTeller.model.asked[-1]) == 3
        assert (await one.site.http(f"/v1/responses/{first['id']}")).json() == first

        alone = await create(one, model="open-ai-teller", input="hello")
        assert alone["conversation"] != first["conversation"]
        third = await create(one, model="open-ai-teller", input="more", conversation=first["conversation"])
        assert third["conversation"] == first["conversation"]
        named = await create(one, model="open-ai-teller", input="more", conversation={"id": "ann"})
        agent = await one.world.get_agent(OpenAiTeller, "ann")
        assert [message["role"] for message in await agent.conversation.messages()] == ["user", "assistant"]
        assert named["conversation"]["id"].startswith("conv_")


@pytest.mark.promise("B-24")
async def test_the_events_of_a_stream_are_those_of_the_api() -> None:
    OpenAiTeller.model = ScriptedModel(text("once upon"))
    async with openai() as one:
        stream = Stream(one, "/v1/responses", {"model": "open-ai-teller", "input": "tell", "stream": True})
        events = await stream.over()

        assert stream.names == [event["type"] for event in events]
        assert [name for name in stream.names if not name.endswith("delta")] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert (events[0]["response"]["status"], events[0]["response"]["output"]) == ("in_progress", [])
        last = events[-1]["response"]
        assert said(events) == text_of(last) == "once upon"
        assert (await one.site.http(f"/v1/responses/{last['id']}")).json() == last
        assert "response.completed" not in stream.text.partition("sequence_number")[0]


async def test_a_stream_that_a_crash_cuts_goes_on_by_its_numbers_and_a_late_reader_is_told_the_same() -> None:
    gate = asyncio.Event()
    OpenAiTeller.model = ScriptedModel(text("once upon a time", gate=gate), text("there was a tree"))
    async with openai() as one:
        first = Stream(one, "/v1/responses", {"model": "open-ai-teller", "input": "tell", "stream": True})
        await first.until_said("once")
        id, number = first.events[0]["response"]["id"], first.events[-1]["sequence_number"]

        await one.world.crash()
        rest = await Stream(one, f"/v1/responses/{id}?stream=true&starting_after={number}").over()
        whole = await Stream(one, f"/v1/responses/{id}?stream=true").over()

        assert [*first.events, *rest] == whole
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        dropped = [
            event["item"]
            for event in whole
            if event["type"] == "response.output_item.done" and event["item"]["status"] == "incomplete"
        ]
        assert len(dropped) == 1
        assert said(whole) == text_of(whole[-1]["response"]) == "there was a tree"
        assert len(OpenAiTeller.model.asked) == 2

        shorter = await Stream(one, f"/v1/responses/{id}?stream=true&starting_after={number + 2}").over()
        assert shorter == whole[number + 3 :]


async def test_a_background_response_survives_a_crash_and_can_be_cancelled() -> None:
    gate = asyncio.Event()
    OpenAiTeller.model = ScriptedModel(text("once upon", gate=gate), text("there was"), text("never ends", gate=gate))
    async with openai() as one:
        begun = await create(one, model="open-ai-teller", input="tell", background=True)
        assert (begun["status"], begun["output"], begun["background"]) == ("in_progress", [], True)
        path = f"/v1/responses/{begun['id']}"
        assert (await one.site.http(path)).json()["status"] == "in_progress"
        watching = Stream(one, f"{path}?stream=true")
        await watching.until_said("once")

        await one.world.crash()
        done = (await Stream(one, f"{path}?stream=true").over())[-1]["response"]
        assert (done["status"], text_of(done)) == ("completed", "there was")
        assert (await one.site.http(path)).json() == done

        again = await create(one, model="open-ai-teller", input="more", background=True)
        path = f"/v1/responses/{again['id']}"
        reading = Stream(one, f"{path}?stream=true")
        await reading.until_said("never")
        for _ in range(2):
            answer = await post(one, f"{path}/cancel", {})
            assert (answer.status, answer.json()["status"]) == (200, "cancelled")
        assert (await reading.over())[-1]["response"] == (await one.site.http(path)).json()
        assert (await post(one, f"/v1/responses/{done['id']}/cancel", {})).json() == done


async def test_a_repeated_request_with_the_same_key_joins_the_turn() -> None:
    gate = asyncio.Event()
    OpenAiTeller.model = ScriptedModel(text("once upon", gate=gate))
    async with openai() as one:
        body = {"model": "open-ai-teller", "input": "tell", "stream": True}
        first = Stream(one, "/v1/responses", body, **{"idempotency-key": "k1"})
        await first.until_said("once")
        second = Stream(one, "/v1/responses", body, **{"idempotency-key": "k1"})
        await second.until_said("once")
        gate.set()
        assert await first.over() == await second.over()
        assert len(OpenAiTeller.model.asked) == 1

        other = await post(one, "/v1/responses", {**body, "input": "else"}, **{"idempotency-key": "k1"})
        assert (other.status, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
        assert (await post(one, "/v1/responses", body, **{"idempotency-key": "k" * 300})).status == 400


async def test_a_tool_of_the_agent_is_told_as_a_call_that_the_server_makes() -> None:
    OpenAiWorker.model = ScriptedModel(call("weigh", loaves=3, id="w1"), text("three"))
    async with openai() as one:
        stream = Stream(one, "/v1/responses", {"model": "open-ai-worker", "input": "weigh", "stream": True})
        events = await stream.over()
        made, answer = events[-1]["response"]["output"]
        assert (made["type"], made["name"], made["status"]) == ("mcp_call", "weigh", "completed")
        assert (json.loads(made["arguments"]), made["output"]) == ({"loaves": 3}, "3 kg")
        assert answer["type"] == "message"
        assert "response.mcp_call.completed" in stream.names


async def test_every_parameter_is_used_or_refused_by_its_name() -> None:
    OpenAiTeller.model = ScriptedModel(text("well"))
    async with openai() as one:
        said = {"model": "open-ai-teller", "input": "hi"}
        for name, value in {
            "instructions": "be brief",
            "store": False,
            "truncation": "auto",
            "tool_choice": "required",
            "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "low"},
        }.items():
            assert await refused(one, **{**said, name: value}) == (400, "unsupported_parameter", name)
        assert await refused(one, **said, colour="red") == (400, "unknown_parameter", "colour")
        assert await refused(one, input="hi") == (400, "missing_required_parameter", "model")
        assert await refused(one, model="open-ai-teller") == (400, "missing_required_parameter", "input")
        assert await refused(one, model="nobody", input="hi") == (404, "model_not_found", "model")
        assert (await refused(one, **{**said, "input": []}))[2] == "input"
        assert (await refused(one, **{**said, "stream": "yes"}))[2] == "stream"
        assert (await refused(one, **said, metadata={"a": 1}))[2] == "metadata"
        assert (await refused(one, **said, tools=[{"type": "web_search"}]))[2] == "tools[0]"
        items = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
        assert (await refused(one, **{**said, "input": items}))[1:] == ("unsupported_parameter", "instructions")
        assert (await refused(one, **{**said, "input": items[:1]}))[1:] == ("invalid_value", "input")
        assert (await refused(one, **said, temperature=3))[1:] == ("invalid_value", "temperature")
        assert (await refused(one, **said, max_output_tokens=0.5))[1:] == ("invalid_value", "max_output_tokens")
        assert OpenAiTeller.model.asked == []
        plain = {"store": True, "truncation": "disabled", "tool_choice": "auto", "temperature": None}
        assert (await create(one, **said, **plain))["status"] == "completed"
        assert not (await one.site.http("/v1/responses", method="POST", body=b"{")).text.startswith("{}")
        broken = await one.site.http("/v1/responses", method="POST", body=b"[" * 10_000)
        assert (broken.status, broken.json()["error"]["code"]) == (400, "invalid_json")


class OpenAiTuned(ChatAgent):
    """Has settings and instructions of its own."""

    model_settings: ClassVar[Any] = {"max_tokens": 100, "temperature": 0.1}
    instructions = "Be kind."


async def test_settings_and_instructions_of_a_request_count_in_its_turn_only() -> None:
    seen: list[tuple[Any, Any]] = []

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        seen.append((dict(info.model_settings or {}), getattr(messages[-1], "instructions", None)))
        yield "well"

    OpenAiTuned.model = FunctionModel(stream_function=answer, model_name="made-up")
    app = App(agents=[OpenAiTuned], protocols=[OpenAi(instructions=True)])
    async with asyncio.timeout(patience()), served(app) as one:
        said = {"model": "open-ai-tuned", "input": "hi", "conversation": "ann"}
        tuned = await create(one, **said, temperature=0.5, max_output_tokens=500, instructions="Be brief.")
        assert (tuned["temperature"], tuned["max_output_tokens"], tuned["instructions"]) == (0.5, 500, "Be brief.")
        await create(one, **said)
        items = [{"role": "developer", "content": "Be quick."}, {"role": "user", "content": "hi"}]
        await create(one, **{**said, "input": items}, max_output_tokens=5)
        assert [one[1] for one in seen] == ["Be kind.\n\nBe brief.", "Be kind.", "Be kind.\n\nBe quick."]
        assert [(one[0]["max_tokens"], one[0]["temperature"]) for one in seen] == [(100, 0.5), (100, 0.1), (5, 0.1)]


class OpenAiLoaf(BaseModel):
    """A loaf."""

    name: str
    grams: int = 500


class OpenAiBaker(ChatAgent[OpenAiLoaf]):
    """Answers with a loaf."""


async def test_a_structured_output_is_text_in_json_and_its_format_must_be_that_of_the_class() -> None:
    OpenAiBaker.model = ScriptedModel(call("final_result", name="rye"))
    OpenAiTeller.model = ScriptedModel(text("well"))
    schema = to_strict_json_schema(OpenAiLoaf)
    async with openai(OpenAiBaker, OpenAiTeller) as one:
        said = {"model": "open-ai-baker", "input": "bake"}

        def format(schema: Any) -> Any:
            return {"format": {"type": "json_schema", "name": "loaf", "strict": True, "schema": schema}}

        for text_wanted in ({}, {"text": format(schema)}, {"text": {"format": {"type": "json_object"}}}):
            made = await create(one, **said, **text_wanted)
            assert [item["type"] for item in made["output"]] == ["message"]
            assert OpenAiLoaf.model_validate_json(text_of(made)) == OpenAiLoaf(name="rye")
        other = {**schema, "properties": {"name": {"type": "string"}}}
        assert await refused(one, **said, text=format(other)) == (400, "invalid_value", "text.format")
        plain = {"model": "open-ai-teller", "input": "hi"}
        assert await refused(one, **plain, text=format(schema)) == (400, "invalid_value", "text.format")
        assert (await create(one, **plain, text={"format": {"type": "text"}}))["status"] == "completed"


async def test_pictures_are_stored_like_those_of_a_chat() -> None:
    OpenAiTeller.model = ScriptedModel(text("a dot"))
    async with openai() as one:
        part = {"type": "input_image", "image_url": f"data:image/png;base64,{DOT}", "detail": "auto"}
        items = [{"role": "user", "content": [{"type": "input_text", "text": "what is it?"}, part]}]
        first = await create(one, model="open-ai-teller", input=items, conversation="ann")
        assert text_of(first) == "a dot"
        agent = await one.world.get_agent(OpenAiTeller, "ann")
        said, _ = await agent.conversation.messages()
        assert [one["type"] for one in said["parts"]] == ["text", "file"]
        assert said["parts"][1]["url"].startswith("/agents/open-ai-teller/ann/files/")
        (asked,) = OpenAiTeller.model.asked
        assert base64.b64decode(DOT) in [getattr(one, "data", None) for one in asked[0].parts[0].content]
        items[0]["content"] = [{"type": "input_image", "image_url": "file:///etc/passwd"}]
        wrong = await post(one, "/v1/responses", {"model": "open-ai-teller", "input": items})
        assert (wrong.status, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
        items[0]["content"] = [{"type": "input_image", "file_id": "file-1"}]
        assert (await refused(one, model="open-ai-teller", input=items))[1] == "unsupported_parameter"


async def test_an_unknown_id_is_refused_in_the_form_of_the_api() -> None:
    OpenAiTeller.model = ScriptedModel(text("well"))
    async with openai() as one:
        first = await create(one, model="open-ai-teller", input="hi")
        wrong = first["id"][:-1] + ("0" if first["id"][-1] != "0" else "1")
        for path in (
            f"/v1/responses/{wrong}",
            "/v1/responses/resp_1",
            "/v1/responses/x%00",
            f"/v1/responses/{wrong}/x",
        ):
            answer = await one.site.http(path)
            assert (answer.status, answer.json()["error"]["type"]) == (404, "invalid_request_error")
        assert (await post(one, f"/v1/responses/{wrong}/cancel", {})).status == 404
        said = {"model": "open-ai-teller", "input": "hi"}
        assert (await refused(one, **said, previous_response_id=wrong))[1] == "previous_response_not_found"
        assert (await refused(one, **said, conversation="conv_x"))[0] == 404
        other = {**said, "model": "open-ai-worker", "previous_response_id": first["id"]}
        assert await refused(one, **other) == (400, "invalid_value", "model")
        second = await create(one, **said, previous_response_id=first["id"])
        assert second["status"] == "completed"
        assert (await one.site.http("/v1/nothing")).json()["error"]["code"] == "not_found"
        assert (await one.site.http("/v1/responses")).status == 405


async def test_each_response_can_be_continued_more_than_once() -> None:
    OpenAiTeller.model = ScriptedModel(text("well"))
    async with openai() as one:

        async def said(words: str, after: str | None = None) -> str:
            more = {} if after is None else {"previous_response_id": after}
            answer = await create(one, model="open-ai-teller", input=words, **more)
            assert answer["status"] == "completed"
            return answer["id"]

        def asked() -> list[str]:
            parts = [part for message in OpenAiTeller.model.asked[-1] for part in message.parts]
            return [str(part.content) for part in parts if part.part_kind == "user-prompt"]

        first = await said("hi")
        second = await said("two", first)
        other = await said("other", first)
        assert asked() == ["hi", "other"]
        await said("three", second)
        assert asked() == ["hi", "two", "three"]
        await said("more", other)
        assert asked() == ["hi", "other", "more"]


async def test_a_turn_that_fails_is_a_response_that_failed() -> None:
    OpenAiTeller.model = ScriptedModel(fails(ValueError("secret")))
    async with openai() as one:
        failed = await create(one, model="open-ai-teller", input="hi")
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert "secret" not in json.dumps(failed)
        OpenAiTeller.model = ScriptedModel(text("better"))
        again = await create(one, model="open-ai-teller", input="hi", previous_response_id=failed["id"])
        assert text_of(again) == "better"


async def test_a_conversation_that_is_cleared_takes_its_responses_along() -> None:
    OpenAiTeller.model = ScriptedModel(text("well"))
    async with openai() as one:
        first = await create(one, model="open-ai-teller", input="hi", conversation="ann")
        agent = await one.world.get_agent(OpenAiTeller, "ann")
        await agent.conversation.clear()
        assert (await one.site.http(f"/v1/responses/{first['id']}")).status == 404


async def test_the_models_are_those_that_are_published() -> None:
    async with openai() as one:
        found = (await one.site.http("/v1/models")).json()
        assert [model["id"] for model in found["data"]] == ["open-ai-teller", "open-ai-worker"]
        assert (await one.site.http("/v1/models/open-ai-teller")).json() == found["data"][0]
        assert (await one.site.http("/v1/models/x")).json()["error"]["code"] == "model_not_found"
    OpenAiTeller.model = ScriptedModel(text("well"))
    app = App(agents=[OpenAiTeller, OpenAiWorker], protocols=[OpenAi(models={"story": OpenAiTeller})])
    async with asyncio.timeout(patience()), served(app) as one:
        assert [model["id"] for model in (await one.site.http("/v1/models")).json()["data"]] == ["story"]
        assert (await create(one, model="story", input="hi"))["model"] == "story"
        assert (await refused(one, model="open-ai-worker", input="hi"))[0] == 404
        below = await post(one, "/agents/open-ai-worker/a/v1/responses", {"model": "open-ai-worker", "input": "hi"})
        assert below.status == 404


def who(request: Any) -> User | None:
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    return User(token) if token in ("ann", "bob") else None


ANN, BOB = {"authorization": "Bearer ann"}, {"authorization": "Bearer bob"}


async def test_a_response_belongs_to_its_user_and_refusals_have_the_form_of_the_api() -> None:
    OpenAiTeller.model = ScriptedModel(text("well"))

    def may(user: Any, address: Any, action: str) -> bool:
        return address.name != "secret"

    limits = {"request_bytes": 10_000, "new_roots_per_minute": 3}
    async with openai(authenticate=who, authorize=may, settings=limits) as one:
        said = {"model": "open-ai-teller", "input": "hi"}

        async def error_of(status: int, body: Any = said, headers: dict[str, str] = ANN, path: str = "") -> Any:
            answer = await post(one, f"/v1/responses{path}", body, **headers)
            assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            return error["type"], error["code"], answer.headers

        assert (await error_of(401, headers={}))[:2] == ("authentication_error", "invalid_api_key")
        assert (await one.site.http("/v1/models")).json()["error"]["code"] == "invalid_api_key"
        assert (await error_of(403, {**said, "conversation": "secret"}))[:2] == (
            "permission_error",
            "permission_denied",
        )
        assert (await error_of(413, {**said, "input": "x" * 10_000}))[:2] == (
            "invalid_request_error",
            "request_too_large",
        )
        first = (await post(one, "/v1/responses", {**said, "conversation": "ann"}, **ANN)).json()
        assert (await one.site.http(f"/v1/responses/{first['id']}", headers=ANN)).json() == first
        assert (await one.site.http(f"/v1/responses/{first['id']}", headers=BOB)).status == 404
        assert (await error_of(404, {}, BOB, f"/{first['id']}/cancel"))[1] == "not_found"
        assert (await error_of(400, {**said, "previous_response_id": first["id"]}, BOB))[1] == (
            "previous_response_not_found"
        )
        assert (await error_of(404, {**said, "conversation": first["conversation"]}, BOB))[1] == "not_found"
        call_id = f"call_{first['id'][5:]}0000"
        stolen = [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": call_id, "name": "x", "arguments": "{}"},
            {"type": "message", "role": "assistant", "content": "well"},
            {"role": "user", "content": "more"},
        ]
        assert (await error_of(404, {**said, "input": stolen}, BOB))[1] == "not_found"
        for _ in range(2):
            assert (await post(one, "/v1/responses", said, **ANN)).status == 200
        kind, code, headers = await error_of(429)
        assert (kind, code) == ("rate_limit_error", "rate_limit_exceeded")
        assert int(headers["retry-after"]) > 0
        assert headers["x-content-type-options"] == "nosniff"


async def test_too_many_queued_responses_are_refused_with_429() -> None:
    OpenAiTeller.model = ScriptedModel(text("once upon", gate=asyncio.Event()))
    async with openai() as one:
        said = {"model": "open-ai-teller", "input": "hi", "conversation": "ann", "background": True}
        statuses: list[int] = []
        while 429 not in statuses:
            statuses.append((await post(one, "/v1/responses", said)).status)
        assert set(statuses[:-1]) == {200}
        assert (await refused(one, **said))[:2] == (429, "rate_limit_exceeded")


async def test_an_app_below_a_path_answers_there() -> None:
    OpenAiTeller.model = ScriptedModel(text("well"))
    app = App(agents=[OpenAiTeller], protocols=[OpenAi()])
    async with asyncio.timeout(patience()), running(app) as world:

        async def mounted(scope: Any, receive: Any, send: Any) -> None:
            await serve(world, {**scope, "root_path": "/ai"}, receive, send)

        async with serving(mounted, world) as site:
            body = json.dumps({"model": "open-ai-teller", "input": "hi"}).encode()
            answer = await site.http("/ai/v1/responses", method="POST", body=body)
            assert answer.status == 200, answer.text
            assert (await site.http(f"/ai/v1/responses/{answer.json()['id']}")).json() == answer.json()


def test_what_is_published_must_be_a_chat_agent() -> None:
    with pytest.raises(UsageError, match="must be a chat agent class"):
        OpenAi(models={"x": App})  # pyright: ignore[reportArgumentType]
