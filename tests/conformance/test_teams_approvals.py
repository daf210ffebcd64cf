"""A question asked far down rests with all above it at no cost, and is shown and answered at any of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from tests.conformance.chats import Talking, check_history, say, tool_result, user
from tests.conformance.drivers import running
from tests.conformance.served import Client, Served, served, type_of
from tests.conformance.test_chat_recovery import expect_deaths
from tests.conformance.worlds import asleep, until
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Question, Run, Unavailable, agent_tool, tool
from sapwood.chat.turn.intake import Intake
from sapwood.errors import InvalidArguments
from sapwood.testing import ScriptedModel, World, call, calls, text
from sapwood.types import Address, PathSegment

QUESTIONS = "sapwood_questions"
NOT_OPEN = "This question is not open, or has changed since it was shown. Reload it."
RUN = "agent-tool:c1"
TOP = "/agents/quiz-top/t"
LADDER = ("QuizFirst", "QuizSecond", "QuizThird", "QuizDeep")
PATH = tuple(PathSegment(name, RUN) for name in LADDER)
HOPS = ("quiz-first", "quiz-second", "quiz-third", "quiz-deep")


class QuizDeep(Talking):
    """Asks before it tells."""

    model = ScriptedModel(call("reveal", id="k", what="it"), text("now you know"), each=True)
    told: list[str]

    @tool(requires_approval=True)
    async def reveal(self, what: str) -> str:
        """Reveal it."""
        QuizDeep.told.append(what)
        return f"the secret of {what}"

    async def seen_by_model(self) -> str:
        return json.dumps((await self.conversation.export())["model_messages"])

    async def leave(self) -> None:
        await self.destroy()


class QuizThird(ChatAgent):
    """Asks the one below."""

    model = ScriptedModel(call("quiz_deep", id="c1", message="go"), text("third done"), each=True)
    tools = (agent_tool(QuizDeep, client_tools=True),)


class QuizSecond(ChatAgent):
    """Asks the one below."""

    model = ScriptedModel(call("quiz_third", id="c1", message="go"), text("second done"), each=True)
    tools = (agent_tool(QuizThird, client_tools=True),)


class QuizFirst(ChatAgent):
    """Asks the one below."""

    model = ScriptedModel(call("quiz_second", id="c1", message="go"), text("first done"), each=True)
    tools = (agent_tool(QuizSecond, client_tools=True),)

    async def on_before_sub_agent(self, request: HTTPConnection, child: PathSegment) -> Response | None:
        return PlainTextResponse("not you", 403) if request.headers.get("who") == "stranger" else None


class Quizzed(ChatAgent):
    """Begins without anybody who waits for it."""

    async def begin(self) -> None:
        message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "go"}]}
        self._actor.of(Intake).ask([message], id="r1")

    async def how(self) -> str:
        (turn,) = (await self.conversation.export())["turns"]
        return turn["status"]


class QuizPair(Quizzed):
    """Asks the one below, and is nobody's helper."""

    model = ScriptedModel(call("quiz_deep", id="c1", message="go"), text("all done"), each=True)
    tools = (agent_tool(QuizDeep),)


class QuizTop(Quizzed):
    """Asks the one below."""

    finished: list[str]
    model = ScriptedModel(call("quiz_first", id="c1", message="go"), text("all done"), each=True)
    tools = (agent_tool(QuizFirst, client_tools=True),)

    async def all_runs(self) -> list[Run]:
        return self.runs.list()

    async def on_run_finish(self, run: Run) -> None:
        QuizTop.finished.append(run.status)

    async def stop(self, run: str) -> bool:
        return self.runs.cancel(run)

    async def abort(self) -> None:
        self.children.abort(QuizFirst, RUN, "enough")
        await self.sub_agent(QuizFirst, RUN)

    async def delete(self) -> None:
        await self.children.delete(QuizFirst, RUN)


CHAIN: tuple[tuple[type[Any], str], ...] = ((QuizFirst, RUN), (QuizSecond, RUN), (QuizThird, RUN), (QuizDeep, RUN))


@pytest.fixture(autouse=True)
def told() -> list[str]:
    QuizDeep.told, QuizTop.finished = [], []
    return QuizDeep.told


@asynccontextmanager
async def quiz(**settings: Any) -> AsyncGenerator[Served, None]:
    async with asyncio.timeout(patience()), served(App(agents=[QuizTop]), **settings) as one:
        yield one


def url(depth: int) -> str:
    """Return the path of the agent that is so far below the top."""
    return TOP + "".join(f"/sub/{hop}/agent-tool%3Ac1" for hop in HOPS[:depth])


def wired(depth: int) -> list[dict[str, str]]:
    """Return the way from there down to who asks, as it is on a wire."""
    return [{"type": step.type, "name": step.name} for step in PATH[depth:]]


async def top(one: Served) -> Any:
    return await one.world.get_agent(QuizTop, "t")


async def below(one: Served, depth: int) -> Any:
    return await one.world.get_agent(QuizTop, "t", sub=CHAIN[:depth]) if depth else await top(one)


DIGEST = Question.about("k", "reveal", {"what": "it"}, "approval").digest


async def posted(one: Served, depth: int, **body: Any) -> Any:
    """Answer by the URL of the agent that is so far below the top."""
    headers = {"who": body.pop("who", "friend")}
    told = json.dumps({"path": wired(depth), "id": "k", "digest": DIGEST, **body}).encode()
    return await one.site.http(f"{url(depth)}/questions", method="POST", body=told, headers=headers)


async def asked(one: Served, *, path: str = TOP, id: str = "r1") -> Client:
    """Have the top begin, by a client of its own; return that client when it was told that somebody is asked."""
    client = await one.join(path)
    await say(client, id, user("go", f"u-{id}"))
    await client.until(lambda frame: type_of(frame) == QUESTIONS and frame["questions"])
    return client


async def begun(one: Served) -> None:
    """Have the top begin, and nobody be connected when it asks."""
    await (await asked(one)).close()


async def ended(one: Served, id: str = "r1") -> Any:
    """Return how the turn of the top ended, once it has."""
    async with asyncio.timeout(patience()):
        while True:
            try:
                return await (await top(one)).turns.wait(id)
            except Unavailable:
                await asyncio.sleep(0.005)


async def check_ended(one: Served, *, approved: bool) -> None:
    turn = await ended(one)
    assert (turn.status, turn.text) == ("completed", "all done")
    deep = await below(one, 4)
    check_history(json.loads(await deep.seen_by_model()))
    assert ("the secret of it" in await deep.seen_by_model()) is approved
    assert QuizDeep.told == (["it"] if approved else [])
    assert QuizTop.finished == ["completed"]
    assert await (await top(one)).questions.list() == []
    await asleep(one.world)


@pytest.mark.slow
@pytest.mark.promise("B-39")
async def test_nobody_is_awake_while_a_question_far_down_waits_and_no_time_counts() -> None:
    async with quiz() as one:
        await asked(one)
        await asleep(one.world)
        for day in range(7):
            await one.world.crash()
            await one.world.clock.advance(24 * 3600)
            # Once somebody may look in vain: the index of alarms may say too early what the crash left of it.
            assert one.world.node.trees == {} or day == 0

        assert [(run.status, run.reason) for run in await (await top(one)).all_runs()] == [("running", None)]
        assert [one.path for one in await (await top(one)).questions.list()] == [PATH]
        assert len(one.world.node.trees[Address.root_of("QuizTop", "t")].actors) == 1  # nobody below was woken for that


@pytest.mark.slow
async def test_a_question_is_shown_to_the_clients_of_every_agent_above_also_to_those_who_come_later() -> None:
    async with quiz() as one:
        live = await asked(one)
        question = {"id": "k", "kind": "approval", "tool": "reveal", "input": {"what": "it"}, "digest": DIGEST}
        for depth in range(4):
            late = await one.join(url(depth))
            await late.until(lambda frame: type_of(frame) == QUESTIONS)
            frame = {"type": QUESTIONS, "path": wired(depth), "questions": [question]}
            assert late.of_type(QUESTIONS) == [frame]
            assert depth or live.of_type(QUESTIONS) == [frame]
            agent = await below(one, depth)
            assert await agent.questions.list() == [Question("k", "reveal", {"what": "it"}, PATH[depth:])]
            listed = (await one.site.http(f"{url(depth)}/questions")).json()
            assert listed == {"questions": [{"path": wired(depth), **question}]}
        own = (await one.site.http(f"{url(4)}/questions")).json()
        assert own == {"questions": [{"path": [], **question}]}


@pytest.mark.promise("B-39")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "approved"),
    [
        ("who asks", True),
        ("the top", True),
        ("the middle", False),
        ("a client of the top", True),
        ("a client of the middle", False),
        ("the url of the top", False),
        ("the url of the middle", True),
    ],
)
async def test_it_is_answered_anywhere_above_and_the_whole_chain_goes_on(where: str, approved: bool) -> None:
    depth = 2 if where.endswith("middle") else 0
    async with quiz() as one:
        await begun(one)
        await asleep(one.world)
        if approved:
            await one.world.crash()
        if "client" in where:
            client = await one.join(url(depth))
            answer = {"type": "cf_agent_tool_approval", "toolCallId": "k", "approved": approved, "path": wired(depth)}
            await client.send(answer)
            over = {"type": QUESTIONS, "path": wired(depth), "questions": []}
            await client.until(lambda frame: frame == over)
        elif "url" in where:
            posting = await posted(one, depth, approved=approved)
            assert (posting.status, posting.json()) == (200, {"answered": True})
        elif where == "who asks":
            deep = await below(one, 4)
            assert await deep.questions.list() == [Question("k", "reveal", {"what": "it"})]
            assert await deep.questions.approve("k")
        else:
            agent = await below(one, depth)
            (question,) = await agent.questions.list()
            assert await (agent.questions.approve(question) if approved else agent.questions.deny(question))

        await check_ended(one, approved=approved)


@pytest.mark.slow
async def test_other_arguments_and_a_reason_go_down_with_the_answer() -> None:
    async with quiz() as one:
        await begun(one)
        assert (await posted(one, 0, approved=True, arguments={"what": "another"})).status == 200
        await ended(one)
        assert QuizDeep.told == ["another"]
    async with quiz() as one:
        await begun(one)
        agent = await top(one)
        (question,) = await agent.questions.list()
        assert await agent.questions.deny(question, reason="It is a secret.")
        await ended(one)
        assert "It is a secret." in await (await below(one, 4)).seen_by_model()


@pytest.mark.slow
async def test_arguments_that_do_not_fit_are_refused_at_any_agent_above() -> None:
    async with quiz() as one:
        await begun(one)
        agent = await top(one)
        (question,) = await agent.questions.list()

        with pytest.raises(InvalidArguments, match="do not match the tool reveal: what"):
            await agent.questions.approve(question, arguments={"what": 3})
        refused = await posted(one, 0, approved=True, arguments={"who": "it"})

        assert refused.status == 400
        assert "do not match the tool reveal: what: Field required; who: " in refused.text
        assert await agent.questions.approve(question, arguments={"what": "another"})
        await ended(one)
        assert QuizDeep.told == ["another"]


@pytest.mark.slow
async def test_the_first_answer_counts_and_one_that_comes_later_is_told_so(level: str) -> None:
    async with quiz(durability=level) as one:
        client = await asked(one)
        agent = await top(one)
        (question,) = await agent.questions.list()
        assert await agent.questions.approve(question)

        assert not await agent.questions.deny(question)
        second = await posted(one, 0, approved=False)
        assert (second.status, second.json()) == (409, {"answered": False, "refused": NOT_OPEN})
        assert not await (await below(one, 4)).questions.approve("k")
        await check_ended(one, approved=True)

        # Nor is one taken of a run that is over; a client learns that nothing is asked.
        client = await one.join(TOP)
        assert client.of_type(QUESTIONS) == []
        await client.send({"type": "cf_agent_tool_approval", "toolCallId": "k", "approved": True, "path": wired(0)})
        told = await client.until(lambda frame: type_of(frame) == QUESTIONS)
        assert (told["questions"], told["refused"]) == ([], {"id": "k", "reason": NOT_OPEN})
        assert not await agent.questions.approve(question)
        gone = Question("k", "reveal", {}, (PathSegment("QuizFirst", "nobody"),))
        assert not await agent.questions.approve(gone)
        assert QuizDeep.told == ["it"]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0, 2, 4])
@pytest.mark.parametrize("crashes", [False, True])
async def test_a_client_that_reconnects_after_the_answer_is_shown_no_question_and_refused(
    depth: int, crashes: bool
) -> None:
    async with quiz() as one:
        client = await asked(one)
        old = client if depth == 0 else await one.join(url(depth))
        if depth < 4:
            await old.until(lambda frame: type_of(frame) == QUESTIONS and frame["questions"])
        await old.close()
        agent = await top(one)
        (question,) = await agent.questions.list()
        assert await agent.questions.approve(question)
        if crashes:
            await one.world.crash()

        again = await one.join(url(depth))
        if crashes:  # the index may say too much until the agent that asked is awake
            await check_ended(one, approved=True)
            await one.world.settled()
            assert [frame["questions"] for frame in again.of_type(QUESTIONS)][-1:] in ([], [[]])
            again.frames.clear()
        late = {"type": "cf_agent_tool_approval", "toolCallId": "k", "approved": False}
        await again.send(late | ({"path": wired(depth)} if depth < 4 else {}))

        refused = {"id": "k", "reason": NOT_OPEN}
        await again.until(lambda frame: type_of(frame) == QUESTIONS)
        assert again.of_type(QUESTIONS) == [
            {"type": QUESTIONS, "path": wired(depth), "questions": [], "refused": refused}
        ]
        await check_ended(one, approved=True)


@pytest.mark.slow
async def test_who_is_not_let_through_on_the_way_down_does_not_answer() -> None:
    async with quiz() as one:
        await begun(one)
        refused = await posted(one, 0, approved=True, who="stranger")
        assert (refused.status, refused.text) == (403, "not you")
        stranger = await one.join(TOP, additional_headers={"who": "stranger"})
        await stranger.send({"type": "cf_agent_tool_approval", "toolCallId": "k", "approved": True, "path": wired(0)})
        told = await stranger.until(lambda frame: type_of(frame) == QUESTIONS and "refused" in frame)
        assert told["refused"] == {"id": "k", "reason": "You may not answer this question."}
        for body in (
            b"{",
            b"{}",
            b'{"id":"k"}',
            b'{"id":"k","aproved":true}',
            b'{"id":"k","path":[["QuizFirst","x"]]}',
        ):
            assert (await one.site.http(f"{TOP}/questions", method="POST", body=body)).status == 400

        assert QuizDeep.told == []
        assert (await posted(one, 0, approved=True)).status == 200
        await check_ended(one, approved=True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["the turn", "the run", "a client", "a client who clears it"])
async def test_what_is_cancelled_while_it_waits_ends_down_to_who_asked(how: str) -> None:
    async with quiz() as one:
        await begun(one)
        await asleep(one.world)
        agent = await top(one)
        (question,) = await agent.questions.list()
        if how == "the turn":
            assert await agent.turns.cancel("r1")
        elif how == "the run":
            assert await agent.stop(RUN)
        else:
            client = await one.join(TOP)
            what = "cf_agent_chat_clear" if "clears" in how else "cf_agent_chat_request_cancel"
            await client.send({"type": what, "id": "r1"})
        if "clears" in how:
            await until_gone(agent)
            assert QuizDeep.told == []
            assert not await agent.questions.approve(question)
            await asleep(one.world)
            return

        turn = await ended(one)
        assert turn.status == ("completed" if how == "the run" else "cancelled")
        for depth in range(1, 5):
            async with asyncio.timeout(patience()):
                while (one_turn := await (await below(one, depth)).turns.wait(RUN)).status != "cancelled":
                    assert one_turn.status in ("running", "waiting"), depth
                    await asyncio.sleep(0.005)
        assert await agent.questions.list() == []
        assert not await agent.questions.approve(question)
        assert QuizDeep.told == []
        await asleep(one.world)


async def until_gone(agent: Any) -> None:
    """Wait until nothing is asked, and nothing goes on."""
    async with asyncio.timeout(patience()):
        while await agent.questions.list() or await agent.all_runs() or await agent.how() == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "deleted"])
async def test_what_rests_with_one_that_is_aborted_or_deleted_is_over(how: str) -> None:
    async with quiz() as one:
        await begun(one)
        await asleep(one.world)
        agent = await top(one)
        (question,) = await agent.questions.list()
        await (agent.abort() if how == "cancelled" else agent.delete())

        assert (await ended(one)).status == "completed"
        (run,) = await agent.all_runs()
        assert (run.status, run.reason or run.error) == (
            ("cancelled", "enough")
            if how == "cancelled"
            else ("failed", "QuizTop:t/QuizFirst:agent-tool%3Ac1 was deleted.")
        )
        assert QuizTop.finished == [run.status]
        assert await agent.questions.list() == []
        if how == "cancelled":
            assert not await (await below(one, 4)).questions.approve("k")
        assert not await agent.questions.approve(question)
        assert QuizDeep.told == []
        await asleep(one.world)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["awake", "asleep", "cancelled", "cleared", "by itself"])
async def test_pages_above_are_told_that_nothing_is_asked_when_the_asker_is_no_more(how: str) -> None:
    async with quiz() as one:
        page = await asked(one)
        agent = await top(one)
        if how == "asleep":
            await asleep(one.world)
        if how == "cancelled":
            await agent.abort()
        elif how == "cleared":
            await agent.conversation.clear()
        elif how == "by itself":
            await (await below(one, 4)).leave()
        else:
            await agent.delete()

        await page.until(lambda frame: frame == {"type": QUESTIONS, "path": wired(0), "questions": []})
        assert await (await top(one)).questions.list() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancels", "clears", "says something else"])
async def test_what_is_ended_where_it_is_asked_goes_on_above(how: str) -> None:
    async with quiz() as one:
        await begun(one)
        await asleep(one.world)
        deep = await below(one, 4)
        if how == "cancels":
            assert await deep.turns.cancel(RUN)
        elif how == "clears":
            await deep.conversation.clear()
        else:
            client = await one.join(url(4))
            await say(client, "r2", user("never mind", "u-r2"))

        turn = await ended(one)
        assert (turn.status, turn.text) == ("completed", "all done")
        assert QuizTop.finished == ["completed"]
        assert await (await top(one)).questions.list() == []
        assert QuizDeep.told == []


@pytest.mark.slow
async def test_what_is_said_meanwhile_is_heard_when_the_turn_is_over() -> None:
    async with quiz() as one:
        client = await asked(one)
        await say(client, "r2", user("go", "u-r1"), user("and you?", "u-r2"))
        await client.close()
        await asleep(one.world)
        assert (await posted(one, 0, approved=True)).status == 200
        assert (await ended(one)).status == "completed"
        assert (await ended(one, "r2")).status == "completed"


@pytest.mark.slow
async def test_who_comes_while_all_sleep_is_shown_what_was_said_so_far_and_what_follows() -> None:
    async with quiz() as one:
        await begun(one)
        await asleep(one.world)
        late = await one.join(TOP)
        offer = await late.until(lambda frame: type_of(frame) == "cf_agent_stream_resuming")
        await late.send({"type": "cf_agent_stream_resume_ack", "id": offer["id"]})
        await late.until(lambda frame: "replayComplete" in frame)
        await approval_of(late)
        done = await late.until(lambda frame: type_of(frame) == "cf_agent_use_chat_response" and frame["done"])
        kinds = [
            json.loads(frame["body"])["type"] for frame in late.of_type("cf_agent_use_chat_response") if frame["body"]
        ]
        assert done["outcome"] == "completed"
        assert kinds.count("start") == kinds.count("finish") == kinds.count("tool-output-available") == 1
        await check_ended(one, approved=True)


async def approval_of(client: Client) -> None:
    await client.send({"type": "cf_agent_tool_approval", "toolCallId": "k", "approved": True, "path": wired(0)})


@pytest.mark.slow
async def test_a_tool_of_the_browser_is_used_far_down(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ScriptedModel(
        calls(call("locate", id="k", near="here"), call("reveal", id="l", what="it")), text("found"), each=True
    )
    monkeypatch.setattr(QuizDeep, "model", theirs)
    async with quiz() as one:
        client = await one.join(TOP)
        await say(client, "r1", user("go", "u1"), clientTools=[{"name": "locate", "description": "Where it is."}])
        frame = await client.until(lambda frame: type_of(frame) == QUESTIONS and frame["questions"])
        assert [(one["kind"], one["tool"], one["input"]) for one in frame["questions"]] == [
            ("client", "locate", {"near": "here"}),
            ("approval", "reveal", {"what": "it"}),
        ]
        await asleep(one.world)
        assert [one.tool for one in await (await top(one)).questions.list()] == ["reveal"]
        await tool_result(client, "k", {"lat": 1}, path=wired(0))
        left = await client.until(lambda frame: type_of(frame) == QUESTIONS and len(frame["questions"]) == 1)
        assert left["questions"][0]["id"] == "l"
        assert not (await posted(one, 0, output=1)).json()["answered"]
        assert (await posted(one, 0, id="l", approved=True)).json()["answered"]

        turn = await ended(one)
        assert turn.status == "completed"
        assert '{"lat": 1}' in await (await below(one, 4)).seen_by_model()
        assert QuizDeep.told == ["it"]


class QuizBoth(QuizTop):
    """Asks two at once."""

    model = ScriptedModel(
        calls(call("quiz_deep", id="c1", message="go"), call("quiz_deep", id="c2", message="go")),
        text("both"),
        each=True,
    )
    tools = (agent_tool(QuizDeep),)


@pytest.mark.slow
async def test_two_ask_at_once_and_each_is_answered_for_itself() -> None:
    async with asyncio.timeout(patience()), served(App(agents=[QuizBoth])) as one:
        client = await one.join("/agents/quiz-both/t")
        await say(client, "r1", user("go", "u1"))
        await client.until(lambda _: len(client.of_type(QUESTIONS)) == 2)
        await asleep(one.world)
        agent = await one.world.get_agent(QuizBoth, "t")
        first, second = await agent.questions.list()
        assert (first.id, second.id) == ("k", "k")
        assert {first.path[0].name, second.path[0].name} == {RUN, "agent-tool:c2"}

        assert await agent.questions.approve(second)
        async with asyncio.timeout(patience()):
            while [run.status for run in await agent.all_runs()] != ["running", "completed"]:  # noqa: ASYNC110 - alike
                await asyncio.sleep(0.005)
        assert await agent.questions.list() == [first]
        await asleep(one.world)
        await one.world.crash()

        agent = await one.world.get_agent(QuizBoth, "t")
        assert await agent.questions.deny(first)
        turn = await agent.turns.wait("r1")
        assert (turn.status, turn.text) == ("completed", "both")
        assert QuizDeep.told == ["it"]


class QuizBoss(Agent):
    """Has others asked by its own code."""

    async def begin(self, timeout: float | None = None) -> None:
        self.start_fiber("ask", self.ask, timeout)

    async def ask(self, timeout: float | None) -> str:
        run = await self.run_agent(QuizWorker, "go", run_id="w", timeout=timeout)
        return f"{run.status} {run.reason}"

    async def run(self) -> Run | None:
        return self.runs.get("w")

    async def result(self) -> Any:
        return await self.fibers.result("ask")


class QuizWorker(Agent):
    """Does runs by a method, which uses one that asks."""

    async def on_run(self, input: str) -> Any:
        run = await self.run_agent(QuizThird, input)
        return run.output


async def asks(boss: Any) -> None:
    """Wait until somebody below is asking."""
    async with asyncio.timeout(patience()):
        while not await boss.questions.list():  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_code_that_waits_for_one_who_asks_is_not_given_up_after_a_restart() -> None:
    async with asyncio.timeout(patience()), served(App(agents=[QuizBoss])) as one:
        boss: Any = await one.world.get_agent(QuizBoss, "b")
        await boss.begin()
        await asks(boss)
        await one.world.crash()
        for _ in range(2):
            await one.world.clock.advance(200)
        boss = await one.world.get_agent(QuizBoss, "b")
        assert (await boss.run()).status == "running"

        (question,) = await boss.questions.list()
        assert len(question.path) == 3
        assert await boss.questions.approve(question)
        assert await boss.result() == "completed None"


@pytest.mark.slow
async def test_who_goes_on_after_an_answer_may_be_silent_for_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()
    theirs = ScriptedModel(call("reveal", id="k", what="it"), text("now you know", gate=gate), each=True)
    monkeypatch.setattr(QuizDeep, "model", theirs)
    async with quiz() as one:
        await begun(one)
        await one.world.settled()  # all of them rest
        await one.world.crash()
        assert (await posted(one, 0, approved=True)).status == 200
        await until(lambda: len(theirs.asked) == 2)
        await one.world.clock.advance(1000)
        gate.set()
        await check_ended(one, approved=True)


async def test_a_time_that_was_set_for_a_run_counts_while_it_waits() -> None:
    async with asyncio.timeout(patience()), served(App(agents=[QuizBoss])) as one:
        boss: Any = await one.world.get_agent(QuizBoss, "b")
        await boss.begin(3600)
        await asks(boss)
        await one.world.clock.advance(3601)

        assert await boss.result() == "failed timed-out"
        assert await boss.questions.list() == []


async def until_asked(world: World, cls: type[Any], name: str) -> Any:
    """Wait until somebody below this agent asks, and all of it rests; return it."""
    async with asyncio.timeout(patience()):
        while True:
            agent = await world.get_agent(cls, name)
            if await agent.questions.list():
                await world.settled()
                world.sleep()
                if not world.node.trees:
                    return await world.get_agent(cls, name)
            await world.clock.advance(1)


async def answer(agent: Any) -> None:
    """Approve what is asked, if anything still is."""
    for question in await agent.questions.list():
        await agent.questions.approve(question)


async def check_killed(cls: type[Any], when: str, *, every: int = 1) -> int:
    """Kill the process at each commit after somebody is asked, or answered, and see it end well; return how many."""
    expect_deaths()
    asked = QuizDeep.model.asked
    async with running(App(agents=[cls]), slow_slices="allow") as world:
        nth = 1
        while True:
            QuizDeep.told.clear()
            name, before = f"{when}-{nth}", len(asked)
            agent = await world.get_agent(cls, name)
            await agent.begin()
            if when == "asking":
                await until(lambda: len(asked) > before)  # noqa: B023
            else:
                agent = await until_asked(world, cls, name)
            passed = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable):
                if when == "answering":
                    await answer(agent)
                await world.settled()
            was_killed = world.points.passed["committed"] >= passed + nth
            await world.crash()

            async with asyncio.timeout(patience()):
                while (turn := await (await world.get_agent(cls, name)).how()) == "running":
                    await answer(await world.get_agent(cls, name))
                    await world.clock.advance(1)
            assert turn == "completed", nth
            # A call that was begun when the process died is not made again: the model is told.
            assert QuizDeep.told == ["it"] or (was_killed and not QuizDeep.told), nth
            assert await (await world.get_agent(cls, name)).questions.list() == [], nth
            await asleep(world)
            if not was_killed:
                return nth
            nth += every


@pytest.mark.slow
@pytest.mark.parametrize("when", ["asking", "answering"])
async def test_killed_at_any_commit_it_is_asked_once_answered_once_and_goes_on(when: str) -> None:
    assert await check_killed(QuizPair, when) > 10


@pytest.mark.nightly
@pytest.mark.promise("B-39")
@pytest.mark.slow
@pytest.mark.parametrize("when", ["asking", "answering"])
async def test_killed_anywhere_the_whole_chain_goes_on(when: str) -> None:
    assert await check_killed(QuizTop, when, every=8) > 20
