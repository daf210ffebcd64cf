"""Events over HTTP: lines of JSON and server-sent events, gone on with, paced, and asked for like everything else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from tests.conformance.served import Served, served
from tests.conformance.serving import Site
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, agent_tool
from sapwood.runs.events.events import Feed
from sapwood.testing import ScriptedModel, call, text
from sapwood.timings import DEFAULTS, Timings

pytestmark = pytest.mark.core("workers")

ROOT = "/agents/stream-root/r"
SSE = {"accept": "text/event-stream"}

gates: dict[str, asyncio.Event] = {}


class StreamLeaf(Agent):
    """Says what it is given; waits where it is told to."""

    async def on_run(self, input: list[str]) -> AsyncGenerator[str, None]:
        for word in input:
            if word.startswith("gate:"):
                await gates.setdefault(word, asyncio.Event()).wait()
            elif word == "many":
                for number in range(1500):
                    yield f"{number:06}" + "x" * 4000
            elif word == "fail":
                raise RuntimeError("Max steps exceeded")
            else:
                yield word


class StreamRoot(Agent):
    """Gives runs."""

    async def give(self, id: str, *words: str) -> str:
        return (await self.run_agent(StreamLeaf, list(words), run_id=id)).status

    async def begin(self, id: str, *words: str) -> None:
        await self.start_run(StreamLeaf, list(words), run_id=id)

    async def listeners(self) -> int:
        return len(self._actor.of(Feed).ears)

    async def on_request(self, request: Any) -> Any:
        return PlainTextResponse(f"its own {request.scope['path']}")


class Lines:
    """A response that goes on, read line by line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._rest = b""
        self.status, self.headers = 0, dict[str, str]()

    async def begin(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(head[0].split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in head[1:-2])}

    async def line(self) -> str:
        async with asyncio.timeout(patience()):
            while b"\n" not in self._rest:
                size = int(await self._reader.readline() or b"0", 16)
                if size == 0:
                    raise EOFError
                self._rest += await self._reader.readexactly(size)
                await self._reader.readline()
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    async def json(self) -> dict[str, Any]:
        return json.loads(await self.line())

    async def sse(self) -> tuple[str | None, Any]:
        """Return the id and the data of the next server-sent event."""
        id = None
        while line := await self.line():
            if line.startswith("id: "):
                id = line.removeprefix("id: ")
            else:
                data = json.loads(line.removeprefix("data: "))
        return id, data

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def reading(site: Site, target: str, **headers: str) -> AsyncGenerator[Lines, None]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    sent = {"host": f"127.0.0.1:{site.port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    writer.write(
        "\r\n".join([f"GET {target} HTTP/1.1", *(f"{k}: {v}" for k, v in sent.items()), "", ""]).encode("latin-1")
    )
    lines = Lines(reader, writer)
    await lines.begin()
    try:
        yield lines
    finally:
        writer.close()


@asynccontextmanager
async def streamed(timings: Timings = DEFAULTS, **options: Any) -> AsyncGenerator[Served, None]:
    gates.clear()
    async with served(App(agents=[StreamRoot], **options), timings=timings) as one:
        yield one


async def root_of(one: Served) -> StreamRoot:
    return await one.world.get_agent(StreamRoot, "r")


async def no_listeners(root: StreamRoot, count: int = 0) -> None:
    async with asyncio.timeout(patience()):
        while await root.listeners() != count:  # noqa: ASYNC110 - the other end of a connection, nobody tells
            await asyncio.sleep(0.005)


async def test_events_come_as_lines_of_json_what_was_and_what_happens() -> None:
    async with streamed() as one:
        root = await root_of(one)
        await root.give("past", "a")
        async with reading(one.site, f"{ROOT}/events") as lines:
            assert (lines.status, lines.headers["content-type"]) == (200, "application/x-ndjson")
            past = [await lines.json() for _ in range(5)]
            await root.give("now", "b")
            now = [await lines.json() for _ in range(5)]

        assert [event["kind"] for event in past] == ["started", "chunk", "chunk", "chunk", "completed"]
        assert {event["runId"] for event in past} == {"past"}
        assert {event["runId"] for event in now} == {"now"}
        assert past[0] == {
            "path": [{"type": "StreamRoot", "name": "r"}, {"type": "StreamLeaf", "name": "past"}],
            "runId": "past",
            "parentRunId": None,
            "seq": 0,
            "at": past[0]["at"],
            "kind": "started",
            "body": {"input": ["a"], "order": 0},
            "cursor": past[0]["cursor"],
        }


async def test_events_come_as_server_sent_events_and_go_on_behind_the_last_id() -> None:
    async with streamed() as one:
        root = await root_of(one)
        await root.give("past", "a", "b")
        async with reading(one.site, f"{ROOT}/events", **SSE) as lines:
            assert lines.headers["content-type"].startswith("text/event-stream")
            seen = [await lines.sse() for _ in range(6)]

        for at, (id, _) in enumerate(seen[:-1]):
            assert id is not None
            async with reading(one.site, f"{ROOT}/events", last_event_id=id, **SSE) as lines:
                assert [await lines.sse() for _ in range(5 - at)] == seen[at + 1 :]
            async with reading(one.site, f"{ROOT}/events?after={id}") as lines:
                assert (await lines.json())["seq"] == seen[at + 1][1]["seq"]
        async with reading(
            one.site, f"{ROOT}/events?after={seen[0][0]}", last_event_id=str(seen[3][0]), **SSE
        ) as lines:
            assert await lines.sse() == seen[4]


async def test_a_reader_that_was_cut_off_by_a_restart_goes_on_where_it_was() -> None:
    async with streamed() as one:
        root = await root_of(one)
        await root.give("past", "a", "b")
        async with reading(one.site, f"{ROOT}/events", **SSE) as lines:
            seen = [await lines.sse() for _ in range(3)]
        await one.world.crash()

        root = await root_of(one)
        await root.give("next", "c")
        async with reading(one.site, f"{ROOT}/events", last_event_id=str(seen[-1][0]), **SSE) as lines:
            rest = [(await lines.sse())[1] for _ in range(8)]

        assert [(event["runId"], event["seq"]) for event in rest] == [
            *(("past", number) for number in range(3, 6)),
            *(("next", number) for number in range(5)),
        ]


async def test_the_depth_is_chosen_in_the_url_and_nonsense_is_refused() -> None:
    async with streamed() as one:
        await (await root_of(one)).give("past", "a")
        async with reading(one.site, f"{ROOT}/events?depth=children") as lines:
            assert (await lines.json())["kind"] == "started"
        for query in ("depth=deep", "format=xml", "after=nonsense"):
            assert (await one.site.http(f"{ROOT}/events?{query}")).status == 400
        assert (await one.site.http(f"{ROOT}/events/more")).text == "its own /events/more"
        assert (await one.site.http(f"{ROOT}/events", method="POST")).text == "its own /events"


async def test_events_are_asked_for_like_everything_else() -> None:
    def user_of(conn: Any) -> Any:
        return conn.headers.get("authorization")

    def may(user: Any, address: Any, action: str) -> bool:
        return user == "ann"

    async with streamed(authenticate=user_of, authorize=may) as one:
        await (await root_of(one)).give("past", "a")
        assert (await one.site.http(f"{ROOT}/events")).status == 401
        assert (await one.site.http(f"{ROOT}/events", headers={"authorization": "bob"})).status == 403
        async with reading(one.site, f"{ROOT}/events", authorization="ann") as lines:
            assert (await lines.json())["runId"] == "past"


async def test_a_reader_that_leaves_ends_nothing_but_its_reading() -> None:
    async with streamed() as one:
        root = await root_of(one)
        async with reading(one.site, f"{ROOT}/events") as other:
            async with reading(one.site, f"{ROOT}/events") as lines:
                await root.begin("one", "a", "gate:go", "b")
                assert (await lines.json())["kind"] == "started"
                await no_listeners(root, 2)
            await no_listeners(root, 1)
            gates.setdefault("gate:go", asyncio.Event()).set()
            while (event := await other.json())["kind"] != "completed":
                pass

        assert event["body"] == "ab"
        await no_listeners(root)


@pytest.mark.slow
async def test_a_reader_that_does_not_read_is_waited_for_and_holds_up_nobody() -> None:
    async with streamed() as one:
        root = await root_of(one)
        async with reading(one.site, f"{ROOT}/events") as lines:
            await root.begin("one", "many")
            assert (await root.give("two", "quick")) == "completed"
            async with reading(one.site, f"{ROOT}/events?depth=children") as other:
                while (event := await other.json())["runId"] != "one" or event["kind"] != "completed":
                    pass

            heard: list[str] = []
            while (event := await lines.json())["runId"] != "one" or event["kind"] != "completed":
                if event["runId"] == "one" and event["kind"] == "chunk":
                    heard.append(event["body"].get("delta", ""))

        assert [text[:6] for text in heard if text] == [f"{number:06}" for number in range(1500)]


async def test_silence_is_told_now_and_then() -> None:
    async with streamed(timings=Timings(event_keepalive_interval=0.01)) as one:
        async with reading(one.site, f"{ROOT}/events", **SSE) as lines:
            assert (await lines.line()).startswith(":")
        async with reading(one.site, f"{ROOT}/events") as lines:
            assert not await lines.line()


async def test_streams_end_in_good_order_when_the_server_does() -> None:
    from sapwood.runs.http.events_http import OpenStreams

    async with streamed() as one:
        await (await root_of(one)).give("past", "a")
        async with reading(one.site, f"{ROOT}/events") as lines:
            for _ in range(5):
                await lines.json()
            one.world.node.shared(OpenStreams).end()
            try:
                await lines.line()
                raise AssertionError("more came")
            except EOFError:
                pass


async def test_a_child_that_does_a_run_has_events_of_its_own() -> None:
    async with streamed() as one:
        await (await root_of(one)).give("past", "a")
        async with reading(one.site, f"{ROOT}/sub/stream-leaf/past/events?depth=self") as lines:
            kinds = [(await lines.json())["kind"] for _ in range(5)]

        assert kinds == ["started", "chunk", "chunk", "chunk", "completed"]
        assert (await one.site.http(f"{ROOT}/sub/stream-leaf/nobody/events")).status == 404


@pytest.mark.promise("A-176", "A-177", "A-178", "A-179", "A-180")
async def test_helix_says_that_a_sub_agent_starts_speaks_and_ends() -> None:
    async with streamed() as one:
        root = await root_of(one)
        await root.give("good", "Summarizing...")
        await root.give("bad", "fail")
        async with reading(one.site, f"{ROOT}/events?format=helix") as lines:
            told = [await lines.json() for _ in range(5)]

        for event in told:
            assert isinstance(event.pop("timestamp"), int)
            assert isinstance(event.pop("cursor"), str)
        assert told == [
            {
                "type": "subagent_start",
                "subAgentId": "StreamRoot:r/StreamLeaf:good",
                "agentType": "StreamLeaf",
                "input": ["Summarizing..."],
                "parentSessionId": "StreamRoot:r",
            },
            {
                "type": "text_delta",
                "delta": "Summarizing...",
                "agentId": "StreamRoot:r/StreamLeaf:good",
                "agentType": "StreamLeaf",
            },
            {
                "type": "subagent_end",
                "subAgentId": "StreamRoot:r/StreamLeaf:good",
                "agentType": "StreamLeaf",
                "result": "Summarizing...",
                "success": True,
                "parentSessionId": "StreamRoot:r",
            },
            {
                "type": "subagent_start",
                "subAgentId": "StreamRoot:r/StreamLeaf:bad",
                "agentType": "StreamLeaf",
                "input": ["fail"],
                "parentSessionId": "StreamRoot:r",
            },
            {
                "type": "subagent_end",
                "subAgentId": "StreamRoot:r/StreamLeaf:bad",
                "agentType": "StreamLeaf",
                "success": False,
                "error": told[4]["error"],
                "parentSessionId": "StreamRoot:r",
            },
        ]
        assert told[4]["error"].startswith("Internal error (reference ")


class StreamHelper(ChatAgent[str]):
    """Helps."""

    model = ScriptedModel(text("I help"), each=True)


class StreamChat(ChatAgent[str]):
    """Talks, and has helpers."""

    model = ScriptedModel(call("helper", id="c1", message="help me"), text("done"), each=True)
    tools = (agent_tool(StreamHelper, name="helper"),)


def texts(told: Sequence[Any]) -> dict[tuple[str, str], str]:
    """Return what each agent said, by its id and class. How its text is cut into deltas depends on the machine."""
    found: dict[tuple[str, str], str] = {}
    for event in told:
        if event["type"] == "text_delta":
            agent = (event["agentId"], event["agentType"])
            found[agent] = found.get(agent, "") + event["delta"]
    return found


@pytest.mark.promise("A-177", "A-181", "A-201")
async def test_a_childs_events_ride_on_the_parents_stream_which_its_end_does_not_close() -> None:
    async with served(App(agents=[StreamChat])) as one:
        chat = await one.world.get_agent(StreamChat, "r")
        async with reading(one.site, "/agents/stream-chat/r/events?format=helix", **SSE) as lines:
            await chat.send("go")
            told: list[Any] = []
            while not told or told[-1]["type"] != "output":
                told.append((await lines.sse())[1])

        kinds = [event["type"] for event in told]
        assert kinds.index("subagent_start") < kinds.index("subagent_end") < kinds.index("output")
        child = next(event for event in told if event["type"] == "subagent_start")
        assert child["input"] == "help me"
        assert texts(told) == {
            ("StreamChat:r/StreamHelper:agent-tool%3Ac1", "StreamHelper"): "I help",
            ("StreamChat:r", "StreamChat"): "done",
        }
        tools = [event for event in told if event["type"].startswith("tool_")]
        assert [(event["type"], event["toolCallId"], event["toolName"]) for event in tools] == [
            ("tool_start", "c1", "helper"),
            ("tool_end", "c1", "helper"),
        ]
        assert tools[1]["result"] == "I help"


class StreamTwins(Agent):
    """Gives the same work to two chats, whose models use the same tool-call id."""

    async def go(self) -> list[str]:
        runs = [await self.run_agent(StreamChat, "go", run_id=name) for name in ("a", "b")]
        return [run.status for run in runs]


@pytest.mark.promise("A-177")
async def test_helix_ids_tell_helpers_of_siblings_apart_that_have_the_same_tool_call_id() -> None:
    async with served(App(agents=[StreamTwins])) as one:
        root = await one.world.get_agent(StreamTwins, "r")
        assert await root.go() == ["completed", "completed"]
        told: list[Any] = []
        async with reading(one.site, "/agents/stream-twins/r/events?format=helix") as lines:
            while sum(event["type"] == "subagent_end" for event in told) < 4:
                told.append(await lines.json())

        helper = "StreamHelper:agent-tool%3Ac1"
        starts = [event for event in told if event["type"] == "subagent_start"]
        assert {event["subAgentId"]: event["parentSessionId"] for event in starts} == {
            "StreamTwins:r/StreamChat:a": "StreamTwins:r",
            f"StreamTwins:r/StreamChat:a/{helper}": "StreamTwins:r/StreamChat:a",
            "StreamTwins:r/StreamChat:b": "StreamTwins:r",
            f"StreamTwins:r/StreamChat:b/{helper}": "StreamTwins:r/StreamChat:b",
        }
        said = {agent: text for (agent, type), text in texts(told).items() if type == "StreamHelper"}
        assert said == {f"StreamTwins:r/StreamChat:{name}/{helper}": "I help" for name in "ab"}


class StreamFailing(ChatAgent[str]):
    """Fails."""

    async def respond(self, turn: Any) -> Any:
        raise RuntimeError("Max steps exceeded")
        yield ""


class StreamTwo(ChatAgent[str]):
    """Has one helper that helps, and one that fails."""

    model = ScriptedModel(
        call("helper", id="c1", message="help me"), call("failing", id="c2", message="fail"), text("done"), each=True
    )
    tools = (agent_tool(StreamHelper, name="helper"), agent_tool(StreamFailing, name="failing"))


@pytest.mark.promise("A-166", "A-187", "A-188", "A-189", "A-205", "A-206")
@pytest.mark.slow
async def test_an_exported_conversation_records_calls_of_agents_as_helix_does_and_refers_to_the_runs() -> None:
    async with served(App(agents=[StreamTwo])) as one:
        chat = await one.world.get_agent(StreamTwo, "r")
        await chat.send("go")

        told = (await chat.conversation.export())["helix"]
        assistant = [message for message in told["messages"] if "toolCalls" in message]
        assert [message["toolCalls"][0] for message in assistant] == [
            {"id": "c1", "name": "subagent__StreamHelper", "arguments": {"message": "help me"}},
            {"id": "c2", "name": "subagent__StreamFailing", "arguments": {"message": "fail"}},
        ]
        results = [message for message in told["messages"] if message["role"] == "tool"]
        assert results == [
            {"role": "tool", "toolCallId": "c1", "toolName": "subagent__StreamHelper", "content": '"I help"'},
            {
                "role": "tool",
                "toolCallId": "c2",
                "toolName": "subagent__StreamFailing",
                "content": results[1]["content"],
            },
        ]
        assert "Max steps exceeded" in json.loads(results[1]["content"])["error"]
        references = told["subSessionRefs"]
        assert [(one["toolCallId"], one["agentType"], one["status"]) for one in references] == [
            ("c1", "StreamHelper", "completed"),
            ("c2", "StreamFailing", "failed"),
        ]
        assert references[0]["output"] == "I help"
        assert references[0]["subSessionId"] == "StreamTwo:r/StreamHelper:agent-tool%3Ac1"


LARGE = {
    "text": "x" * 5000,
    "items": [{"number": number} for number in range(50)],
    "deep": {"2": {"3": {"4": {"5": {"6": "bottom"}}}}},
}
"""An input that a preview cuts in every way: 5,000 characters, 50 items, 6 levels."""


class StreamReader(Agent):
    """Waits for its gate, if the test has one."""

    async def on_start(self) -> None:
        if "start" in gates:
            await gates["start"].wait()

    async def on_run(self, input: dict[str, Any]) -> int:
        return len(input["text"])


class StreamSender(Agent):
    """Starts runs with large inputs."""

    async def send(self, id: str) -> int:
        return (await self.run_agent(StreamReader, LARGE, run_id=id)).output

    async def on_before_sub_agent(self, request: Any, child: Any) -> Any:
        return PlainTextResponse("no", 403) if request.headers.get("x-guest") else None


SENDER = "/agents/stream-sender/r"


@pytest.mark.promise("A-176")
async def test_helix_starts_carry_the_whole_input_also_before_the_sub_agent_has_taken_it() -> None:
    gates.clear()
    async with served(App(agents=[StreamSender])) as one:
        root = await one.world.get_agent(StreamSender, "r")
        assert await root.send("past") == 5000
        gates["start"] = asyncio.Event()
        async with reading(one.site, f"{SENDER}/events?format=helix") as lines:
            past = await lines.json()
            while (await lines.json())["type"] != "subagent_end":
                pass
            sending = asyncio.create_task(root.send("now"))
            now = await lines.json()
        gates["start"].set()
        await sending
        async with reading(one.site, f"{SENDER}/sub/stream-reader/past/events?format=helix") as lines:
            own = await lines.json()

        assert [event["type"] for event in (past, now, own)] == ["subagent_start"] * 3
        assert past["input"] == now["input"] == own["input"] == LARGE


@pytest.mark.promise("B-30")
async def test_events_have_a_preview_of_the_input_and_the_whole_on_request_behind_the_same_gates() -> None:
    gates.clear()
    timings = replace(DEFAULTS, event_keepalive_interval=0.05)
    async with served(App(agents=[StreamSender]), timings=timings) as one:
        await (await one.world.get_agent(StreamSender, "r")).send("past")
        async with reading(one.site, f"{SENDER}/events") as lines:
            preview = (await lines.json())["body"]["input"]
        async with reading(one.site, f"{SENDER}/events?input=full") as lines:
            whole = (await lines.json())["body"]["input"]
        child = f"{SENDER}/sub/stream-reader/past/events?input=full"

        assert (len(preview["text"]), len(preview["items"])) == (200, 20)
        assert "bottom" not in json.dumps(preview)
        assert whole == LARGE
        assert (await one.site.http(child, headers={"x-guest": "1"})).status == 403
        assert (await one.site.http(f"{SENDER}/events?input=all")).status == 400
        async with reading(one.site, f"{SENDER}/events?input=full", x_guest="1") as lines:
            assert await lines.line() == ""  # only signs of life


class StreamGuard(ChatAgent[str]):
    """Has a helper that it shows to nobody."""

    model = ScriptedModel(call("helper", id="c1", message="help me"), text("done"), each=True)
    tools = (agent_tool(StreamHelper, name="helper"),)

    async def on_before_sub_agent(self, request: Any, child: Any) -> Any:
        return PlainTextResponse(f"not {child.name}", 403)


async def test_opening_a_run_is_asked_for_like_any_child() -> None:
    async with served(App(agents=[StreamGuard])) as one:
        await (await one.world.get_agent(StreamGuard, "r")).send("go")
        helper = "/agents/stream-guard/r/sub/stream-helper/agent-tool%3Ac1"

        assert (await one.site.http(f"{helper}/events")).text == "not agent-tool:c1"
        assert await one.site.refused(helper) == 4403
