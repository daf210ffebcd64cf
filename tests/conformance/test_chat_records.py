"""What an agent did and what its model was sent is recorded: with crashes, approvals, retries and helpers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.conformance.chats import Talking, talker
from tests.conformance.runtimes import operator, running

from sapwood import Agent, App, Limits, Retention, agent_tool, tool
from sapwood.admin.admin import Admin
from sapwood.errors import NotFound, OverLimit, Unavailable, UsageError
from sapwood.storage.database import Database
from sapwood.testing import ScriptedModel, World, call, calls, fails, text
from sapwood.testing import running as running_here
from sapwood.when import After, Every

Row = tuple[str, str, int | None, int, str]
"""Kind, name, step, attempt and status of a span."""


class Looking(Talking):
    """Has a tool, and one that a person has to approve."""

    @tool
    async def look(self, about: str) -> str:
        """Look something up."""
        return about.upper()

    @tool(requires_approval=True)
    async def pay(self, amount: int) -> str:
        """Pay."""
        return f"paid {amount}"


async def told(world: World, address: str = "Talker:t", turn: str | None = None, **more: Any) -> dict[str, Any]:
    return await operator(world, address).explain(address, turn, **more)


async def rows(world: World, turn: str, address: str = "Talker:t") -> list[Row]:
    found = (await told(world, address, turn))["spans"]
    return [(one["kind"], one["name"], one["step"], one["attempt"], one["status"]) for one in found]


async def sent(world: World, turn: str, step: int) -> list[Any]:
    """Return the bodies of the requests of a step."""
    found = await told(world, turn=turn, step=step)
    return [msgspec.json.decode(one["body"]) for one in found["requests"]]


def said(body: Any) -> str:
    """Return all text of the messages that a model was sent."""
    return msgspec.json.encode(body["messages"]).decode()


async def test_every_request_and_every_tool_call_of_a_turn_is_recorded() -> None:
    model = ScriptedModel(calls(call("look", about="a", id="c1"), call("look", about="b", id="c2")), text("done"))
    cls = talker(model, base=Looking, instructions="Be short.")
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("hello")

        assert await rows(world, turn.id) == [
            ("turn", "Talker", None, 1, "completed"),
            ("step", "scripted", 1, 1, "completed"),
            ("tool", "look", 1, 1, "completed"),
            ("tool", "look", 1, 1, "completed"),
            ("step", "scripted", 2, 1, "completed"),
        ]
        spans = (await told(world, turn=turn.id))["spans"]
        assert [one["facts"]["arguments"] for one in spans[2:4]] == ['{"about":"a"}', '{"about":"b"}']
        assert {one["facts"]["result_bytes"] for one in spans[2:4]} == {3}
        assert spans[1]["facts"]["input_tokens"] > 0
        (first,) = await sent(world, turn.id, 1)
        (second,) = await sent(world, turn.id, 2)
        assert "Be short." in str(first["parameters"])
        assert "hello" in said(first)
        assert "tool-return" in said(second)
        assert [one["name"] for one in first["parameters"]["function_tools"]] == ["look", "pay"]


async def test_what_requests_have_in_common_is_stored_once() -> None:
    cls = talker(ScriptedModel(text("yes"), each=True), base=Looking, instructions="x" * 5000)
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        for number in range(10):
            turn = await agent.send(f"message {number}")

        ((texts, size),) = await counted(world, "SELECT count(*), sum(length(body)) FROM sapwood_sent_texts")
        # One for the tools; of the messages, the last of each request holds the instructions.
        assert texts <= 1 + 3 * 10
        assert size < 10 * 5000 + 40_000
        (last,) = await sent(world, turn.id, 1)
        assert [f"message {number}" in said(last) for number in range(10)] == [True] * 10


async def counted(world: World, sql: str) -> list[Any]:
    answer = await operator(world, "Talker:t").sql("Talker:t", sql, [])
    return answer["rows"]


@pytest.mark.core("workers", "cluster", "temporal")
async def test_a_step_that_a_crash_interrupts_is_followed_by_another_attempt() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(call("look", about="a", id="c1"), text("never heard", gate=gate), text("heard"))
    cls = talker(model, base=Looking)
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        turn = (await agent.turns.start("hello")).id
        await world.until(lambda: len(model.asked) == 2)
        while not await sent(world, turn, 2):  # noqa: ASYNC110 - a commit tells nobody
            await asyncio.sleep(0.01)
        await world.crash()
        agent = await world.get_agent(cls, "t")
        assert (await agent.turns.wait(turn)).text == "heard"

        assert await rows(world, turn) == [
            ("turn", "Talker", None, 1, "completed"),
            ("step", "scripted", 1, 1, "completed"),
            ("tool", "look", 1, 1, "completed"),
            ("step", "scripted", 2, 1, "interrupted"),
            ("step", "scripted", 2, 2, "completed"),
        ]
        spans = (await told(world, turn=turn))["spans"]
        assert [one["incarnation"] for one in spans] == [1, 1, 1, 1, 2]
        assert len(await sent(world, turn, 1)) == 1
        assert len(await sent(world, turn, 2)) == 2


async def test_a_tool_that_a_crash_interrupts_is_recorded_as_failed_and_its_retry_as_another_attempt() -> None:
    class Slow(Talking):
        held = asyncio.Event()
        begun = 0

        @tool(idempotent=True)
        async def wait(self) -> str:
            """Wait."""
            type(self).begun += 1
            if type(self).begun == 1:
                await self.held.wait()
            return "over"

    cls = talker(ScriptedModel(call("wait", id="c1"), text("done")), base=Slow)
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        turn = (await agent.turns.start("hello")).id
        await world.until(lambda: cls.begun == 1)
        await world.crash()
        agent = await world.get_agent(cls, "t")
        await agent.turns.wait(turn)

        tools = [row for row in await rows(world, turn) if row[0] == "tool"]
        assert tools == [("tool", "wait", 1, 1, "interrupted"), ("tool", "wait", 1, 2, "completed")]


@pytest.mark.parametrize("approved", [True, False])
async def test_the_wait_for_a_person_and_the_decision_are_recorded(approved: bool) -> None:
    cls = talker(ScriptedModel(call("pay", amount=3, id="c1"), text("done")), base=Looking)
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("pay")
        assert turn.status == "waiting"
        assert (await rows(world, turn.id))[0] == ("turn", "Talker", None, 1, "waiting")
        assert (await rows(world, turn.id))[-1] == ("wait", "approval", 1, 1, "running")
        await world.restart()
        agent = await world.get_agent(cls, "t")

        (question,) = await agent.questions.list()
        await (agent.questions.approve(question) if approved else agent.questions.deny(question, reason="no"))
        await agent.turns.wait(turn.id)

        assert (await rows(world, turn.id))[2:] == [
            ("wait", "approval", 1, 1, "completed"),
            ("tool", "pay", 1, 1, "completed" if approved else "skipped"),
            ("step", "scripted", 2, 1, "completed"),
        ]
        spans = (await told(world, turn=turn.id))["spans"]
        assert [one["facts"]["decision"] for one in spans[2:4]] == [["denied", "approved"][approved]] * 2


@pytest.fixture
def overloaded() -> Callable[[], Exception]:
    from pydantic_ai.exceptions import ModelOverloadedError

    return lambda: ModelOverloadedError("scripted", "busy")


async def test_a_request_that_fails_and_is_repeated_is_an_attempt_each(overloaded: Callable[[], Exception]) -> None:
    model = ScriptedModel(fails(overloaded()), text("done"))
    cls = talker(model)
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        turn = (await agent.turns.start("hello")).id
        await world.until(lambda: len(model.asked) == 1)
        await world.clock.advance(30)
        await agent.turns.wait(turn)

        assert (await rows(world, turn))[1:] == [
            ("step", "scripted", 1, 1, "failed"),
            ("step", "scripted", 1, 2, "completed"),
        ]


async def test_a_helper_is_a_run_of_its_parent_and_has_records_of_its_own() -> None:
    helper = type("Clerk", (Talking,), {"model": ScriptedModel(text("found"), each=True), "__doc__": "Finds."})
    cls = talker(ScriptedModel(call("clerk", id="h1", message="search"), text("done")), tools=[agent_tool(helper)])
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("hello")

        assert ("run", "Clerk", None, 1, "completed") in await rows(world, turn.id)
        (run,) = [one for one in (await told(world, turn=turn.id))["spans"] if one["kind"] == "run"]
        spans = (await told(world, f"Talker:t/Clerk:{run['facts']['child']}"))["spans"]
        assert [one["kind"] for one in spans] == ["turn"]


async def test_calls_and_fibers_are_recorded_with_their_attempts() -> None:
    class Keeper(Agent):
        async def later(self) -> None:
            self.schedule(After(timedelta(seconds=5)), self.ring)
            self.start_fiber("import", self.load)

        async def ring(self) -> None:
            if not self.sql("SELECT 1 FROM sqlite_schema WHERE name = 'rung'"):
                self.sql("CREATE TABLE IF NOT EXISTS rung (v)")
                await self.flush()
                raise ValueError("not the first time")

        async def load(self) -> str:
            return "loaded"

    async with running(App(agents=[Keeper])) as world:
        keeper = await world.get_agent(Keeper, "k")
        await keeper.later()
        await world.clock.advance(10)
        await world.settled()

        found = (await told(world, "Keeper:k"))["spans"]
        listed = [(one["kind"], one["name"], one["attempt"], one["status"]) for one in reversed(found)]
        assert sorted(listed) == [
            ("call", "ring", 1, "failed"),
            ("call", "ring", 2, "completed"),
            ("fiber", "import", 1, "completed"),
        ]


async def test_a_class_that_keeps_no_records_has_no_tables_for_them() -> None:
    cls = talker(ScriptedModel(text("yes")), record_retention=None)
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("hello")

        assert await counted(world, "SELECT name FROM sqlite_schema WHERE name LIKE 'sapwood_s%nt%'") == []
        with pytest.raises(NotFound, match="no record"):
            await told(world, turn=turn.id)


@pytest.mark.slow
async def test_old_records_are_deleted_with_what_only_they_had() -> None:
    cls = talker(ScriptedModel(text("yes"), each=True), record_retention=Retention(count=5))
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        for number in range(70):
            await agent.send(f"message {number}")

        ((turns,),) = await counted(world, "SELECT count(*) FROM sapwood_spans WHERE kind = 'turn'")
        assert 5 <= turns < 70
        assert await counted(
            world, "SELECT count(*) FROM sapwood_model_requests WHERE span NOT IN (SELECT number FROM sapwood_spans)"
        ) == [[0]]
        last = await agent.send("the last")
        (body,) = await sent(world, last.id, 1)
        assert "message 0" in said(body)  # still whole, though the request that had it first is gone


async def test_old_incarnations_are_deleted_with_their_records() -> None:
    """An agent that a schedule wakes for years has a new incarnation each time."""

    class Keeper(Agent):
        record_retention = Retention(count=2)

        async def begin(self) -> None:
            self.schedule(Every(timedelta(hours=1)), self.ring)

        async def ring(self) -> None:
            pass

    async with running_here(App(agents=[Keeper])) as world:
        await (await world.get_agent(Keeper, "k")).begin()
        for _ in range(8):
            await world.clock.advance(3600)
            await world.settled()
            await world.restart()

        found = await Admin(world.node).sql("Keeper:k", "SELECT min(number), max(number) FROM sapwood_incarnations", [])
        assert found["rows"] == [[7, 8]]
        spans = (await told(world, "Keeper:k"))["spans"]
        assert [one["incarnation"] for one in spans] == [8, 7]


async def test_a_database_that_is_full_is_not_recorded_in_and_its_agent_works() -> None:
    class Full(Agent):
        limits = Limits(database_bytes=200_000)
        migrations = ("CREATE TABLE big (v TEXT) STRICT",)
        attempts = 0

        async def plan(self) -> None:
            self.schedule(After(timedelta(seconds=5)), self.work)

        async def fill(self, size: int) -> None:
            self.sql("INSERT INTO big VALUES (?)", "x" * size)

        async def empty(self) -> None:
            self.sql("DELETE FROM big")
            await self.plan()

        async def work(self) -> None:
            type(self).attempts += 1
            self.sql("INSERT INTO big VALUES ('y')")

        async def failed(self) -> int:
            return len(self.dead_letters.list())

    async with running_here(App(agents=[Full])) as world:
        await (await world.get_agent(Full, "f")).plan()
        size = 100_000
        while size:
            try:
                await (await world.get_agent(Full, "f")).fill(size)
            except (OverLimit, Unavailable):
                size //= 2
        full = await world.get_agent(Full, "f")
        await world.clock.advance(60)
        await world.settled()

        assert await full.failed() == 1
        assert (await told(world, "Full:f"))["spans"] == []
        await full.empty()
        await world.clock.advance(60)
        await world.settled()
        assert [one["status"] for one in (await told(world, "Full:f"))["spans"]] == ["completed"]


async def test_a_cleared_conversation_leaves_no_records() -> None:
    cls = talker(ScriptedModel(text("yes"), each=True))
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        await agent.send("a secret")
        await agent.conversation.clear()

        assert await counted(world, "SELECT count(*) FROM sapwood_spans") == [[0]]
        assert await counted(world, "SELECT count(*) FROM sapwood_sent_texts") == [[0]]
        turn = await agent.send("hello")
        (body,) = await sent(world, turn.id, 1)
        assert "a secret" not in said(body)


async def recorded(world: World) -> int:
    """Return the number of spans and texts of the talker."""
    ((spans,),) = await counted(world, "SELECT count(*) FROM sapwood_spans")
    ((texts,),) = await counted(world, "SELECT count(*) FROM sapwood_sent_texts")
    return spans + texts


async def test_a_turn_that_waits_leaves_no_records_when_its_conversation_is_cleared() -> None:
    cls = talker(ScriptedModel(call("pay", amount=3, id="c1")), base=Looking)
    async with running_here(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        assert (await agent.send("a secret")).status == "waiting"
        assert await recorded(world)
        await agent.conversation.clear()

        assert await recorded(world) == 0


async def test_a_turn_that_runs_leaves_no_records_when_its_conversation_is_cleared() -> None:
    model = ScriptedModel(text("never heard", gate=asyncio.Event()))
    cls = talker(model)
    async with running_here(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        await agent.turns.start("a secret")
        await world.until(lambda: len(model.asked) == 1)
        await agent.conversation.clear()
        await world.settled()

        assert await recorded(world) == 0


async def test_a_helper_that_works_leaves_no_records_when_the_conversation_is_cleared() -> None:
    gated = ScriptedModel(text("never heard", gate=asyncio.Event()))
    helper = type("Clerk", (Talking,), {"model": gated, "__doc__": "Finds."})
    cls = talker(ScriptedModel(call("clerk", id="h1", message="search")), tools=[agent_tool(helper)])
    async with running_here(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        await agent.turns.start("a secret")
        await world.until(lambda: len(gated.asked) == 1)
        await agent.conversation.clear()
        await world.settled()

        assert await recorded(world) == 0


async def test_a_run_that_is_cleared_before_it_ends_is_recorded_as_cancelled() -> None:
    class Child(Agent):
        async def on_run(self, input: str) -> None:
            await asyncio.Event().wait()

    class Boss(Agent):
        async def begin(self) -> None:
            await self.start_run(Child, "x")

        async def clear(self) -> int:
            return await self.runs.clear()

    async with running_here(App(agents=[Boss, Child])) as world:
        boss = await world.get_agent(Boss, "b")
        await boss.begin()
        await boss.clear()

        (run,) = (await told(world, "Boss:b"))["spans"]
        assert (run["kind"], run["status"], run["facts"]["reason"]) == ("run", "cancelled", "cleared")


@pytest.mark.slow
async def test_a_run_that_ends_after_the_records_of_its_turn_are_deleted_leaves_none() -> None:
    class Child(Agent):
        held = asyncio.Event()

        async def on_run(self, input: str) -> str:
            await self.held.wait()
            return input

    class Starting(Talking):
        @tool
        async def begin(self) -> str:
            """Start a run in the background."""
            return (await self.start_run(Child, "x", run_id="behind")).id

        async def wait(self) -> None:
            run = self.runs.get("behind")
            assert run is not None
            await run.result()

    model = ScriptedModel(call("begin", id="b1"), text("done"), *[text("more")] * 70)
    cls = talker(model, base=Starting, record_retention=Retention(count=3))
    async with running_here(App(agents=[cls, Child])) as world:
        agent = await world.get_agent(cls, "t")
        first = await agent.send("begin")
        for number in range(70):
            await agent.send(f"message {number}")
        Child.held.set()
        await agent.wait()

        assert await counted(world, f"SELECT kind FROM sapwood_spans WHERE work = 'run {first.id}'") == []


@pytest.mark.core("workers", "cluster", "temporal")
async def test_secrets_are_taken_out_before_anything_is_written() -> None:
    def redact(kind: str, text: str) -> str:
        return text.replace("hunter2", f"<{kind}>")

    model = ScriptedModel(call("look", about="hunter2", id="c1"), text("done"))
    cls = talker(model, base=Looking)
    async with running(App(agents=[cls], redact=redact)) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("my password is hunter2")

        whole = msgspec.json.encode([await told(world, turn=turn.id), await sent(world, turn.id, 2)]).decode()
        assert "hunter2" not in whole
        assert "<request>" in whole
        assert "<arguments>" in whole


def raises(kind: str, text: str) -> str:
    raise ValueError(text)


def returns(what: Any) -> Callable[[str, str], Any]:
    return lambda kind, text: what


@pytest.mark.parametrize(
    "redact", [raises, returns(None), returns(7), returns("\ud800")], ids=["raises", "none", "number", "surrogate"]
)
async def test_a_redaction_that_fails_hides_the_text_and_breaks_no_turn(redact: Callable[[str, str], Any]) -> None:
    model = ScriptedModel(call("look", about="hunter2", id="c1"), text("done"))
    cls = talker(model, base=Looking)
    async with running(App(agents=[cls], redact=redact)) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("hunter2")

        assert turn.status == "completed"
        found = await told(world, turn=turn.id, step=1)
        assert "left out" in found["requests"][0]["body"]
        assert ["left out" in one["facts"]["arguments"] for one in found["spans"] if one["kind"] == "tool"] == [True]


async def test_what_is_not_recorded_is_said() -> None:
    cls = talker(ScriptedModel(text("yes")))
    async with running(App(agents=[cls])) as world:
        agent = await world.get_agent(cls, "t")
        turn = await agent.send("hello")

        with pytest.raises(NotFound, match="no record of a turn 'other'"):
            await told(world, turn="other")
        with pytest.raises(NotFound, match="no record of a step 7"):
            await told(world, turn=turn.id, step=7)


def test_a_retention_that_records_do_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="supports `age` and `count` only"):
        talker(record_retention=Retention(bytes=1))
    with pytest.raises(UsageError, match="must be Retention"):
        talker(record_retention=7)


async def test_agents_that_are_deleted_during_a_request_are_not_in_memory() -> None:
    helper: Any = talker(ScriptedModel(text("a long answer", gate=asyncio.Event()), each=True))

    class Boss(Agent):
        async def begin(self, name: str) -> None:
            await (await self.sub_agent(helper, name)).turns.start("hello")

        async def stop(self, name: str) -> None:
            await self.children.delete(helper, name)

    async with running_here(App(agents=[Boss])) as world:
        boss = await world.get_agent(Boss, "b")
        (tree,) = world.node.trees.values()
        databases = weakref.WeakSet[Database]()
        for number in range(4):
            await boss.begin(f"h{number}")
            await world.until(lambda wanted=number + 1: len(helper.model.asked) == wanted)
            databases |= {one for one in tree.databases.values() if one is not tree.root}
            await boss.stop(f"h{number}")
        await asyncio.sleep(1)  # of virtual time: the timers of their streams end

        gc.collect()
        assert len(databases) <= 1  # the tree may still know which one it wrote last
