"""The official `openai` client against a real server that is killed in the middle: nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import (
    APIConnectionError,
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    OpenAI,
)
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from tests.e2e.command import PATIENCE, Server, serving
from tests.ports import free_port

pytestmark = pytest.mark.slow

KEY = "a-long-random-key-of-ann"
OTHER = "a-long-random-key-of-bob"
WORDS = 40
APP = f"""
import os
from pathlib import Path

from sapwood import App, ChatAgent, agent_tool, tool
from sapwood.auth import ANY_CLIENT, ApiKeys
from sapwood.protocols import OpenAi
from sapwood.testing import ScriptedModel, call, text


def note(what):
    with Path("done.txt").open("a") as log:
        log.write(what + "\\n")


class Writer(ChatAgent):
    model = ScriptedModel(text(" ".join(f"word{{n}}" for n in range({WORDS})), delay=0.02), each=True)


class Looker(ChatAgent):
    model = ScriptedModel(call("get_time", zone="here"), text("it is noon"), each=True)


class Clerk(ChatAgent):
    '''Pays.'''

    model = ScriptedModel(call("pay", euros=3), text("it is paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        note("paid")
        return "paid"


class Buyer(ChatAgent):
    '''Buys.'''

    model = ScriptedModel(call("pay", message="pay"), text("the clerk paid"), each=True)
    tools = (agent_tool(Clerk, name="pay"),)


class Office(ChatAgent):
    model = ScriptedModel(call("weigh"), call("buy", message="bread"), text("bread is bought"), each=True)
    tools = (agent_tool(Buyer, name="buy"),)

    @tool
    async def weigh(self) -> str:
        note("weighed")
        Path("process.txt").write_text(str(os.getpid()))
        return "3 kg"


keys = {{"ann": ApiKeys.hash_of("{KEY}"), "bob": ApiKeys.hash_of("{OTHER}")}}
models = {{"writer": Writer, "looker": Looker, "office": Office}}
app = App(agents=[Writer, Looker, Office], protocols=[OpenAi(models=models)], authenticate=ApiKeys(keys))
"""
TIME: Any = {
    "type": "function",
    "name": "get_time",
    "description": "Tell the time.",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    "strict": False,
}


class Site:
    """A server that is killed and comes back on the same port, with the same data."""

    def __init__(self, folder: Path) -> None:
        (folder / "app.py").write_text(APP)
        self.folder, self._port = folder, str(free_port())
        self.clients: list[OpenAI] = []
        self.start()

    def start(self) -> None:
        self.server = Server(self.folder, "serve", "app:app", SAPWOOD_PORT=self._port)

    def kill(self) -> None:
        self.server.process.send_signal(signal.SIGKILL)
        self.server.process.wait(PATIENCE)

    def client(self, key: str = KEY) -> OpenAI:
        url = f"http://127.0.0.1:{self._port}/v1"
        self.clients.append(OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE))
        return self.clients[-1]

    def done(self) -> list[str]:
        log = self.folder / "done.txt"
        return log.read_text().split() if log.exists() else []


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    one = Site(folder)
    try:
        yield one
    finally:
        for client in one.clients:
            client.close()
        if one.server.process.poll() is None:
            one.kill()


def followed(client: OpenAI, id: str) -> Any:
    """Return a response once it has ended."""
    for event in client.responses.retrieve(id, stream=True):
        last: Any = event
    return last.response


def test_create_stream_and_the_helper_of_the_client(tmp_path: Path) -> None:
    with site(tmp_path) as one:
        client = one.client()
        assert [model.id for model in client.models.list()] == ["writer", "looker", "office"]
        first = client.responses.create(model="writer", input="tell")
        assert (first.status, len(first.output_text.split()), first.error) == ("completed", WORDS, None)
        assert first.usage is not None
        assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens > 0

        events = list(client.responses.create(model="writer", input="more", previous_response_id=first.id, stream=True))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        last: Any = events[-1]
        assert deltas == last.response.output_text == first.output_text
        with client.responses.stream(model="writer", input="again", previous_response_id=last.response.id) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().output_text == first.output_text

        with pytest.raises(BadRequestError) as refused:
            client.responses.create(model="writer", input="x", truncation="auto")
        assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "truncation")
        with pytest.raises(AuthenticationError):
            one.client("wrong").responses.create(model="writer", input="x")
        with pytest.raises(NotFoundError):
            one.client(OTHER).responses.retrieve(first.id)


def test_a_stream_is_cut_by_a_kill_and_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    with site(tmp_path) as one:
        client, heard = one.client(), list[Any]()
        with pytest.raises((APIConnectionError, Exception)) as cut:  # noqa: PT012 - the stream breaks
            for event in client.responses.create(model="writer", input="tell", stream=True, background=True):
                heard.append(event)
                if sum(one.type == "response.output_text.delta" for one in heard) == 5:
                    one.kill()
        assert not isinstance(cut.value, AssertionError)
        one.start()
        id, number = heard[0].response.id, heard[-1].sequence_number

        rest = list(client.responses.retrieve(id, stream=True, starting_after=number))
        whole = list(client.responses.retrieve(id, stream=True))

        assert [event.to_json() for event in [*heard, *rest]] == [event.to_json() for event in whole]
        assert [event.sequence_number for event in whole] == list(range(len(whole)))
        texts: dict[str, str] = {}
        for event in whole:
            if event.type == "response.output_text.delta":
                texts[event.item_id] = texts.get(event.item_id, "") + event.delta
            elif event.type == "response.output_item.done" and getattr(event.item, "status", "") == "incomplete":
                del texts[str(event.item.id)]
        last: Any = whole[-1]
        assert "".join(texts.values()) == last.response.output_text
        assert len(last.response.output_text.split()) == WORDS
        with client.responses.stream(response_id=id, starting_after=number) as stream:
            assert [event.sequence_number for event in stream] == [event.sequence_number for event in rest]
            assert stream.get_final_response().output_text == last.response.output_text


@pytest.mark.nightly
def test_a_background_response_survives_a_kill_and_another_is_cancelled(tmp_path: Path) -> None:
    with site(tmp_path) as one:
        client = one.client()
        begun = client.responses.create(model="writer", input="tell", background=True, conversation="ann")
        assert begun.status in ("queued", "in_progress")
        one.kill()
        one.start()
        ended = followed(client, begun.id)
        assert (ended.status, len(ended.output_text.split())) == ("completed", WORDS)
        assert client.responses.retrieve(begun.id).output_text == ended.output_text

        begun = client.responses.create(model="writer", input="tell", background=True, conversation="ann")
        assert client.responses.cancel(begun.id).status == "cancelled"
        one.kill()
        one.start()
        assert client.responses.retrieve(begun.id).status == "cancelled"


def test_a_function_of_the_client_is_called_across_a_kill(tmp_path: Path) -> None:
    with site(tmp_path) as one:
        client = one.client()
        first = client.responses.create(model="looker", input="what time?", tools=[TIME])
        call: Any = first.output[-1]
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_time", {"zone": "here"})
        one.kill()
        one.start()
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}]
        second = client.responses.create(model="looker", previous_response_id=first.id, input=output, tools=[TIME])
        assert (second.status, second.output_text) == ("completed", "it is noon")


@pytest.mark.nightly
def test_a_deep_approval_is_given_across_kills_and_nothing_is_done_twice(tmp_path: Path) -> None:
    with site(tmp_path) as one:
        client = one.client()
        first = client.responses.create(model="office", input="bread")
        request: Any = first.output[-1]
        assert (request.type, request.server_label) == ("mcp_approval_request", "Buyer/Clerk")
        one.kill()
        one.start()
        answer: Any = [{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}]
        second = client.responses.create(model="office", previous_response_id=first.id, input=answer, background=True)
        one.kill()
        one.start()
        ended = followed(client, second.id)
        assert (ended.status, ended.output_text) == ("completed", "bread is bought")
        with pytest.raises(BadRequestError) as refused:
            client.responses.create(model="office", previous_response_id=first.id, input=answer)
        assert refused.value.code == "no_tool_call_found"
        assert one.done() == ["weighed", "paid"]


def test_chat_completions_and_a_function_across_a_kill(tmp_path: Path) -> None:
    with site(tmp_path) as one:
        client = one.client()
        said: list[Any] = [{"role": "user", "content": "tell"}]
        whole = client.chat.completions.create(model="writer", messages=said)
        assert len((whole.choices[0].message.content or "").split()) == WORDS
        assert whole.usage is not None
        assert whole.usage.total_tokens > 0
        chunks = list(
            client.chat.completions.create(
                model="writer", messages=said, stream=True, stream_options={"include_usage": True}
            )
        )
        words = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert words == whole.choices[0].message.content
        assert chunks[-1].usage == whole.usage

        time: Any = {"type": "function", "function": {key: value for key, value in TIME.items() if key != "type"}}
        first = client.chat.completions.create(model="looker", messages=said, tools=[time])
        assert first.choices[0].finish_reason == "tool_calls"
        (call,) = first.choices[0].message.tool_calls or []
        one.kill()
        one.start()
        said += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "12:00"}]
        second = client.chat.completions.create(model="looker", messages=said, tools=[time])
        assert second.choices[0].message.content == "it is noon"


def test_the_sequence_of_open_webui_across_a_kill(tmp_path: Path) -> None:
    """As its server sends it: models, a chat with the whole history each time, and a request for a title."""
    with site(tmp_path) as one:
        client = one.client().with_options(default_headers={"X-OpenWebUI-Chat-Id": "2f9f8f0e-8a3a"})
        assert "writer" in [model.id for model in client.models.list()]

        def chat(*messages: tuple[str, str]) -> tuple[str, Any]:
            said: Any = [{"role": role, "content": text} for role, text in messages]
            text, last = "", None
            for chunk in client.chat.completions.create(model="writer", messages=said, stream=True):
                text, last = text + (chunk.choices[0].delta.content or ""), chunk
            assert last is not None
            return text, last.to_dict()["conversation"]

        answer, place = chat(("user", "hi"))
        title = "### Task:\nGenerate a concise title.\n### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>"
        named = client.chat.completions.create(
            model="writer", messages=[{"role": "user", "content": title}], stream=False, max_completion_tokens=1000
        )
        assert named.to_dict()["conversation"] != place
        one.kill()
        one.start()
        _, again = chat(("user", "hi"), ("assistant", answer), ("user", "more"))
        _, last = chat(("user", "hi"), ("assistant", answer), ("user", "more"), ("assistant", "x"), ("user", "end"))
        assert place == again == last
        with pytest.raises(APIStatusError) as refused:
            chat(("user", "hi"), ("assistant", answer), ("user", "other"), ("assistant", "x"), ("user", "end"))
        assert (refused.value.status_code, refused.value.code) == (409, "history_mismatch")


def place_of(answer: Any) -> str:
    """Return the conversation that a chat completion belongs to."""
    return answer.to_dict()["conversation"]["id"]


def test_the_sequence_of_librechat_across_a_kill(tmp_path: Path) -> None:
    """As it sends it to a custom endpoint: its settings in each request, texts as parts, the title beside the answer.

    With `X-Conversation-Id: "{{LIBRECHAT_BODY_CONVERSATIONID}}"` in its `headers`, requests for titles have it too.
    """
    with site(tmp_path) as one:
        client = one.client().with_options(default_headers={"X-Conversation-Id": "0e5c3f64-71d2"})
        assert "writer" in [model.id for model in client.models.list()]
        ui: Any = {"temperature": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0, "user": "665f1c"}
        places: dict[str, str] = {}

        def chat(*messages: tuple[str, str], then: Callable[[], None] = lambda: None) -> str:
            said: Any = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in messages]
            options: Any = {"include_usage": True}
            text, last = "", None
            for chunk in client.chat.completions.create(
                model="writer", messages=said, stream=True, stream_options=options, **ui
            ):
                if not text:
                    then()
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                last = chunk
            assert last is not None
            assert last.usage is not None
            places[messages[-1][1]] = place_of(last)
            return text

        def title() -> None:
            prompt = "Provide a concise, 5-word-or-less title for the conversation. Conversation:\nUser: hi\nAI: word0"
            named = client.chat.completions.create(
                model="writer", messages=[{"role": "user", "content": prompt}], temperature=0.2, user="665f1c"
            )
            places["title"] = place_of(named)

        answer = chat(("user", "hi"), then=title)
        assert len(answer.split()) == WORDS
        one.kill()
        one.start()
        with pytest.raises((APIConnectionError, httpx.HTTPError)):
            chat(("user", "hi"), ("assistant", answer), ("user", "more"), then=one.kill)
        one.start()
        again = chat(("user", "hi"), ("assistant", answer), ("user", "more"))  # "regenerate" sends the same
        chat(("user", "hi"), ("assistant", answer), ("user", "other"))  # an edited message takes its place
        chat(("user", "hi"), ("assistant", answer), ("user", "other"), ("assistant", again), ("user", "end"))
        assert places["title"] != places["hi"]
        assert {places[said] for said in ("hi", "more", "other", "end")} == {places["hi"]}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_an_agent_framework_with_tools_of_its_own(tmp_path: Path, kind: Any) -> None:
    asked: list[str] = []

    def get_time(zone: str) -> str:
        """Tell the time."""
        asked.append(zone)
        return "12:00"

    with site(tmp_path) as one:

        async def run() -> None:
            provider = OpenAIProvider(base_url=f"http://127.0.0.1:{one.server.port}/v1", api_key=KEY)
            try:
                looker = PydanticAgent(kind("looker", provider=provider), tools=[get_time])
                assert (await looker.run("what time?")).output == "it is noon"
                writer = PydanticAgent(kind("writer", provider=provider))
                history = (await writer.run("tell")).all_messages()
                assert len((await writer.run("more", message_history=history)).output.split()) == WORDS
            finally:
                await provider.client.close()

        asyncio.run(run())
        assert asked == ["here"]


@pytest.mark.nightly
def test_workers_share_the_agents_and_find_a_response_by_its_id(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "serve", "app:app", "--workers", "2") as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        client = OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=PATIENCE)
        made = [
            client.responses.create(model="writer", input="tell", background=True, conversation=f"c{n}")
            for n in range(4)
        ]
        ended = [followed(client, one.id) for one in made]
        assert [len(one.output_text.split()) for one in ended] == [WORDS] * 4
        with pytest.raises(NotFoundError):
            client.responses.retrieve(made[0].id[:-1] + "x")
        client.close()


MANY = 8
"""Clients at once. Which worker accepts a connection is chance: among so many are some for each."""


def done_by_many(clients: list[OpenAI], key: str, **body: Any) -> Any:
    """Have all clients send the same request at once, until each has a response; return the one that all have."""

    def done(client: OpenAI) -> Any:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return client.responses.create(model="office", extra_headers={"Idempotency-Key": key}, **body)
            except (APIConnectionError, InternalServerError):  # the worker that has the agent is being restarted
                time.sleep(0.02)
                if time.monotonic() > end:
                    raise

    with ThreadPoolExecutor(MANY) as pool:
        responses = list(pool.map(done, clients))
    assert len({one.id for one in responses}) == 1
    assert len({one.to_json() for one in responses}) == 1
    return responses[0]


@pytest.mark.nightly
def test_a_request_that_many_repeat_at_two_workers_is_one_response_across_a_kill_of_the_worker(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with serving(tmp_path, "serve", "app:app", "--workers", "2") as server, contextlib.ExitStack() as stack:
        url = f"http://127.0.0.1:{server.port}/v1"
        clients = [OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=PATIENCE) for _ in range(MANY)]
        for client in clients:
            stack.callback(client.close)

        def kill() -> None:
            os.kill(int((tmp_path / "process.txt").read_text()), signal.SIGKILL)

        def done() -> list[str]:
            return (tmp_path / "done.txt").read_text().split()

        asked = done_by_many(clients, "k1", input="buy bread")
        assert done() == ["weighed"]
        kill()
        assert done_by_many(clients, "k1", input="buy bread") == asked
        (item,) = [one for one in asked.output if one.type == "mcp_approval_request"]
        answer = {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
        bought = done_by_many(clients, "k2", input=[answer], previous_response_id=asked.id)
        assert (bought.status, bought.output_text) == ("completed", "bread is bought")
        for client in clients:
            with pytest.raises(ConflictError):
                client.responses.create(model="office", input="buy beer", extra_headers={"Idempotency-Key": "k1"})
        assert done_by_many(clients, "k2", input=[answer], previous_response_id=asked.id) == bought
        assert done_by_many(clients, "k1", input="buy bread") == asked
        assert done() == ["weighed", "paid"]


@pytest.mark.nightly
def test_a_stream_that_is_cut_by_three_kills_is_whole_in_the_end(tmp_path: Path) -> None:
    with site(tmp_path) as one:
        client = one.client()
        begun = client.responses.create(model="writer", input="tell", background=True)
        heard: list[Any] = []
        for kills in range(4):
            after = heard[-1].sequence_number if heard else None
            number = -1 if after is None else after
            said = 0
            with contextlib.suppress(APIConnectionError, httpx.HTTPError):
                stream = (
                    client.responses.retrieve(begun.id, stream=True)
                    if after is None
                    else client.responses.retrieve(begun.id, stream=True, starting_after=after)
                )
                for event in stream:
                    assert event.sequence_number == number + 1
                    number = event.sequence_number
                    heard.append(event)
                    said += event.type == "response.output_text.delta"
                    if said == 3 and kills < 3:
                        one.kill()
            if kills < 3:
                one.start()
        whole = list(client.responses.retrieve(begun.id, stream=True))
        assert [event.to_json() for event in heard] == [event.to_json() for event in whole]
        assert len(heard[-1].response.output_text.split()) == WORDS
