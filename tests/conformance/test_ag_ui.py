"""AG-UI: what a page is told of a turn, when it comes back, when it is asked, and when it runs tools of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from tests.conformance.served import Served, served
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App, ChatAgent, agent_tool, tool
from sapwood.protocols import AgUi
from sapwood.testing import ScriptedModel, call, text


class PageTeller(ChatAgent):
    """Looks something up, and tells a story."""

    looked: ClassVar[list[str]] = []

    @tool
    async def look(self, what: str) -> str:
        """Look."""
        PageTeller.looked.append(what)
        return f"{what} seen"


class PageClerk(ChatAgent):
    """Pays when a person allows it."""

    paid: ClassVar[list[int]] = []
    model = ScriptedModel(text("one moment"), each=True)

    @tool(requires_approval=True)
    async def pay(self, euros: int) -> str:
        """Pay."""
        PageClerk.paid.append(euros)
        return f"{euros} paid"


class PageBuyer(ChatAgent):
    """Has a clerk pay."""

    tools = (agent_tool(PageClerk, name="pay"),)


class PageOffice(ChatAgent):
    """Has a buyer buy."""

    tools = (agent_tool(PageBuyer, name="buy"),)


class Page:
    """A client that keeps the events of one run, and checks their order as the official client does."""

    def __init__(self, one: Served, path: str, said: Any, **headers: str) -> None:
        self.frames: list[Any] = []
        self.ids: list[str] = []
        self.status = 0
        self.text = ""
        self.is_over = False
        self._one, self._path, self._said, self._headers = one, path, said, headers
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._one.site.port)
        body = json.dumps(self._said).encode()
        headers = {
            "host": f"127.0.0.1:{self._one.site.port}",
            "connection": "close",
            "accept": "text/event-stream",
            "content-length": str(len(body)),
            **self._headers,
        }
        lines = [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([f"POST {self._path} HTTP/1.1", *lines, "", ""]).encode() + body)
        try:
            self.status = int((await reader.readline()).split()[1])
            while line := await reader.readline():
                self.text += line.decode()
                if line.startswith(b"data: "):
                    self.frames.append(json.loads(line[6:]))
                elif line.startswith(b"id: "):
                    self.ids.append(line[4:].decode().strip())
        except (ConnectionError, IndexError):
            pass
        finally:
            self.is_over = True
            writer.close()

    async def over(self) -> list[Any]:
        await until(lambda: self.is_over)
        return self.frames

    async def stop(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})

    def words(self) -> str:
        return words_of(self.frames)


def words_of(frames: Sequence[Any]) -> str:
    """Return what the agent itself has said, as a page shows it."""
    said: dict[str, str] = {}
    for frame in frames:
        if frame["type"] == "MESSAGES_SNAPSHOT":
            told = frame["messages"]
            said = {
                one["id"]: one["content"]
                for one in told
                if one["role"] == "assistant" and "content" in one and "subagentRunId" not in one
            }
        elif frame["type"] == "TEXT_MESSAGE_CONTENT" and "subagentRunId" not in frame:
            said[frame["messageId"]] = said.get(frame["messageId"], "") + frame["delta"]
    return " ".join(said.values())


def types_of(frames: Sequence[Any]) -> list[str]:
    """Return the types of events, those that follow each other once."""
    found: list[str] = []
    for frame in frames:
        if not found or found[-1] != frame["type"]:
            found.append(frame["type"])
    return found


def said(run: str, *messages: Any, thread: str = "a", **more: Any) -> dict[str, Any]:
    """Return what a page sends with a run."""
    return {
        "threadId": thread,
        "runId": run,
        "protocolVersion": "1.0",
        "tools": [],
        "context": [],
        "forwardedProps": {},
        "state": {},
        "messages": list(messages),
        **more,
    }


def user(id: str, content: Any) -> dict[str, Any]:
    return {"id": id, "role": "user", "content": content}


@asynccontextmanager
async def paged(*agents: type[ChatAgent[Any]], **settings: Any) -> AsyncGenerator[Served, None]:
    async with asyncio.timeout(patience()), served(App(agents=[*agents], protocols=[AgUi()]), **settings) as one:
        yield one


TELLER = "/agents/page-teller/a/ag-ui"
OFFICE = "/agents/page-office/a/ag-ui"


async def test_a_run_streams_text_and_tools_and_is_told_again_under_its_id() -> None:
    PageTeller.looked = []
    PageTeller.model = ScriptedModel(call("look", what="tree", id="l1"), text("there was a tree"))
    async with paged(PageTeller) as one:
        first = Page(one, TELLER, said("r1", user("u1", "tell")))
        frames = await first.over()

        assert types_of(frames) == [
            "RUN_STARTED",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ]
        assert frames[-1] == {
            "type": "RUN_FINISHED",
            "threadId": "a",
            "runId": "r1",
            "outcome": {"type": "success"},
            "result": "there was a tree",
        }
        assert first.words() == "there was a tree"

        again = Page(one, TELLER, said("r1", user("u1", "tell")))
        assert await again.over() == frames
        await one.world.crash()
        later = Page(one, TELLER, said("r1", user("u1", "tell")))
        assert await later.over() == frames
        assert PageTeller.looked == ["tree"]


async def test_what_a_page_shows_has_the_ids_of_what_is_stored() -> None:
    PageTeller.looked = []
    PageTeller.model = ScriptedModel(call("look", what="tree", id="l1"), text("there was a tree"), text("and a house"))
    async with paged(PageTeller) as one:
        first = await Page(one, TELLER, said("r1", user("u1", "tell"))).over()
        text_id = next(frame["messageId"] for frame in first if frame["type"] == "TEXT_MESSAGE_START")
        fresh = await Page(one, f"{TELLER}/connect", said("c1")).over()
        (snapshot,) = [frame for frame in fresh if frame["type"] == "MESSAGES_SNAPSHOT"]
        assert [message["id"] for message in snapshot["messages"]] == ["u1", "l1", "result-l1", text_id]

        second = await Page(one, TELLER, said("r2", *snapshot["messages"], user("u2", "more"))).over()
        assert "MESSAGES_SNAPSHOT" not in types_of(second)
        other = await Page(one, TELLER, said("r2", user("u1", "tell"), user("u2", "more"))).over()
        assert types_of(other)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        assert words_of(other) == "there was a tree and a house"


async def test_words_that_a_crash_has_cut_are_taken_back() -> None:
    PageTeller.model = ScriptedModel(text("once upon a time", gate=asyncio.Event()), text("there was a tree"))
    async with paged(PageTeller) as one:
        first = Page(one, TELLER, said("r1", user("u1", "tell")))
        await until(lambda: first.words() == "once")
        (shown,) = {frame["messageId"] for frame in first.frames if frame["type"] == "TEXT_MESSAGE_CONTENT"}
        last = first.ids[-1]
        await one.world.crash()
        half = {"id": shown, "role": "assistant", "content": "once"}
        again = Page(one, TELLER, said("r1", user("u1", "tell"), half))
        resumed = Page(one, TELLER, said("r1", user("u1", "tell"), half), **{"last-event-id": last})

        assert types_of(await again.over())[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
        assert again.words() == "there was a tree"
        rest = await resumed.over()
        assert "RUN_STARTED" not in types_of(rest)
        assert words_of([*first.frames, *rest]) == "there was a tree"
        assert rest[-1]["type"] == "RUN_FINISHED"


async def test_a_stream_goes_on_after_the_last_event_of_a_page() -> None:
    PageTeller.model = ScriptedModel(text("once upon a time there was a tree", delay=0.01))
    async with paged(PageTeller) as one:
        first = Page(one, TELLER, said("r1", user("u1", "tell")))
        frames = await first.over()
        at = first.ids[2]
        rest = Page(one, TELLER, said("r1", user("u1", "tell")), **{"last-event-id": at})
        told = await rest.over()
        whole = first.text.split(f"id: {at}\n")[1].split("\n\n", 1)[1]
        assert [json.loads(line[6:]) for line in whole.splitlines() if line.startswith("data: ")] == told
        assert told != frames


def deep() -> None:
    PageClerk.paid = []
    PageOffice.model = ScriptedModel(call("buy", message="buy bread", id="o1"), text("bought"))
    PageBuyer.model = ScriptedModel(call("pay", message="pay 3", id="b1"), text("the clerk paid"))
    PageClerk.model = ScriptedModel(call("pay", euros=3, id="c1"), text("it is paid"))


async def test_an_approval_three_levels_down_is_an_interrupt_that_is_answered_after_a_crash() -> None:
    deep()
    async with paged(PageOffice) as one:
        first = await Page(one, OFFICE, said("r1", user("u1", "buy"))).over()
        started = [frame for frame in first if frame["type"] == "SUBAGENT_STARTED"]
        assert [one["name"] for one in started] == ["PageBuyer", "PageClerk"]
        buyer, clerk = (one["subagentRunId"] for one in started)
        assert started[1]["parentSubagentRunId"] == buyer
        assert (started[0]["parentToolCallId"], started[1]["parentToolCallId"]) == ("o1", f"{buyer}/b1")
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        assert (interrupt["subagentRunId"], interrupt["toolCallId"]) == (clerk, f"{clerk}/c1")
        assert [one["subagentRunId"] for one in first if one["type"] == "SUBAGENT_FINISHED"] == [clerk, buyer]

        await one.world.crash()
        fresh = await Page(one, f"{OFFICE}/connect", said("x1")).over()
        assert fresh[-1]["outcome"]["interrupts"] == [interrupt]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        second = await Page(one, OFFICE, said("r2", user("u1", "buy"), resume=resume)).over()

        assert second[-1]["outcome"] == {"type": "success"}
        assert words_of(second) == "bought"
        again = [one["subagentRunId"] for one in second if one["type"] == "SUBAGENT_STARTED"]
        assert again == [buyer, clerk]
        ends = [(one["subagentRunId"], one.get("outcome")) for one in second if one["type"] == "SUBAGENT_FINISHED"]
        assert ends == [(clerk, None), (buyer, None)]
        assert PageClerk.paid == [3]

        repeated = await Page(one, OFFICE, said("r2", user("u1", "buy"), resume=resume)).over()
        assert (repeated[-1], PageClerk.paid) == (second[-1], [3])
        other = Page(one, OFFICE, said("r3", user("u1", "buy"), resume=resume))
        await other.over()
        assert (other.status, PageClerk.paid) == (409, [3])
