"""AG-UI: interrupts of several agents at once, answers that a crash cuts, and words that are taken back."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from tests.conformance.served import Served, served
from tests.conformance.test_ag_ui import Page, paged, said, types_of, user, words_of
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import App, ChatAgent, Question, agent_tool, tool
from sapwood.auth import ANY_CLIENT
from sapwood.chat.store.turn_names import TURN_NAMES
from sapwood.protocols import AgUi
from sapwood.protocols.ag_ui_messages import Messages
from sapwood.runs.http.events_http import OpenStreams
from sapwood.testing import ScriptedModel, call, calls, text


def verify(frames: Sequence[Any], *, continues: bool = False) -> None:
    """Check the order of events as the official client does."""
    opened: set[tuple[str, str]] = set()
    agents: set[str] = set()
    closed: set[str] = set()
    ended = ("RUN_FINISHED", "RUN_ERROR")
    assert continues or frames[0]["type"] == "RUN_STARTED"
    assert [frame["type"] for frame in frames if frame["type"] in ended] == [frames[-1]["type"]]
    for frame in frames:
        kind, _, what = frame["type"].rpartition("_")
        if what == "STARTED" and kind == "SUBAGENT":
            id = frame["subagentRunId"]
            assert id not in agents | closed
            assert frame.get("parentSubagentRunId") in {None, *agents, *closed}
            agents.add(id)
        elif kind == "SUBAGENT":
            agents.remove(frame["subagentRunId"])
            closed.add(frame["subagentRunId"])
        elif kind in ("TEXT_MESSAGE", "REASONING_MESSAGE", "TOOL_CALL"):
            key = (kind, frame["toolCallId"] if kind == "TOOL_CALL" else frame["messageId"])
            if what == "START":
                assert key not in opened
                opened.add(key)
            elif what == "END":
                opened.remove(key)
            elif what != "RESULT":
                assert continues or key in opened
    assert not opened
    assert not agents
    answered = Counter(frame["toolCallId"] for frame in frames if frame["type"] == "TOOL_CALL_RESULT")
    assert set(answered.values()) <= {1}


def interrupts(frames: Sequence[Any]) -> list[Any]:
    return frames[-1]["outcome"].get("interrupts", [])


def yes(*asked: Any) -> list[Any]:
    return [{"interruptId": one["id"], "status": "resolved", "payload": {"approved": True}} for one in asked]


class WaitingPayer(ChatAgent):
    """Pays when a person allows it."""

    paid: ClassVar[list[int]] = []
    gate: ClassVar[asyncio.Event | None] = None
    """What an answer waits for, once the run that brings it is stored."""
    reached: ClassVar[asyncio.Event]

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        WaitingPayer.paid.append(euros)
        return f"{euros} paid"

    async def may_answer(self, user: Any, question: Question) -> bool:
        above = self._actor.parent
        if WaitingPayer.gate is not None and above is not None and above.database.has(TURN_NAMES):
            WaitingPayer.reached.set()
            await WaitingPayer.gate.wait()
        return True


class WaitingBoss(ChatAgent):
    """Has several payers pay."""

    tools = (agent_tool(WaitingPayer, name="payer"),)


BOSS = "/agents/waiting-boss/a/ag-ui"
PAYER = "/agents/waiting-payer/a/ag-ui"


def two() -> None:
    WaitingPayer.paid, WaitingPayer.gate = [], None
    both = calls(call("payer", message="3", id="b1"), call("payer", message="4", id="b2"))
    WaitingBoss.model = ScriptedModel(both, text("all paid"))
    WaitingPayer.model = ScriptedModel(call("pay", euros=3, id="p1"), text("it is paid"), each=True)


async def test_two_helpers_ask_at_once_and_are_answered_one_after_the_other() -> None:
    two()
    async with paged(WaitingBoss) as one:
        first = await Page(one, BOSS, said("r1", user("u1", "pay"))).over()
        verify(first)
        asked = interrupts(first)
        assert len({one["id"] for one in asked}) == len({one["toolCallId"] for one in asked}) == 2

        second = await Page(one, BOSS, said("r2", user("u1", "pay"), resume=yes(asked[0]))).over()
        verify(second)
        assert [one["id"] for one in interrupts(second)] == [asked[1]["id"]]
        await one.world.crash()
        fresh = await Page(one, f"{BOSS}/connect", said("c1")).over()
        verify(fresh)
        assert [one["id"] for one in interrupts(fresh)] == [asked[1]["id"]]
        third = await Page(one, BOSS, said("r3", user("u1", "pay"), resume=yes(asked[1]))).over()
        verify(third)
        assert (third[-1]["outcome"], words_of(third)) == ({"type": "success"}, "all paid")
        assert WaitingPayer.paid == [3, 3]
        for run in ("r1", "r2", "r3"):
            again = await Page(one, BOSS, said(run, user("u1", "pay"))).over()
            verify(again)
            assert again[-1]["outcome"] == {"type": "success"}


async def test_two_helpers_are_answered_together() -> None:
    two()
    async with paged(WaitingBoss) as one:
        asked = interrupts(await Page(one, BOSS, said("r1", user("u1", "pay"))).over())
        second = await Page(one, BOSS, said("r2", user("u1", "pay"), resume=yes(*asked))).over()
        verify(second)
        while interrupts(second):  # one may be told before the other goes on
            second = await Page(one, BOSS, said("r9", user("u1", "pay"), resume=yes(*interrupts(second)))).over()
        assert words_of(second) == "all paid"
        assert WaitingPayer.paid == [3, 3]


async def test_an_answer_that_a_crash_has_cut_is_given_again_by_the_same_run() -> None:
    two()
    async with paged(WaitingBoss) as one:
        asked = interrupts(await Page(one, BOSS, said("r1", user("u1", "pay"))).over())
        WaitingPayer.gate, WaitingPayer.reached = asyncio.Event(), asyncio.Event()
        resume = said("r2", user("u1", "pay"), resume=yes(*asked))
        cut = Page(one, BOSS, resume)
        await until(WaitingPayer.reached.is_set)
        await one.world.crash()
        await cut.over()
        WaitingPayer.gate = None
        again = await Page(one, BOSS, resume).over()
        verify(again)
        assert (words_of(again), WaitingPayer.paid) == ("all paid", [3, 3])


async def test_a_question_of_the_agent_itself_is_told_to_every_page_and_again_after_a_crash() -> None:
    WaitingPayer.paid, WaitingPayer.gate = [], None
    WaitingPayer.model = ScriptedModel(call("pay", euros=5, id="p1"), text("it is paid"))
    async with paged(WaitingPayer) as one:
        first = await Page(one, PAYER, said("r1", user("u1", "pay"))).over()
        verify(first)
        await one.world.crash()
        for path, run in ((PAYER, "r1"), (f"{PAYER}/connect", "c1"), (PAYER, "r7")):
            again = await Page(one, path, said(run, user("u1", "pay"))).over()
            verify(again)
            assert interrupts(again) == interrupts(first)
            assert "TOOL_CALL_START" in types_of(again)
        second = await Page(one, PAYER, said("r2", user("u1", "pay"), resume=yes(*interrupts(first)))).over()
        verify(second)
        assert (words_of(second), WaitingPayer.paid) == ("it is paid", [5])
        for run in ("r1", "r2"):
            again = await Page(one, PAYER, said(run, user("u1", "pay"))).over()
            verify(again)
            assert (words_of(again), again[-1]) == ("it is paid", {**second[-1], "runId": run})


async def test_a_new_message_ends_an_interrupt() -> None:
    WaitingPayer.paid, WaitingPayer.gate = [], None
    WaitingPayer.model = ScriptedModel(call("pay", euros=5, id="p1"), text("never mind"))
    async with paged(WaitingPayer) as one:
        first = await Page(one, PAYER, said("r1", user("u1", "pay"))).over()
        second = await Page(one, PAYER, said("r2", user("u1", "pay"), user("u2", "no, wait"))).over()
        verify(second)
        assert (words_of(second), WaitingPayer.paid) == ("never mind", [])
        late = Page(one, PAYER, said("r3", user("u1", "pay"), resume=yes(*interrupts(first))))
        await late.over()
        assert late.status == 409


class WaitingTeller(ChatAgent):
    """Tells a story."""


class WaitingReader(ChatAgent):
    """Has a teller tell."""

    tools = (agent_tool(WaitingTeller, name="tell"),)


async def test_words_of_a_silent_model_are_taken_back_while_a_page_listens() -> None:
    stuck = text("once upon a time", gate=asyncio.Event())
    WaitingTeller.model = ScriptedModel(stuck, text("there was a tree"))
    async with paged(WaitingTeller) as one:
        page = Page(one, "/agents/waiting-teller/a/ag-ui", said("r1", user("u1", "tell")))
        await until(lambda: page.words() == "once")
        while len(WaitingTeller.model.asked) == 1:
            await one.world.clock.advance(601)
            await asyncio.sleep(0.01)
        frames = await page.over()
        verify(frames)
        assert "MESSAGES_SNAPSHOT" in types_of(frames)
        assert page.words() == "there was a tree"
        for id in page.ids[:-1]:  # whatever a page has seen last, also that the words were taken back
            rest = Page(one, "/agents/waiting-teller/a/ag-ui", said("r1", user("u1", "tell")), **{"last-event-id": id})
            whole = [*frames[: page.at(id)], *await rest.over()]
            verify(whole)
            assert words_of(whole) == "there was a tree"


async def test_words_of_a_helper_that_a_crash_has_cut_are_closed_and_said_again() -> None:
    WaitingReader.model = ScriptedModel(call("tell", message="tell"), text("told"))
    WaitingTeller.model = ScriptedModel(text("once upon a time", gate=asyncio.Event()), text("there was a tree"))
    async with paged(WaitingReader) as one:
        url = "/agents/waiting-reader/a/ag-ui"
        page = Page(one, url, said("r1", user("u1", "tell")))
        await until(lambda: any("subagentRunId" in frame and "delta" in frame for frame in page.frames))
        last = page.ids[-1]
        await one.world.crash()
        again = await Page(one, url, said("r1", user("u1", "tell"))).over()
        verify(again)
        texts: dict[str, str] = {}
        for frame in again:
            if frame["type"] == "TEXT_MESSAGE_CONTENT" and "subagentRunId" in frame:
                texts[frame["messageId"]] = texts.get(frame["messageId"], "") + frame["delta"]
        assert list(texts.values()) == ["once", "there was a tree"]
        rest = await Page(one, url, said("r1", user("u1", "tell")), **{"last-event-id": last}).over()
        verify([*page.frames, *rest], continues=True)


class WaitingGate(WaitingBoss):
    """Lets only its staff go to its payers."""

    async def on_before_sub_agent(self, request: HTTPConnection, child: Any) -> Response | None:
        return PlainTextResponse("Not you", 403) if "x-staff" not in request.headers else None


async def test_a_page_that_a_gate_keeps_out_neither_sees_nor_answers_what_is_asked_below() -> None:
    two()
    WaitingGate.model = ScriptedModel(call("payer", message="3", id="b1"), text("all paid"))
    async with asyncio.timeout(patience()), served(App(agents=[WaitingGate], protocols=[AgUi()])) as one:
        url, staff = "/agents/waiting-gate/a/ag-ui", {"x-staff": "yes"}
        asked = interrupts(await Page(one, url, said("r1", user("u1", "pay")), **staff).over())
        guest = Page(one, url, said("r1", user("u1", "pay")))
        refused = Page(one, url, said("r2", user("u1", "pay"), resume=yes(*asked)))
        await refused.over()
        assert (refused.status, WaitingPayer.paid) == (409, [])
        await Page(one, url, said("r3", user("u1", "pay"), resume=yes(*asked)), **staff).over()
        frames = await guest.over()
        verify(frames)
        assert not [frame for frame in frames if "subagentRunId" in frame or frame["type"].startswith("SUBAGENT")]
        assert (words_of(frames), WaitingPayer.paid) == ("all paid", [3])


def shown(frames: Sequence[Any]) -> dict[str, Any]:
    """Return the messages that a page makes of the events of its runs."""
    messages = Messages()
    found: dict[str, Any] = {}
    for frame in frames:
        if frame["type"] == "MESSAGES_SNAPSHOT":
            found = {one["id"]: one for one in frame["messages"]}
            messages = Messages()
            messages.know(frame["messages"])
        messages.take(frame)
    return found | {one["id"]: one for one in messages.all()}


async def test_a_page_that_comes_at_any_moment_ends_up_with_the_same() -> None:
    WaitingReader.model = ScriptedModel(call("tell", message="tell"), text("that was all there was", delay=0.01))
    WaitingTeller.model = ScriptedModel(text("once upon a time there was a tree", delay=0.01))
    async with paged(WaitingReader) as one:
        url = "/agents/waiting-reader/a/ag-ui"
        first = Page(one, url, said("r1", user("u1", "tell")))
        whole: list[Page] = []
        rests: list[tuple[int, Page]] = []
        while not first.is_over:
            before = len(first.frames)
            await until(lambda before=before: len(first.frames) > before or first.is_over)
            whole.append(Page(one, url, said("r1", user("u1", "tell"))))
            whole.append(Page(one, f"{url}/connect", said("c1")))
            if first.ids and first.frames[-1]["type"] != "RUN_FINISHED":
                last = first.ids[-1]
                rests.append(
                    (first.at(last), Page(one, url, said("r1", user("u1", "tell")), **{"last-event-id": last}))
                )
        verify(first.frames)
        wanted = shown(first.frames)
        assert len(whole) > 10
        for page in whole:
            frames = await page.over()
            verify(frames)
            found = {id: message for id, message in shown(frames).items() if id != "u1"}
            assert found == wanted or found == {id: one for id, one in wanted.items() if "subagentRunId" not in one}
        for at, page in rests:
            frames = [*first.frames[:at], *await page.over()]
            verify(frames)
            assert shown(frames) == wanted


async def whole(one: Served, url: str, run: str, **more: Any) -> list[Any]:
    frames = await Page(one, url, said(run, user("u1", "pay"), **more)).over()
    verify(frames)
    return frames


@pytest.mark.slow
async def test_a_crash_after_any_event_changes_nothing() -> None:
    counts: list[int] = []
    for at in (*range(1, 40, 3), 100):
        two()
        WaitingBoss.model = ScriptedModel(call("payer", message="3", id="b1"), text("all is paid"))
        async with paged(WaitingBoss) as one:
            for run in ("r1", "r2"):
                more: dict[str, Any] = {}
                if run == "r2":
                    more = {"resume": yes(*interrupts(await whole(one, f"{BOSS}/connect", "c1")))}
                cut = Page(one, BOSS, said(run, user("u1", "pay"), **more))
                await until(lambda cut=cut, at=at: cut.is_over or len(cut.frames) >= at)
                await one.world.crash()
                await cut.over()
                frames = await whole(one, BOSS, run, **more)
            assert (words_of(frames), frames[-1]["outcome"]) == ("all is paid", {"type": "success"})
            counts.append(len(WaitingPayer.paid))
            fresh = await whole(one, f"{BOSS}/connect", "c2")
            assert (words_of(fresh), fresh[-1]["outcome"]) == ("all is paid", {"type": "success"})
    # A tool that has begun and not ended is not repeated: the process may have died before it paid.
    assert set(counts) <= {0, 1}


async def test_a_conversation_that_is_cleared_ends_the_run() -> None:
    WaitingTeller.model = ScriptedModel(text("once upon a time", gate=asyncio.Event()))
    async with paged(WaitingTeller) as one:
        page = Page(one, "/agents/waiting-teller/a/ag-ui", said("r1", user("u1", "tell")))
        await until(lambda: page.words() == "once")
        agent = await one.world.get_agent(WaitingTeller, "a")
        await agent.conversation.clear()
        frames = await page.over()
        verify(frames)
        assert frames[-1]["outcome"] == {"type": "cancelled"}


class WaitingLatest(WaitingTeller):
    """Answers only the latest message."""

    concurrency = "latest"


async def test_a_message_that_another_one_replaces_ends_its_run_as_cancelled() -> None:
    gate = asyncio.Event()
    WaitingLatest.model = ScriptedModel(text("once upon", gate=gate), text("well"))
    async with paged(WaitingLatest) as one:
        url = "/agents/waiting-latest/a/ag-ui"
        first = Page(one, url, said("r1", user("u1", "tell")))
        await until(lambda: first.words() == "once")
        second = Page(one, url, said("r2", user("u2", "tell")))
        await until(lambda: bool(second.frames))
        third = Page(one, url, said("r3", user("u3", "tell")))
        assert (await second.over())[-1]["outcome"] == {"type": "cancelled"}
        gate.set()
        for page in (first, third):
            verify(await page.over())
        assert words_of(third.frames) == "once upon well"


async def test_a_cursor_of_another_agent_is_refused() -> None:
    WaitingTeller.model = ScriptedModel(text("once"), each=True)
    async with paged(WaitingTeller) as one:
        other = Page(one, "/agents/waiting-teller/b/ag-ui", said("r1", user("u1", "tell"), thread="b"))
        await other.over()
        url = "/agents/waiting-teller/a/ag-ui"
        await Page(one, url, said("r1", user("u1", "tell"))).over()
        for cursor in (other.ids[0], "x", "é"):
            page = Page(one, url, said("r1", user("u1", "tell")), **{"last-event-id": cursor})
            await page.over()
            assert page.status == 400


async def test_a_server_that_stops_says_so_and_the_same_run_goes_on() -> None:
    gate = asyncio.Event()
    WaitingTeller.model = ScriptedModel(text("once upon", gate=gate))
    async with paged(WaitingTeller) as one:
        url = "/agents/waiting-teller/a/ag-ui"
        page = Page(one, url, said("r1", user("u1", "tell")))
        await until(lambda: page.words() == "once")
        one.world.node.shared(OpenStreams).end()
        assert (await page.over())[-1]["code"] == "unavailable"
        gate.set()
        assert words_of(await whole(one, url, "r1")) == "once upon"


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with paged(WaitingTeller, request_bytes=1000) as one:
        body = json.dumps(said("r1", user("u1", "x" * 1000))).encode()
        for path in ("/agents/waiting-teller/a/ag-ui", "/ag-ui/waiting-teller"):
            assert (await one.site.http(path, method="POST", body=body)).status == 413
