"""AG-UI: what a page is told of a turn, when it comes back, when it is asked, and when it runs tools of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from tests.conformance.served import Served, served
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Refused, agent_tool, tool
from sapwood.auth import ANY_CLIENT, User
from sapwood.protocols import AgUi
from sapwood.testing import ScriptedModel, call, fails, text


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

    @tool(requires_approval=True, approvers=ANY_CLIENT)
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
        self._places: dict[str, int] = {}
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
                    self._places[self.ids[-1]] = len(self.frames) + 1
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

    def at(self, id: str) -> int:
        """Return how many events there were when the one with this id had come."""
        return self._places[id]

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


@pytest.mark.promise("B-24")
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
        assert not [one for one in second if one["type"].startswith("TOOL_CALL_START")]  # the page has the calls
        whole = await Page(one, OFFICE, said("r1", user("u1", "buy"))).over()
        calls = [one["toolCallId"] for one in whole if one["type"] == "TOOL_CALL_START"]
        assert calls == ["o1", f"{buyer}/b1", f"{clerk}/c1"]
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


REFUSED: list[tuple[Any, str]] = [
    (said("r1", user("u1", "hi"), thread="b"), "`threadId` must be 'a'"),
    (said("", user("u1", "hi")), "`runId` must have 1 to 200 characters"),
    (said("r" * 201, user("u1", "hi")), "`runId` must have 1 to 200 characters"),
    (said("r1"), "with the role `user`"),
    (said("r1", user("u1", "hi"), color="red"), "unknown field `color`"),
    (said("r1", {**user("u1", "hi"), "encryptedValue": "x"}), "`messages[0].encryptedValue` is not supported"),
    (said("r1", {"id": "s1", "role": "system", "content": "obey"}, user("u1", "hi")), "cannot send instructions"),
    (said("r1", {"role": "user", "content": "hi"}), "`messages[0]` must have an `id`"),
    (said("r1", {"id": "t1", "role": "tool", "content": "x"}), "must have a `toolCallId`"),
    (said("r1", user("u1", 3)), "`messages[0].content` must be a text"),
    (said("r1", user("u1", [{"type": "image", "source": {"type": "file", "value": "f"}}])), "must be data or url"),
    (said("r1", user("u1", [{"type": "song"}])), "`messages[0].content[0]` must be a part of type"),
    (said("r1", user("u1", "hi"), tools=[{"name": "x", "strict": True}]), "unknown field `strict`"),
    (said("r1", user("u1", "hi"), resume=[{"interruptId": "i", "status": "maybe"}]), "`resume[0].status` must be"),
    ([], "Expected `object`"),
]


async def test_a_body_that_is_not_supported_is_refused_by_the_name_of_its_field() -> None:
    PageTeller.model = ScriptedModel(text("well"), each=True)
    async with paged(PageTeller) as one:
        for body, why in REFUSED:
            answer = await one.site.http(TELLER, method="POST", body=json.dumps(body).encode())
            assert (answer.status, answer.headers["content-type"]) == (400, "application/json"), body
            assert why in answer.json()["error"], (why, answer.json())
        assert (await one.site.http(TELLER, method="POST", body=b"{")).status == 400
        assert (await one.site.http(TELLER, method="POST", body=b"[" * 100_000)).status == 400
        assert (await one.site.http(TELLER)).status == 405
        binary = {"accept": "application/vnd.ag-ui.event+proto"}
        body = json.dumps(said("r1", user("u1", "hi"))).encode()
        assert (await one.site.http(TELLER, method="POST", body=body, headers=binary)).status == 406
        unknown = await one.site.http(TELLER, method="POST", body=body, headers={"last-event-id": "x"})
        assert unknown.status == 400
        agent = await one.world.get_agent(PageTeller, "a")
        assert await agent.conversation.messages() == []


async def test_the_thread_names_the_root_at_a_path_of_the_server() -> None:
    PageTeller.model = ScriptedModel(text("well"), each=True)
    async with paged(PageTeller) as one:
        for thread in ("a", "b"):
            frames = await Page(one, "/ag-ui/page-teller", said("r1", user("u1", "hi"), thread=thread)).over()
            assert (words_of(frames), frames[0]["threadId"]) == ("well", thread)
        fresh = await Page(one, "/ag-ui/page-teller/connect", said("c1", thread="b")).over()
        assert fresh[1]["messages"][0]["id"] == "u1"
        for path, status in (("/ag-ui/nobody", 404), ("/ag-ui/page-teller/else", 404), ("/ag-ui", 404)):
            answer = await one.site.http(path, method="POST", body=json.dumps(said("r1")).encode())
            assert answer.status == status
        assert (await one.site.http("/ag-ui/page-teller", method="POST", body=b"{}")).status == 400


class PageAsker(ChatAgent):
    """Has the page tell the time."""


ASKER = "/agents/page-asker/a/ag-ui"
TIME = [{"name": "get_time", "description": "The time", "parameters": {"type": "object", "properties": {}}}]


async def test_a_tool_of_the_page_is_answered_by_a_message_and_never_asked_for_again() -> None:
    PageAsker.model = ScriptedModel(call("get_time", id="t1"), text("it is noon"))
    async with paged(PageAsker) as one:
        first = await Page(one, ASKER, said("r1", user("u1", "time"), tools=TIME)).over()
        assert first[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["t1"]}
        await one.world.crash()
        fresh = await Page(one, f"{ASKER}/connect", said("c1")).over()
        assert fresh[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["t1"]}

        asked = {"id": "t1", "role": "assistant", "toolCalls": []}
        answer = {"id": "x1", "role": "tool", "toolCallId": "t1", "content": "12:00"}
        second = await Page(one, ASKER, said("r2", user("u1", "time"), asked, answer, tools=TIME)).over()
        assert not {"TOOL_CALL_START", "TOOL_CALL_RESULT", "MESSAGES_SNAPSHOT"} & {*types_of(second)}
        assert (words_of(second), second[-1]["outcome"]) == ("it is noon", {"type": "success"})
        for path, run in ((ASKER, "r1"), (ASKER, "r2"), (f"{ASKER}/connect", "c2")):
            again = await Page(one, path, said(run, user("u1", "time"), tools=TIME)).over()
            results = [
                *(one for one in again if one["type"] == "TOOL_CALL_RESULT"),
                *(
                    m
                    for one in again
                    if one["type"] == "MESSAGES_SNAPSHOT"
                    for m in one["messages"]
                    if m["role"] == "tool"
                ),
            ]
            assert [one["content"] for one in results] == ["12:00"]
            assert again[-1]["outcome"] == {"type": "success"}
            told = types_of(again)
            if "TOOL_CALL_RESULT" in told:
                assert told.index("TOOL_CALL_RESULT") < told.index("TEXT_MESSAGE_START")


class PageKeeper(ChatAgent[str, dict[str, Any]]):
    """Has a state, and reports what it does."""

    initial_state: ClassVar[dict[str, Any]] = {"done": [], "a/b": 1}

    @tool
    async def keep(self, what: str) -> str:
        """Keep."""
        self.set_state({"done": [*self.state["done"], what], "last": what})
        return "kept"


async def test_a_change_of_the_state_is_a_patch() -> None:
    PageKeeper.model = ScriptedModel(call("keep", what="x"), text("done"))
    async with paged(PageKeeper) as one:
        url = "/agents/page-keeper/a/ag-ui"
        frames = await Page(one, url, said("r1", user("u1", "keep"))).over()
        assert [one["snapshot"] for one in frames if one["type"] == "STATE_SNAPSHOT"] == [{"done": [], "a/b": 1}]
        (delta,) = [one["delta"] for one in frames if one["type"] == "STATE_DELTA"]
        assert delta == [
            {"op": "remove", "path": "/a~1b"},
            {"op": "add", "path": "/done/-", "value": "x"},
            {"op": "add", "path": "/last", "value": "x"},
        ]
        state = {"done": ["x"], "last": "x"}
        again = await Page(one, f"{url}/connect", said("c1", state=state)).over()
        assert "STATE_SNAPSHOT" not in types_of(again)


class PageWorker(Agent):
    """Reports its progress."""

    async def on_run(self, input: str) -> str:
        self.report_progress(0.5, "half")
        self.report_progress(0.7, milestone="reached")
        return input


class PageLead(ChatAgent):
    """Has a worker work."""

    tools = (agent_tool(PageWorker, name="work"),)


async def test_progress_and_milestones_are_activities_of_the_sub_agent() -> None:
    PageLead.model = ScriptedModel(call("work", message="x"), text("done"))
    async with paged(PageLead) as one:
        frames = await Page(one, "/agents/page-lead/a/ag-ui", said("r1", user("u1", "work"))).over()
        (started,) = [one for one in frames if one["type"] == "SUBAGENT_STARTED"]
        found = [one for one in frames if one["type"] == "ACTIVITY_SNAPSHOT"]
        kinds = {one["activityType"] for one in found}
        assert "sapwood.milestone" in kinds
        assert {one["subagentRunId"] for one in found} == {started["subagentRunId"]}


async def test_a_page_that_leaves_cancels_nothing_and_one_that_says_so_does() -> None:
    gate = asyncio.Event()
    PageTeller.model = ScriptedModel(text("once upon", gate=gate), text("again and", gate=asyncio.Event()))
    async with paged(PageTeller) as one:
        first = Page(one, TELLER, said("r1", user("u1", "tell")))
        await until(lambda: first.words() == "once")
        await first.stop()
        gate.set()
        assert words_of(await Page(one, TELLER, said("r1", user("u1", "tell"))).over()) == "once upon"

        second = Page(one, TELLER, said("r2", user("u2", "tell")))
        await until(lambda: "again" in second.words())
        body = json.dumps({"threadId": "a", "runId": "r2"}).encode()
        assert (await one.site.http(f"{TELLER}/cancel", method="POST", body=body)).json() == {"cancelled": True}
        assert (await second.over())[-1]["outcome"] == {"type": "cancelled"}
        assert (await one.site.http(f"{TELLER}/cancel", method="POST", body=body)).json() == {"cancelled": False}
        old = said("r2", user("u2", "tell"))
        del old["protocolVersion"]
        assert "outcome" not in (await Page(one, TELLER, old).over())[-1]


async def test_a_turn_that_fails_ends_with_an_error_and_again_with_the_same() -> None:
    PageTeller.model = ScriptedModel(fails(Refused("The library is closed.")))
    async with paged(PageTeller) as one:
        frames = await Page(one, TELLER, said("r1", user("u1", "tell"))).over()
        assert types_of(frames) == ["RUN_STARTED", "RUN_ERROR"]
        assert (await Page(one, TELLER, said("r1", user("u1", "tell"))).over())[-1] == frames[-1]


async def test_two_tabs_hear_the_same_and_a_second_run_with_nothing_new_joins_the_first() -> None:
    gate = asyncio.Event()
    PageTeller.model = ScriptedModel(text("once upon a time", gate=gate))
    async with paged(PageTeller) as one:
        first = Page(one, TELLER, said("r1", user("u1", "tell")))
        await until(lambda: first.words() == "once")
        others = [Page(one, TELLER, said(run, user("u1", "tell"))) for run in ("r1", "r2")]
        watching = Page(one, f"{TELLER}/connect", said("c1"))
        await until(lambda: all("once" in page.words() for page in (*others, watching)))
        gate.set()
        for page in (first, *others, watching):
            await page.over()
            assert page.words() == "once upon a time"
        assert len(PageTeller.model.asked) == 1
        assert words_of(await Page(one, TELLER, said("r2", user("u1", "tell"))).over()) == "once upon a time"


async def test_a_new_run_for_an_answered_message_answers_it_again() -> None:
    PageTeller.model = ScriptedModel(text("one"), text("two"))
    async with paged(PageTeller) as one:
        assert words_of(await Page(one, TELLER, said("r1", user("u1", "tell"))).over()) == "one"
        assert words_of(await Page(one, TELLER, said("r2", user("u1", "tell"))).over()) == "two"
        fresh = await Page(one, f"{TELLER}/connect", said("c1")).over()
        assert words_of(fresh) == "two"


async def test_a_cancelled_interrupt_is_a_refusal_and_a_changed_one_is_not_open() -> None:
    deep()
    async with paged(PageOffice) as one:
        first = await Page(one, OFFICE, said("r1", user("u1", "buy"))).over()
        (interrupt,) = first[-1]["outcome"]["interrupts"]
        entry = {"interruptId": interrupt["id"], "status": "cancelled"}
        for changed in (
            {**entry, "interruptId": interrupt["id"][:-1] + "x"},
            {**entry, "interruptId": "nothing"},
        ):
            page = Page(one, OFFICE, said("r2", user("u1", "buy"), resume=[changed]))
            await page.over()
            assert page.status == 409
        wrong = {**entry, "status": "resolved", "payload": {"approved": "yes"}}
        refused = Page(one, OFFICE, said("r2", user("u1", "buy"), resume=[wrong]))
        await refused.over()
        assert refused.status == 400
        second = await Page(one, OFFICE, said("r2", user("u1", "buy"), resume=[entry])).over()
        assert (second[-1]["outcome"], PageClerk.paid) == ({"type": "success"}, [])


def who(request: Any) -> User | None:
    return User(request.headers["who"]) if "who" in request.headers else None


async def test_another_user_neither_sees_nor_answers_nor_cancels() -> None:
    deep()

    def may(user: Any, address: Any, action: str) -> bool:
        return user.id == "ann"

    app = App(agents=[PageOffice], protocols=[AgUi()], authenticate=who, authorize=may)
    async with asyncio.timeout(patience()), served(app) as one:
        ann = {"who": "ann"}
        await Page(one, OFFICE, said("r1", user("u1", "buy")), **ann).over()
        body = json.dumps(said("r1", user("u1", "buy"))).encode()
        cancel = json.dumps({"threadId": "a", "runId": "r1"}).encode()
        for headers, status in (({}, 401), ({"who": "eve"}, 403)):
            for path, sent in ((OFFICE, body), (f"{OFFICE}/connect", body), (f"{OFFICE}/cancel", cancel)):
                assert (await one.site.http(path, method="POST", body=sent, headers=headers)).status == status
            direct = await one.site.http("/ag-ui/page-office", method="POST", body=body, headers=headers)
            assert direct.status == status
