"""`questions.ask`: code asks a person, the question survives a crash, and every agent above can answer it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.conformance.errands import Bench
from tests.conformance.served import Served, served, type_of
from tests.conformance.worlds import Run, asleep, until
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Limits, Question, Refused, SapwoodError, tool
from sapwood.auth import ANY_CLIENT, User
from sapwood.errors import InvalidArguments, UsageError
from sapwood.runs.tables.decisions import Decisions
from sapwood.testing import ScriptedModel, World, call, text
from sapwood.types import PathSegment

DAY = 86400.0


class Order(BaseModel):
    dish: str
    portions: int = Field(ge=1)


@dataclass
class Place:
    table: int


class Asks(Agent):
    """Asks in fibers, and notes what it was answered."""

    deps: Bench
    migrations = ("CREATE TABLE answers (text TEXT NOT NULL) STRICT",)

    async def begin(self, method: str = "two") -> None:
        self.start_fiber("ask", getattr(self, method))

    async def two(self) -> str:
        self.deps.log.append("begun")
        color = await self.questions.ask("Which color?", options=["red", "blue"])
        name = await self.questions.ask("Which name?")
        self.sql("INSERT INTO answers VALUES (?)", f"{color} {name}")
        return f"{color} {name}"

    async def form(self) -> str:
        order = await self.questions.ask("What do you want?", schema=Order)
        return f"{type(order).__name__}: {order.portions} {order.dish}"

    async def place(self) -> str:
        place = await self.questions.ask("Where?", schema=Place)
        return f"{type(place).__name__} {place.table}"

    async def plain_form(self) -> Any:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        return await self.questions.ask("How many?", schema=schema, key="many")

    async def denied(self) -> str:
        try:
            return await self.questions.ask("May I?")
        except Refused as refused:
            return f"refused: {refused}"

    async def impatient(self) -> str:
        return await self._try_twice(None)

    async def impatient_with_a_key(self) -> str:
        return await self._try_twice("now")

    async def _try_twice(self, key: str | None) -> str:
        for attempt in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(30):
                    return await self.questions.ask(f"Now? {attempt}", key=key)
        return "nobody came"

    async def out_of_time(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                return await self.questions.ask("Now? 0", key="now")
        self.deps.log.append("out of time")
        await asyncio.sleep(30)
        return await self.questions.ask("Now? 1", key="now")

    async def twice_the_same_key(self) -> str:
        await asyncio.gather(*(self.questions.ask("What?", key="k") for _ in range(2)))
        return ""

    async def ask_now(self) -> str:
        return await self.questions.ask("Now?")

    async def outcome(self) -> Any:
        return await self.fibers.result("ask")

    async def state_of_fiber(self) -> str:
        fiber = self.fibers.get("ask")
        return "none" if fiber is None else fiber.status

    async def stop(self) -> bool:
        return self.fibers.cancel("ask")

    async def answers(self) -> list[str]:
        return [str(row["text"]) for row in self.sql("SELECT text FROM answers")]

    async def decided(self) -> list[tuple[str, str, Any, Any]]:
        found = [one.told() for one in self._actor.of(Decisions).all()]
        return [(one["kind"], one["tool"], one["shown"]["prompt"], one["arguments"] or one["reason"]) for one in found]


async def listed(agent: Any, prompt: str) -> Question:
    """Return the open question with this prompt, once the agent lists it."""
    async with asyncio.timeout(patience()):
        while True:
            for question in await agent.questions.list():
                if question.prompt == prompt:
                    return question
            await asyncio.sleep(0.005)


async def test_code_asks_for_a_choice_and_a_text_and_the_decisions_are_recorded(run: Run) -> None:
    async with run(Asks, deps=Bench()) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin()
        choice = await listed(agent, "Which color?")
        assert (choice.kind, choice.options, choice.schema) == ("choice", ("red", "blue"), None)

        with pytest.raises(InvalidArguments, match="must be one of 'red', 'blue'"):
            await agent.questions.answer(choice, "green")
        assert await agent.questions.answer(choice, "blue")
        assert not await agent.questions.answer(choice, "red")
        name = await listed(agent, "Which name?")
        with pytest.raises(InvalidArguments, match="must be a text"):
            await agent.questions.answer(name, 1)
        with pytest.raises(InvalidArguments, match="asks for a value"):
            await agent.questions.approve(name)
        assert await agent.questions.answer(name.id, "Ann")

        assert await agent.outcome() == "blue Ann"
        assert await agent.questions.list() == []
        assert await agent.decided() == [
            ("answered", "ask", "Which color?", "blue"),
            ("answered", "ask", "Which name?", "Ann"),
        ]


async def test_code_asks_for_a_form_and_receives_the_type_of_its_schema(run: Run) -> None:
    async with run(Asks, deps=Bench()) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin("form")
        question = await listed(agent, "What do you want?")
        assert question.schema is not None
        assert question.kind == "form"
        assert set(question.schema["properties"]) == {"dish", "portions"}
        for wrong, why in (
            ({"dish": "soup"}, "'portions' is missing"),
            ({"dish": "soup", "portions": 0}, "at least 1"),
            ({"dish": 3, "portions": 1}, "must be of type string"),
            ("soup", "must be of type object"),
        ):
            with pytest.raises(InvalidArguments, match=why):
                await agent.questions.answer(question, wrong)
        assert await agent.questions.answer(question, {"dish": "soup", "portions": 2})
        assert await agent.outcome() == "Order: 2 soup"


@pytest.mark.parametrize(
    ("method", "prompt", "value", "result"),
    [("place", "Where?", {"table": 4}, "Place 4"), ("plain_form", "How many?", {"n": 3}, {"n": 3})],
)
async def test_a_schema_is_a_type_or_a_json_schema(run: Run, method: str, prompt: str, value: Any, result: Any) -> None:
    async with run(Asks, deps=Bench()) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin(method)
        assert await agent.questions.answer(await listed(agent, prompt), value)
        assert await agent.outcome() == result


async def test_a_denied_question_raises_refused_in_the_code_that_asks(run: Run) -> None:
    async with run(Asks, deps=Bench()) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin("denied")
        assert await agent.questions.deny(await listed(agent, "May I?"), "not today")
        assert await agent.outcome() == "refused: not today"
        assert await agent.decided() == [("denied", "ask", "May I?", "not today")]


async def test_outside_of_a_fiber_ask_is_refused_in_a_sentence(run: Run) -> None:
    async with run(Asks, deps=Bench()) as world:
        agent = await world.get_agent(Asks, "a")
        with pytest.raises(UsageError, match=r"questions\.ask\(\) must be called in a fiber, a run or a turn"):
            await agent.ask_now()


async def test_two_questions_of_a_fiber_cannot_have_the_same_key(run: Run) -> None:
    async with run(Asks, deps=Bench()) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin("twice_the_same_key")
        with pytest.raises(SapwoodError, match="unique in its fiber, got 'k'"):
            await agent.outcome()
        assert await agent.questions.list() == []


async def test_a_fiber_that_waits_long_leaves_the_memory_and_the_answer_resumes_it(run: Run) -> None:
    bench = Bench()
    async with run(Asks, deps=bench) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin()
        await listed(agent, "Which color?")
        await world.clock.advance(120)
        assert await agent.state_of_fiber() == "waiting"
        await asleep(world)
        await world.crash()
        await world.clock.advance(DAY)

        agent = await world.get_agent(Asks, "a")
        assert await agent.questions.answer(await listed(agent, "Which color?"), "red")
        assert await agent.questions.answer(await listed(agent, "Which name?"), "Bob")
        assert await agent.outcome() == "red Bob"


async def test_a_question_survives_more_crashes_than_a_fiber_that_gets_nowhere(run: Run) -> None:
    async with run(Asks, deps=Bench()) as world:
        await (await world.get_agent(Asks, "a")).begin()
        for _ in range(8):
            await listed(await world.get_agent(Asks, "a"), "Which color?")
            await world.crash()
            await world.clock.advance(1)
        agent = await world.get_agent(Asks, "a")
        assert await agent.questions.answer(await listed(agent, "Which color?"), "red")


@pytest.mark.slow
async def test_killed_at_any_commit_each_question_is_asked_once_and_its_answer_counts_once(run: Run) -> None:
    async def answer_all(world: World) -> Any:
        agent = await world.get_agent(Asks, "a")
        await agent.begin()
        for prompt, value in (("Which color?", "red"), ("Which name?", "Ann")):
            async with asyncio.timeout(patience()):
                while await agent.state_of_fiber() in ("running", "waiting"):
                    known = await agent.questions.list()
                    if question := next((one for one in known if one.prompt == prompt), None):
                        await agent.questions.answer(question, value)
                        break
                    if prompt == "Which color?" and any(one.prompt == "Which name?" for one in known):
                        break
                    await asyncio.sleep(0.005)
        return await agent.outcome()

    nth, passed = 0, True
    while passed:
        nth += 1
        async with run(Asks, deps=Bench()) as world:
            before = world.points.passed["committed"]
            world.crash_at("committed", nth)
            with contextlib.suppress(SapwoodError):
                await answer_all(world)
            await world.settled()
            passed = world.points.passed["committed"] >= before + nth
            await world.crash()

            assert await answer_all(world) == "red Ann", nth
            agent = await world.get_agent(Asks, "a")
            assert await agent.answers() == ["red Ann"], nth
            assert await agent.questions.list() == []
            assert len(await agent.decided()) == 2, nth
    assert nth > 5


async def test_the_end_of_the_fiber_closes_its_question(run: Run) -> None:
    async with run(Asks, deps=Bench()) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin()
        question = await listed(agent, "Which color?")
        assert await agent.stop()
        assert await agent.questions.list() == []
        assert not await agent.questions.answer(question, "red")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["impatient", "impatient_with_a_key"])
async def test_code_that_stops_waiting_withdraws_its_question(run: Run, method: str) -> None:
    async with run(Asks, deps=Bench()) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin(method)
        first = await listed(agent, "Now? 0")
        await world.clock.advance(31)
        await listed(agent, "Now? 1")
        assert not await agent.questions.answer(first, "yes")
        await world.clock.advance(31)
        assert await agent.outcome() == "nobody came"
        assert await agent.questions.list() == []


async def test_code_that_stops_waiting_before_the_question_is_durable_withdraws_it(run: Run) -> None:
    bench = Bench()
    async with run(Asks, deps=bench) as world:
        agent = await world.get_agent(Asks, "a")
        await agent.begin("out_of_time")
        await until(lambda: "out of time" in bench.log)
        assert await agent.questions.list() == []
        await world.clock.advance(31)
        assert await agent.questions.answer(await listed(agent, "Now? 1"), "yes")
        assert await agent.outcome() == "yes"


class AskLowest(Agent):
    """Asks in a run."""

    deps: Bench

    async def on_run(self, input: str) -> str:
        self.deps.log.append("asks")
        return await self.questions.ask(input, options=["yes", "no"])


class AskMiddle(Agent):
    async def on_run(self, input: str) -> str:
        run = await self.run_agent(AskLowest, input, run_id="low")
        return str(run.output if run.ok else run.reason)


class AskBoss(Agent):
    """Has a run two levels down ask."""

    async def begin(self) -> None:
        await self.start_run(AskMiddle, "Go?", run_id="mid", idle_timeout=timedelta(seconds=30))

    async def stop(self) -> bool:
        return self.runs.cancel("mid", "enough")

    async def outcome(self) -> tuple[str, Any]:
        run = self.runs.get("mid")
        assert run is not None
        over = await run.result()
        return over.status, over.output

    async def status(self) -> str | None:
        run = self.runs.get("mid")
        return None if run is None else run.status


PATH = (PathSegment("AskMiddle", "mid"), PathSegment("AskLowest", "low"))


async def test_a_run_two_levels_down_asks_and_the_root_answers_after_a_crash_and_a_day(run: Run) -> None:
    async with run(AskBoss, deps=Bench()) as world:
        boss = await world.get_agent(AskBoss, "b")
        await boss.begin()
        question = await listed(boss, "Go?")
        assert question.path == PATH
        middle = await world.get_agent(AskBoss, "b", sub=[(AskMiddle, "mid")])
        assert (await listed(middle, "Go?")).path == PATH[1:]
        await world.clock.advance(DAY / 2)
        assert await boss.status() == "running"
        await world.crash()
        await world.clock.advance(60)

        boss = await world.get_agent(AskBoss, "b")
        assert (await listed(boss, "Go?")).id == question.id
        assert await boss.questions.answer(question, "yes")
        assert await boss.outcome() == ("completed", "yes")
        assert await boss.questions.list() == []


async def test_cancelling_the_run_closes_the_question_at_every_agent_above(run: Run) -> None:
    async with run(AskBoss, deps=Bench()) as world:
        boss = await world.get_agent(AskBoss, "b")
        await boss.begin()
        question = await listed(boss, "Go?")
        assert await boss.stop()
        assert (await boss.outcome())[0] == "cancelled"
        async with asyncio.timeout(patience()):
            while await boss.questions.list():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        assert not await boss.questions.answer(question, "yes")


class AskGuarded(Agent):
    """Asks managers, in an app that authenticates."""

    deps: Bench

    async def begin(self, method: str) -> None:
        self.start_fiber("ask", getattr(self, method))

    async def of_managers(self) -> str:
        return await self.questions.ask("Pay?", options=["yes", "no"], approvers="manager")

    async def of_all(self) -> str:
        return await self.questions.ask("Pay?", options=["yes", "no"], approvers=ANY_CLIENT)

    async def of_nobody(self) -> str:
        return await self.questions.ask("Pay?")

    async def outcome(self) -> Any:
        return await self.fibers.result("ask")

    async def users(self) -> list[str | None]:
        return [one.user for one in self._actor.of(Decisions).all()]


class AskRoot(Agent):
    """Has a guarded agent below it."""

    async def begin(self, method: str) -> None:
        await (await self.sub_agent(AskGuarded, "g")).begin(method)


def authenticate(request: Any) -> User | None:
    who = request.headers.get("who")
    return None if who is None else User(who, claims={"roles": ["manager"] if who == "ann" else []})


WHERE = "/agents/ask-root/r/questions"


async def post(one: Served, who: str, **body: Any) -> Any:
    told = {"path": [{"type": "AskGuarded", "name": "g"}], **body}
    return await one.site.http(WHERE, method="POST", headers={"who": who}, body=json.dumps(told).encode())


async def test_over_http_only_users_with_the_role_see_and_answer_the_question() -> None:
    async with served(App(agents=[AskRoot], deps=Bench(), authenticate=authenticate)) as one:
        root = await one.world.get_agent(AskRoot, "r")
        await root.begin("of_managers")
        question = await listed(root, "Pay?")
        shown = (await one.site.http(WHERE, headers={"who": "ann"})).json()["questions"]
        assert shown == [
            {
                "path": [{"type": "AskGuarded", "name": "g"}],
                "id": question.id,
                "kind": "choice",
                "prompt": "Pay?",
                "options": ["yes", "no"],
                "digest": question.digest,
            }
        ]
        assert (await one.site.http(WHERE, headers={"who": "bob"})).json() == {"questions": []}

        refused = await post(one, "bob", id=question.id, output="yes")
        assert (refused.status, refused.json()["answered"]) == (403, False)
        assert (await post(one, "ann", id=question.id, output="perhaps")).status == 400
        assert (await post(one, "ann", id=question.id, output="yes", digest="0")).status == 409
        taken = await post(one, "ann", id=question.id, output="yes", digest=question.digest)
        assert (taken.status, taken.json()) == (200, {"answered": True})
        assert (await post(one, "ann", id=question.id, output="no")).status == 409

        child = await one.world.get_agent(AskRoot, "r", sub=[(AskGuarded, "g")])
        assert await child.outcome() == "yes"
        assert await child.users() == ["ann"]


async def test_with_authentication_a_question_has_to_say_who_may_answer_it() -> None:
    async with served(App(agents=[AskRoot], deps=Bench(), authenticate=authenticate)) as one:
        root = await one.world.get_agent(AskRoot, "r")
        await root.begin("of_nobody")
        child = await one.world.get_agent(AskRoot, "r", sub=[(AskGuarded, "g")])
        with pytest.raises(SapwoodError, match="has to say who may answer"):
            await child.outcome()


async def test_any_client_may_answer_if_the_question_says_so() -> None:
    async with served(App(agents=[AskRoot], deps=Bench(), authenticate=authenticate)) as one:
        root = await one.world.get_agent(AskRoot, "r")
        await root.begin("of_all")
        question = await listed(root, "Pay?")
        assert (await post(one, "bob", id=question.id, output="no")).status == 200


def open_at(path: list[Any], count: int) -> Any:
    return lambda frame: (
        type_of(frame) == "sapwood_questions" and frame["path"] == path and len(frame["questions"]) == count
    )


@pytest.mark.parametrize("level", [0, 1])
async def test_clients_of_the_agent_and_of_those_above_are_sent_the_question_and_answer_it(level: int) -> None:
    class AskDesk(Agent):
        async def begin(self) -> None:
            await (await self.sub_agent(Asks, "a")).begin()

    async with served(App(agents=[AskDesk, Asks], deps=Bench())) as one:
        await (await one.world.get_agent(AskDesk, "d")).begin()
        url, path = "/agents/ask-desk/d", [{"type": "Asks", "name": "a"}]
        if level:
            url, path = f"{url}/sub/asks/a", []
        early = await one.join(url)
        frame = await early.until(open_at(path, 1))
        (shown,) = frame["questions"]
        assert (shown["kind"], shown["prompt"], shown["options"]) == ("choice", "Which color?", ["red", "blue"])
        answer = {"type": "cf_agent_tool_result", "toolCallId": shown["id"], "path": path, "output": "green"}
        await early.send(answer)
        refused = await early.until(lambda frame: type_of(frame) == "sapwood_questions" and "refused" in frame)
        assert "one of" in refused["refused"]["reason"]
        await early.send(answer | {"output": "red"})
        late = await one.join(url)
        told = await late.until(lambda frame: open_at(path, 1)(frame) and "name" in frame["questions"][0]["prompt"])
        deny = {"type": "cf_agent_tool_approval", "toolCallId": told["questions"][0]["id"], "path": path}
        await late.send(deny | {"approved": False})
        await late.until(open_at(path, 0))
        child = await one.world.get_agent(AskDesk, "d", sub=[(Asks, "a")])
        with pytest.raises(SapwoodError, match="The question was denied"):
            await child.outcome()


async def test_an_answer_that_the_fiber_could_not_store_is_refused() -> None:
    async with served(App(agents=[Asks], deps=Bench())) as one:
        agent = await one.world.get_agent(Asks, "a")
        await agent.begin("plain_form")
        question = await listed(agent, "How many?")

        async def send(n: int) -> Any:
            body = json.dumps({"id": question.id, "output": {"n": n}}).encode()
            return await one.site.http("/agents/asks/a/questions", method="POST", body=body)

        refused = await send(10**30)
        assert (refused.status, refused.json()["answered"]) == (400, False)
        assert "`n` in it is an integer of more than 64 bits" in refused.json()["refused"]
        assert (await send(2**63)).status == 200
        assert await agent.outcome() == {"n": 2**63}


async def test_an_answer_that_is_too_large_is_refused_with_the_same_sentence_in_a_frame_and_over_http() -> None:
    async with served(App(agents=[Asks], deps=Bench()), limits=Limits(payload_bytes=5000)) as one:
        agent = await one.world.get_agent(Asks, "a")
        await agent.begin("denied")
        question = await listed(agent, "May I?")
        client = await one.join("/agents/asks/a")
        answer = {"type": "cf_agent_tool_result", "toolCallId": question.id, "path": []}
        await client.send(answer | {"output": "x" * 6000})
        refused = await client.until(lambda frame: type_of(frame) == "sapwood_questions" and "refused" in frame)
        assert "at most 5000 bytes" in refused["refused"]["reason"]
        body = json.dumps({"id": question.id, "output": "x" * 6000}).encode()
        posted = await one.site.http("/agents/asks/a/questions", method="POST", body=body)
        assert (posted.status, posted.json()) == (429, {"answered": False, "refused": refused["refused"]["reason"]})
        await client.send(answer | {"output": "yes"})
        assert await agent.outcome() == "yes"


class AskWaiter(ChatAgent):
    """Asks in a tool."""

    deps: Bench
    model = ScriptedModel(call("order", id="c1"), text("Enjoy it."), each=True)

    @tool(idempotent=True)
    async def order(self) -> str:
        """Order."""
        return await self.questions.ask("Which dish?")


class Forgetful(ChatAgent):
    """Asks in a tool that is not called again after a crash."""

    deps: Bench
    model = ScriptedModel(call("order", id="c1"), text("A pity."), each=True)

    @tool
    async def order(self) -> str:
        """Order."""
        return await self.questions.ask("Which dish?")


async def test_a_tool_asks_in_a_turn_also_through_a_crash_if_it_is_idempotent(run: Run) -> None:
    async with run(AskWaiter, deps=Bench()) as world:
        waiter = await world.get_agent(AskWaiter, "w")
        await waiter.turns.start("Hello", id="t1")
        question = await listed(waiter, "Which dish?")
        await world.crash()
        await world.clock.advance(5)
        waiter = await world.get_agent(AskWaiter, "w")
        assert (await listed(waiter, "Which dish?")).id == question.id
        assert await waiter.questions.answer(question, "soup")
        turn = await waiter.turns.wait("t1")
        assert (turn.status, turn.text) == ("completed", "Enjoy it.")
        assert "soup" in json.dumps(await waiter.conversation.messages())
        assert await waiter.questions.list() == []


async def test_the_question_of_a_tool_that_is_not_called_again_is_closed(run: Run) -> None:
    async with run(Forgetful, deps=Bench()) as world:
        waiter = await world.get_agent(Forgetful, "w")
        await waiter.turns.start("Hello", id="t1")
        await listed(waiter, "Which dish?")
        await world.crash()
        await world.clock.advance(5)
        waiter = await world.get_agent(Forgetful, "w")
        assert (await waiter.turns.wait("t1")).text == "A pity."
        assert await waiter.questions.list() == []


async def test_cancelling_the_turn_closes_the_question_of_its_tool(run: Run) -> None:
    async with run(AskWaiter, deps=Bench()) as world:
        waiter = await world.get_agent(AskWaiter, "w")
        await waiter.turns.start("Hello", id="t1")
        await listed(waiter, "Which dish?")
        await waiter.turns.cancel("t1")
        assert (await waiter.turns.wait("t1")).status == "cancelled"
        async with asyncio.timeout(patience()):
            while await waiter.questions.list():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"prompt": " "}, "prompt of a question"),
        ({"options": []}, "options of a question"),
        ({"options": ["a", "a"]}, "options of a question"),
        ({"options": "ab"}, "options of a question"),
        ({"options": ["a"], "schema": Order}, "either options or a schema"),
        ({"schema": object}, "JSON schema"),
        ({"schema": {"type": "string", "contains": 1}}, "keyword 'contains'"),
        ({"schema": {"$ref": "#/$defs/None"}}, "not in its"),
        ({"approvers": []}, "approvers="),
        ({"key": ""}, "key of a question"),
    ],
)
async def test_a_question_that_cannot_be_asked_is_refused_in_a_sentence(
    run: Run, arguments: dict[str, Any], why: str
) -> None:
    class Wrong(Agent):
        async def begin(self) -> None:
            self.start_fiber("ask", self.go)

        async def go(self) -> None:
            await self.questions.ask(**{"prompt": "What?", **arguments})

        async def outcome(self) -> Any:
            return await self.fibers.result("ask")

    async with run(Wrong) as world:
        agent = await world.get_agent(Wrong, "a")
        await agent.begin()
        with pytest.raises(SapwoodError, match=why):
            await agent.outcome()
