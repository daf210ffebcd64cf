"""Only the people who may approve a tool call can, whichever way their answer takes, and only they see the question."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.chats import say, user
from tests.conformance.served import Client, Served, served, type_of
from tests.conformance.worlds import asleep
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Question, agent_tool, tool
from sapwood.admin.admin import Admin
from sapwood.auth import ANY_CLIENT, User
from sapwood.errors import UsageError
from sapwood.runs.tables.decisions import broken_at, read
from sapwood.testing import ScriptedModel, call, calls, running, text
from sapwood.types import Address, PathSegment
from support_desk import Desk, RefundAgent, Ticket, make_app, token_for

pytestmark = pytest.mark.slow  # each starts a server

QUESTIONS = "sapwood_questions"
NOT_OPEN = "This question is not open, or has changed since it was shown. Reload it."
DESK = "/agents/desk/acme"
TICKET = f"{DESK}/sub/ticket/ann"
ANN, EVE, OTTO, TIM, MALLORY = "ann", "eve", "otto", "tim", "mallory"
ROLES = {OTTO: ("operator",), TIM: ("operator", "trainee"), MALLORY: ("operator",)}
REFUND = {"order": "A-99", "euros": 25}
DIGEST = Question.about("k", "book_refund", REFUND, "approval").digest


def token_of(name: str) -> str:
    """Return a new token: one made at the start of a long test run would be too old."""
    return token_for(name, *ROLES.get(name, ()), company="other" if name == MALLORY else "acme")


class DeskAtWork:
    """A desk where ann waits for a refund."""

    def __init__(self, one: Served) -> None:
        self.one = one
        self.world = one.world
        self.question: dict[str, Any] = {}

    async def ask(self) -> None:
        """Let ann ask for her money, and wait until the refund waits for an operator."""
        desk = await self.world.get_agent(Desk, "acme")
        await desk.open_ticket("ann")
        operator = await self.join(DESK, OTTO)
        ann = await self.join(TICKET, ANN)
        await say(ann, "r1", user("I want my money back.", "u1"))
        frame = await operator.until(lambda frame: type_of(frame) == QUESTIONS and frame["questions"])
        (asked,) = frame["questions"]
        assert (asked["tool"], asked["input"], asked["digest"]) == ("book_refund", REFUND, DIGEST)
        self.question = {**asked, "path": frame["path"]}
        await self.world.settled()
        assert ann.of_type(QUESTIONS) == []

    async def join(self, path: str, name: str) -> Client:
        return await self.one.join(f"{path}?token={token_of(name)}")

    async def http(self, path: str, name: str, body: Any = None) -> Any:
        method = "GET" if body is None else "POST"
        given = b"" if body is None else json.dumps(body).encode()
        return await self.one.site.http(
            path, method=method, body=given, headers={"authorization": f"Bearer {token_of(name)}"}
        )

    def url(self, depth: int) -> str:
        """Return the URL of an agent on the way to the one that asks: desk, ticket, refunds."""
        steps = self.question["path"][:depth]
        hops = {"Ticket": "ticket", "RefundAgent": "refund-agent"}
        return DESK + "".join(f"/sub/{hops[step['type']]}/{step['name'].replace(':', '%3A')}" for step in steps)

    def answer(self, depth: int, **more: Any) -> dict[str, Any]:
        """Return an approval by HTTP, as it is posted to an agent on the way."""
        return {
            "id": self.question["id"],
            "path": self.question["path"][depth:],
            "approved": True,
            "digest": DIGEST,
        } | more

    def frame(self, depth: int, **more: Any) -> dict[str, Any]:
        """Return an approval by socket, as it is sent to an agent on the way."""
        path = self.question["path"][depth:]
        said = {
            "type": "cf_agent_tool_approval",
            "toolCallId": self.question["id"],
            "approved": True,
            "autoContinue": True,
        }
        return said | ({"path": path} if path else {}) | more

    async def booked(self) -> int:
        return await (await self.refunds()).booked()

    async def refunds(self) -> RefundAgent:
        name = self.question["path"][1]["name"]
        return await self.world.get_agent(Desk, "acme", sub=((Ticket, "ann"), (RefundAgent, name)))

    async def is_open(self) -> bool:
        return [one.id for one in await (await self.world.get_agent(Desk, "acme")).questions.list()] == [
            self.question["id"]
        ]

    async def until_booked(self) -> None:
        async with asyncio.timeout(patience()):
            while await self.booked() != 25:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)


@asynccontextmanager
async def desk_at_work(tmp_path: Path) -> AsyncGenerator[DeskAtWork, None]:
    async with asyncio.timeout(patience(60)), served(make_app(str(tmp_path))) as one:
        desk = DeskAtWork(one)
        await desk.ask()
        yield desk


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("name", [ANN, EVE, MALLORY])
async def test_a_customer_does_not_approve_by_any_url(tmp_path: Path, depth: int, name: str) -> None:
    async with desk_at_work(tmp_path) as desk:
        answered = await desk.http(f"{desk.url(depth)}/questions", name, desk.answer(depth))
        changed = await desk.http(
            f"{desk.url(depth)}/questions", name, desk.answer(depth, arguments={"order": "A-99", "euros": 9})
        )
        part = {"type": "tool-book_refund", "toolCallId": desk.question["id"], "state": "approval-responded"}
        message = {"id": "m", "role": "assistant", "parts": [{**part, "approval": {"id": "k", "approved": True}}]}
        if (name, depth) != (ANN, 1):  # she may talk to her own ticket
            assert (await desk.http(f"{desk.url(depth)}/chat", name, {"messages": [message]})).status in (403, 404)

        assert (answered.status, changed.status) == (403, 403)
        assert await desk.is_open()
        assert await desk.booked() == 0


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("name", [ANN, EVE])
async def test_a_customer_does_not_approve_by_any_socket(tmp_path: Path, depth: int, name: str) -> None:
    async with desk_at_work(tmp_path) as desk:
        client = await desk.one.connect(f"{desk.url(depth)}?token={token_of(name)}")
        if (depth, name) == (1, ANN):
            await client.greeted()
            await client.send(desk.frame(depth))
            told = await client.until(lambda frame: type_of(frame) == QUESTIONS)
            assert told["questions"] == []  # and is not told what was asked
            assert told["refused"]["id"] == desk.question["id"]
        else:
            assert (await client.ended())[0] == 4403

        assert await desk.is_open()
        assert await desk.booked() == 0


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("door", ["http", "socket"])
async def test_an_operator_approves_at_every_agent_on_the_way(tmp_path: Path, depth: int, door: str) -> None:
    async with desk_at_work(tmp_path) as desk:
        if door == "http":
            answered = await desk.http(f"{desk.url(depth)}/questions", OTTO, desk.answer(depth))
            assert (answered.status, answered.json()) == (200, {"answered": True})
        else:
            client = await desk.join(desk.url(depth), OTTO)
            await client.send(desk.frame(depth, digest=DIGEST))
        await desk.until_booked()

        decision, outcome = (await (await desk.refunds()).conversation.export())["decisions"]
        assert (decision["kind"], decision["user"], decision["authentication"]) == ("approved", "otto", "JwtAuth")
        assert (decision["channel"], decision["digest"], decision["shown"]) == (door, DIGEST, REFUND)
        assert (outcome["kind"], outcome["channel"], outcome["reason"]) == (
            "outcome",
            "completed",
            '"25 euros for A-99"',
        )
        assert outcome["previous"] == decision["hash"]


async def test_an_answer_to_something_else_than_was_shown_is_refused(tmp_path: Path) -> None:
    other = Question.about("k", "book_refund", {"order": "A-99", "euros": 1}, "approval").digest
    async with desk_at_work(tmp_path) as desk:
        refused = await desk.http(f"{DESK}/questions", OTTO, desk.answer(0, digest=other))
        unnamed = await desk.http(f"{DESK}/questions", OTTO, desk.answer(0) | {"digest": None})
        operator = await desk.join(DESK, OTTO)
        await operator.send(desk.frame(0, digest=other))
        told = await operator.until(lambda frame: type_of(frame) == QUESTIONS and "refused" in frame)

        assert (refused.status, refused.json()) == (409, {"answered": False, "refused": NOT_OPEN})
        assert (unnamed.status, unnamed.json()["answered"]) == (400, False)
        assert "GET this URL" in unnamed.json()["refused"]
        assert told["refused"]["reason"] == NOT_OPEN
        assert [one["id"] for one in told["questions"]] == [desk.question["id"]]
        assert await desk.is_open()


async def test_the_hook_of_an_agent_above_holds_at_every_agent_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: Desk, user: User, question: Question) -> str:
        assert (user.id, question.tool) == ("otto", "book_refund")
        assert [step.type for step in question.path] == ["Ticket", "RefundAgent"]
        return "Not on Sundays."

    async with desk_at_work(tmp_path) as desk:
        monkeypatch.setattr(Desk, "may_answer", never)
        for depth in (0, 1, 2):
            refused = await desk.http(f"{desk.url(depth)}/questions", OTTO, desk.answer(depth))
            assert (refused.status, refused.json()["refused"]) == (403, "Not on Sundays.")
        client = await desk.join(desk.url(2), OTTO)
        await client.send(desk.frame(2))
        told = await client.until(lambda frame: type_of(frame) == QUESTIONS)
        assert told["refused"]["reason"] == "Not on Sundays."
        assert await desk.is_open()


async def test_questions_and_events_are_shown_to_those_who_may_go_there(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        for name, depth, shown in ((ANN, 0, 0), (EVE, 0, 0), (OTTO, 0, 1), (ANN, 1, 0), (OTTO, 1, 1), (OTTO, 2, 1)):
            listed = await desk.http(f"{desk.url(depth)}/questions", name)
            assert (listed.status, len(listed.json()["questions"])) == (200, shown), (name, depth)
        assert (await desk.http(f"{TICKET}/questions", EVE)).status == 403
        assert "book_refund" in await _events(desk, DESK, OTTO)
        assert "A-99" not in await _events(desk, DESK, EVE)
        assert "book_refund" not in await _events(desk, DESK, ANN)  # the refund agent is not for customers
        assert "refund_agent" in await _events(desk, TICKET, ANN)  # her own ticket is


async def _events(desk: DeskAtWork, path: str, name: str) -> str:
    """Return what a reader is told until the stream is silent."""
    host, port = "127.0.0.1", desk.one.site.port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        f"GET {path}/events HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token_of(name)}\r\n\r\n".encode()
    )
    await writer.drain()
    read = b""
    async with asyncio.timeout(patience()):
        while b"\r\n\r\n" not in read:
            read += await reader.read(65536)
        # All that is stored is told at once; a marker of our own tells when that is over.
        await (await desk.world.get_agent(Desk, "acme")).open_ticket("zoe")
        await desk.world.settled()
        try:
            async with asyncio.timeout(0.5):
                while more := await reader.read(65536):
                    read += more
        except TimeoutError:
            pass
    writer.close()
    return read.decode()


async def test_a_client_of_a_ticket_is_not_told_of_runs_it_may_not_go_to(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        operator = await desk.join(TICKET, OTTO)
        await operator.until(lambda frame: type_of(frame) == "agent-tool-event")
        late = await desk.join(TICKET, ANN)
        await desk.http(f"{DESK}/questions", OTTO, desk.answer(0))
        await desk.until_booked()
        await late.until(lambda frame: "25 euros" in json.dumps(frame))  # what her own ticket says

        assert late.of_type("agent-tool-event") == []


async def test_a_question_is_found_later_and_wakes_nobody(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        await asleep(desk.world)
        operator = await desk.join(DESK, OTTO)
        eve = await desk.one.connect(f"{DESK}?token={token_of(EVE)}")
        frame = await operator.until(lambda frame: type_of(frame) == QUESTIONS)

        assert [one["id"] for one in frame["questions"]] == [desk.question["id"]]
        assert (await eve.ended())[0] == 4403
        awake = {str(address) for tree in desk.world.node.trees.values() for address in tree.actors}
        assert awake == {"Desk:acme"}


async def test_a_connection_that_only_watches_does_nothing(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        client = await desk.join(DESK, TIM)
        await client.send(desk.frame(0))
        told = await client.until(lambda frame: type_of(frame) == QUESTIONS and "refused" in frame)
        called = await client.call("open_ticket", "tim")

        assert told["refused"]["reason"] == "This connection is read-only."
        assert (called["success"], called["error"]) == (False, "This connection is read-only.")
        assert await desk.is_open()


async def test_decisions_are_chained_and_cannot_be_changed(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        denied = await desk.http(f"{DESK}/questions", OTTO, desk.answer(0, approved=False, reason="We have no money."))
        assert denied.status == 200
        await desk.world.settled()
        name = desk.question["path"][1]["name"]
        refunds = await desk.world.get_agent(Desk, "acme", sub=((Ticket, "ann"), (RefundAgent, name)))
        (decision,) = (await refunds.conversation.export())["decisions"]
        assert (decision["kind"], decision["reason"]) == ("denied", "We have no money.")
        await desk.world.crash()
        tree = next(iter(desk.world.node.trees.values()), None)
        await desk.booked()
        tree = next(iter(desk.world.node.trees.values()))
        (database,) = [actor.database for address, actor in tree.actors.items() if address.type == "RefundAgent"]
        (row,) = read(database)
        assert broken_at([row]) is None
        assert broken_at([row._replace(user="eve")]) == 1
        with pytest.raises(Exception, match="append-only"):
            database.execute("UPDATE sapwood_decisions SET user = 'eve'")
        with pytest.raises(Exception, match="append-only"):
            database.execute("DELETE FROM sapwood_decisions")


@pytest.mark.parametrize("depth", [0, 2])
async def test_a_decision_by_sapwood_call_is_recorded_as_the_operator_s(tmp_path: Path, depth: int) -> None:
    async with desk_at_work(tmp_path) as desk:
        steps = [PathSegment(step["type"], step["name"]) for step in desk.question["path"]]
        address = Address((PathSegment("Desk", "acme"), *steps[:depth]))
        (question,) = await (await desk.world.get_agent(Desk, "acme")).questions.list()
        given = question.id if depth else msgspec.to_builtins(question)

        answers = [one async for one in Admin(desk.world.node).call(str(address), "questions.approve", [given])]

        assert answers == [b"true"]
        await desk.until_booked()
        decision, _ = (await (await desk.refunds()).conversation.export())["decisions"]
        assert (decision["kind"], decision["user"]) == ("approved", "operator")
        assert (decision["authentication"], decision["channel"]) == ("operator token", f"code {address}")


async def test_code_that_approves_later_is_not_taken_for_the_operator_who_started_it(tmp_path: Path) -> None:
    async with asyncio.timeout(patience()), served(App(agents=[LateApprover])) as one:
        [_ async for _ in Admin(one.world.node).call("LateApprover:a", "begin", [])]
        agent = await one.world.get_agent(LateApprover, "a")
        async with asyncio.timeout(patience()):
            while not (decisions := (await agent.conversation.export())["decisions"]):  # noqa: ASYNC110 - from outside
                await asyncio.sleep(0.01)

        assert (decisions[0]["user"], decisions[0]["channel"]) == (None, "code LateApprover:a")


class AskWithout(ChatAgent):
    """Pays."""

    model = ScriptedModel(call("pay", id="k"), text("paid"), each=True)

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay."""
        return "paid"


class LateApprover(AskWithout):
    """Asks, and approves in a fiber."""

    async def begin(self) -> None:
        self.start_fiber("approve", self.approve_later)

    async def approve_later(self) -> None:
        await self.turns.start("pay")
        while not (questions := await self.questions.list()):  # noqa: ASYNC110 - the turn continues during it
            await asyncio.sleep(0.01)
        await self.questions.approve(questions[0])


class AskBelow(ChatAgent):
    model = ScriptedModel(text("hello"))
    tools = (agent_tool(AskWithout),)


class AskAnybody(ChatAgent):
    model = ScriptedModel(call("pay", id="k"), text("paid"), each=True)

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self) -> str:
        """Pay."""
        return "paid"


class AskByHook(AskWithout):
    async def may_answer(self, user: Any, question: Question) -> bool:
        return True


class AskInCode(Agent):
    async def begin(self) -> None:
        await self.sub_agent(AskWithout, "below")

    async def begin_deeper(self) -> None:
        await self.sub_agent(AskBelow, "below")


def _authenticate(request: Any) -> User:
    return User(request.headers.get("who", "ann"))


@pytest.mark.parametrize("cls", [AskWithout, AskBelow])
async def test_an_app_with_users_does_not_start_if_a_tool_does_not_say_who_may_approve_it(
    cls: type[Agent[Any]], tmp_path: Path
) -> None:
    from sapwood import Settings

    with pytest.raises(UsageError) as told:
        async with App(agents=[cls], authenticate=_authenticate, settings=Settings(data=str(tmp_path))):
            pass

    assert "The tool 'pay' of AskWithout requires approval" in str(told.value)
    assert "approvers=ANY_CLIENT" in str(told.value)


@pytest.mark.parametrize("cls", [AskAnybody, AskByHook])
async def test_who_says_it_may_start(cls: type[Agent[Any]], tmp_path: Path) -> None:
    from sapwood import Settings

    async with App(agents=[cls], authenticate=_authenticate, settings=Settings(data=str(tmp_path))):
        pass


class GuardedClerk(ChatAgent):
    """Lets only the manager in."""

    model = ScriptedModel(call("pay", id="k", euros=5), text("paid"), each=True)
    paid: list[int]

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self, euros: int) -> str:
        """Pay."""
        GuardedClerk.paid.append(euros)
        return "paid"

    async def on_before_request(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        return None if request.headers.get("who") == "manager" else PlainTextResponse("Managers only.", 403)

    async def on_before_connect(self, request: Any) -> Any:
        return await self.on_before_request(request)


class GuardedOffice(ChatAgent):
    model = ScriptedModel(call("guarded_clerk", id="c1", message="pay"), text("done"), each=True)
    tools = (agent_tool(GuardedClerk),)


@pytest.mark.parametrize("door", ["http", "socket"])
async def test_the_gate_of_the_agent_that_asks_holds_for_answers_that_come_from_above(door: str) -> None:
    GuardedClerk.paid = []
    digest = Question.about("k", "pay", {"euros": 5}, "approval").digest
    path = [{"type": "GuardedClerk", "name": "agent-tool:c1"}]
    office = "/agents/guarded-office/o"
    async with asyncio.timeout(patience()), served(App(agents=[GuardedOffice])) as one:
        manager = await one.join(office, additional_headers={"who": "manager"})
        intern = await one.join(office, additional_headers={"who": "intern"})
        await say(manager, "r1", user("pay", "u1"))
        await manager.until(lambda frame: type_of(frame) == QUESTIONS)
        if door == "http":
            given = {"id": "k", "path": path, "approved": True, "arguments": {"euros": 9999}, "digest": digest}
            body = json.dumps(given).encode()
            refused = await one.site.http(f"{office}/questions", method="POST", body=body, headers={"who": "intern"})
            assert (refused.status, refused.text) == (403, "Managers only.")
        else:
            await intern.send({"type": "cf_agent_tool_approval", "toolCallId": "k", "approved": True, "path": path})
            told = await intern.until(lambda frame: type_of(frame) == QUESTIONS)
            assert told["questions"] == []
            assert told["refused"]["id"] == "k"
        assert GuardedClerk.paid == []
        assert intern.of_type(QUESTIONS)[:-1] == []


async def test_other_arguments_are_asked_about_like_the_ones_that_were_shown(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        much = desk.answer(0, arguments={"order": "A-99", "euros": 999_999})
        refused = await desk.http(f"{DESK}/questions", OTTO, much)

        assert (refused.status, refused.json()["refused"][:19]) == (403, "Refunds above 1,000")
        assert await desk.is_open()
        same = desk.answer(0, arguments={"order": "A-99", "euros": 25})
        assert (await desk.http(f"{DESK}/questions", OTTO, same)).status == 200
        await desk.until_booked()


async def test_a_trainee_does_not_answer_by_http_either(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        for depth in (0, 1, 2):
            assert (await desk.http(f"{desk.url(depth)}/questions", TIM, desk.answer(depth))).status == 403
        assert await desk.is_open()


async def test_a_run_stays_hidden_when_all_have_slept(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        ann = await desk.join(TICKET, ANN)
        await asleep(desk.world)
        assert (await desk.http(f"{DESK}/questions", OTTO, desk.answer(0))).status == 200
        await desk.until_booked()
        await ann.until(lambda frame: "25 euros" in json.dumps(frame))

        assert ann.of_type("agent-tool-event") == []


async def test_a_hook_that_raises_for_one_client_hides_nothing_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = Desk.may_answer

    async def fragile(self: Desk, user: User, question: Question) -> bool | str:
        if user.id == TIM:
            raise ValueError("broken")
        return await allowed(self, user, question)

    monkeypatch.setattr(Desk, "may_answer", fragile)
    async with asyncio.timeout(patience(60)), served(make_app(str(tmp_path))) as one:
        desk = DeskAtWork(one)
        first = await desk.join(DESK, TIM)
        await desk.ask()  # another operator sees the question

        assert first.of_type(QUESTIONS) == []
        assert (await desk.http(f"{DESK}/questions", TIM)).json() == {"questions": []}
        assert (await desk.http(f"{DESK}/questions", TIM, desk.answer(0))).status == 403
    assert "hook failed, client refused hook=may_answer address=Desk:acme" in caplog.text


async def test_a_question_of_a_class_that_is_gone_does_not_exist(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        gone = desk.answer(0, path=[{"type": "Nope", "name": "x"}])

        assert (await desk.http(f"{DESK}/questions", OTTO, gone)).status == 409


async def test_a_child_that_does_not_say_who_may_approve_is_not_created(tmp_path: Path) -> None:
    from sapwood import Settings

    async with App(agents=[AskInCode], authenticate=_authenticate, settings=Settings(data=str(tmp_path))) as app:
        with pytest.raises(UsageError, match="The tool 'pay' of AskWithout requires approval"):
            await (await app.get_agent(AskInCode, "a")).begin()
        with pytest.raises(UsageError, match="The tool 'pay' of AskWithout requires approval"):
            await (await app.get_agent(AskInCode, "a")).begin_deeper()


@pytest.mark.parametrize("cls", [AskWithout, AskBelow])
async def test_a_test_of_an_app_with_users_checks_who_may_approve_too(cls: type[Agent[Any]]) -> None:
    with pytest.raises(UsageError, match="The tool 'pay' of AskWithout requires approval"):
        async with running(App(agents=[cls], authenticate=_authenticate)):
            pass


async def pay_once() -> str:
    """Pay."""
    return "paid"


class InstanceToolPayer(ChatAgent):
    """Has a tool that only an instance knows."""

    model = ScriptedModel(call("pay_once", id="k"), text("paid"), each=True)

    @property
    def tools(self) -> Any:
        return (tool(requires_approval=True, approvers="operator")(pay_once),)


class InstanceToolDesk(ChatAgent):
    model = ScriptedModel(call("instance_tool_payer", id="c1", message="pay"), text("done"), each=True)
    tools = (agent_tool(InstanceToolPayer),)


async def test_questions_of_a_tool_of_an_instance_are_shown_above_only_while_the_agent_is_awake() -> None:
    desk = "/agents/instance-tool-desk/d"
    authenticate = lambda _: User("otto", claims={"roles": ["operator"]})  # noqa: E731
    async with (
        asyncio.timeout(patience()),
        served(App(agents=[InstanceToolDesk], authenticate=authenticate)) as one,
    ):
        client = await one.join(desk)
        await say(client, "r1", user("pay", "u1"))
        await client.until(lambda frame: type_of(frame) == QUESTIONS and frame["questions"])
        await client.close()
        await asleep(one.world)

        assert (await one.site.http(f"{desk}/questions")).json() == {"questions": []}
        own = await one.site.http(f"{desk}/sub/instance-tool-payer/agent-tool%3Ac1/questions")
        assert [question["id"] for question in own.json()["questions"]] == ["k"]
        assert [question["id"] for question in (await one.site.http(f"{desk}/questions")).json()["questions"]] == ["k"]


class RacePayer(ChatAgent):
    """Calls a tool of the client, a slow one of its own, and one that operators approve, in one response."""

    paid: list[int]
    gate: asyncio.Event
    model = ScriptedModel(calls(call("ask_page", id="c1"), call("think", id="t1"), call("pay", id="k")), text("done"))

    @tool
    async def think(self) -> str:
        """Think."""
        await RacePayer.gate.wait()
        return "thought"

    @tool(requires_approval=True, approvers="operator")
    async def pay(self) -> str:
        """Pay."""
        RacePayer.paid.append(1)
        return "paid"

    async def may_answer(self, user: Any, question: Question) -> bool:
        if question.kind == "client":
            RacePayer.gate.set()  # while the client's other answers are checked, the question opens
            async with asyncio.timeout(patience()):
                while not await self.questions.list():  # noqa: ASYNC110 - the turn continues during it
                    await asyncio.sleep(0)
        return True


async def test_a_question_that_opens_while_answers_are_checked_is_not_answered_by_them() -> None:
    RacePayer.paid, RacePayer.gate = [], asyncio.Event()
    path = "/agents/race-payer/r"
    async with (
        asyncio.timeout(patience()),
        served(App(agents=[RacePayer], authenticate=_authenticate)) as one,
    ):
        eve = await one.join(path)
        tools = [{"name": "ask_page", "description": "Ask.", "parameters": {"type": "object", "properties": {}}}]
        body = json.dumps({"messages": [user("go", "u1")], "clientTools": tools})
        init = {"method": "POST", "body": body}
        await eve.send({"type": "cf_agent_use_chat_request", "id": "r1", "init": init})
        await eve.until(lambda frame: '"toolCallId":"k"' in str(frame.get("body")))
        agent = await one.world.get_agent(RacePayer, "r")
        (message,) = {found for frame in eve.frames for found in re.findall(r'"messageId":"([^"]+)"', str(frame))}
        approval = {"state": "approval-responded", "approval": {"id": "k", "approved": True}}
        output = {"state": "output-available", "input": {}, "output": "yes"}
        parts = [
            {"type": "tool-pay", "toolCallId": "k", **approval},
            {"type": "tool-ask_page", "toolCallId": "c1", **output},
        ]
        said = json.dumps({"messages": [{"id": message, "role": "assistant", "parts": parts}]}).encode()
        posted = asyncio.create_task(one.site.http(f"{path}/chat", method="POST", body=said))
        async with asyncio.timeout(patience()):
            while not await agent.questions.list():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        await one.world.settled()
        posted.cancel()

        assert [one.id for one in await agent.questions.list()] == ["k"]
        assert RacePayer.paid == []


async def test_a_customer_who_clears_the_conversation_does_not_delete_the_decision(tmp_path: Path) -> None:
    async with desk_at_work(tmp_path) as desk:
        assert (await desk.http(f"{desk.url(0)}/questions", OTTO, desk.answer(0))).status == 200
        await desk.until_booked()
        ann = await desk.join(TICKET, ANN)

        await ann.send({"type": "cf_agent_chat_clear"})
        ticket = await desk.world.get_agent(Desk, "acme", sub=((Ticket, "ann"),))
        async with asyncio.timeout(patience()):
            while await ticket.conversation.messages():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
        await desk.world.settled()

        assert await desk.booked() == 25
        decision, outcome = (await (await desk.refunds()).conversation.export())["decisions"]
        assert (decision["kind"], decision["user"], outcome["kind"]) == ("approved", OTTO, "outcome")
