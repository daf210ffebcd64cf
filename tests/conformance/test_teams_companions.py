"""Persistent children: a model spawns them, tells them more while they work, hears of their end, terminates them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.conformance.chats import Talking, cancel, check_history, check_transcript, say, text_of
from tests.conformance.errands import (
    CALLER,
    Digger,
    Giving,
    again,
    caller,
    check_sequence,
    frames,
    helper,
    joined_later,
    over,
    told_end,
    told_text,
    working,
)
from tests.conformance.served import Served
from tests.machine import patience

from sapwood import ChatAgent, Limits, Run, Unavailable, agent_tool, persistent_agent, tool
from sapwood.errors import UsageError
from sapwood.runs.dispatch.lifecycle import Runs
from sapwood.testing import ScriptedModel, call, calls, text

FIVE = ["get_child_status", "list_children", "send_message", "spawn_agent", "terminate_child"]


class Scribe(ChatAgent):
    """Writes."""

    deps: Any

    @tool(idempotent=True)
    async def look_up(self) -> str:
        """Look something up, which takes a while."""
        self.deps.log.append("looks up")
        await self.deps.go.wait()
        return "found"

    @tool(requires_approval=True)
    async def publish(self) -> str:
        """Publish."""
        return "published"

    async def seen(self) -> list[str]:
        """Return what the model sees, without what it called and what was returned."""
        return [
            str(part.content)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            for message in self.conversation.history()
            for part in message.parts
            if part.part_kind in ("user-prompt", "text")
        ]


class Keeping(Giving, Talking):
    """Has children, and notes what it is told of them."""

    migrations = (*Giving.migrations, "CREATE TABLE news (run TEXT NOT NULL, status TEXT NOT NULL) STRICT")

    async def on_run_finish(self, run: Run) -> None:
        await super().on_run_finish(run)
        self.sql("INSERT INTO news VALUES (?, ?)", run.id, run.status)
        self.deps.log.append(f"heard of {run.agent.name}: {run.status} {run.reason or run.error or run.output}")

    async def news(self) -> list[tuple[str, str]]:
        return [(str(row["run"]), str(row["status"])) for row in self.sql("SELECT * FROM news ORDER BY rowid")]

    async def waits_for(self, run: str) -> bool:
        row = self._actor.of(Runs).registry.get(run)
        return row is not None and row.detached is None


def scribe(*lines: Any) -> Any:
    """Make a class of children that say these lines, each of them from the first on."""
    return helper(ScriptedModel(*lines, each=True), "Scribe", base=Scribe)


def keeper(model: Any, child: Any, mode: Any = "blocking", *, notify: bool = False, **settings: Any) -> Any:
    """Make a class of agents whose model keeps such children."""
    kept = persistent_agent(child, mode=mode, notify=notify)
    return caller(model, kept, base=Keeping, worker_class=child, **settings)


def spawn(name: str = "ann", message: str = "Write.", id: str = "c1", agent: str = "scribe") -> Any:
    return call("spawn_agent", id=id, agent=agent, name=name, message=message)


def message(said: str, name: str = "ann", id: str = "m1") -> Any:
    return call("send_message", id=id, name=name, message=said)


async def child_of(one: Served, cls: type, child: type, name: str = "ann") -> Any:
    return await one.world.get_agent(cls, "c", sub=[(child, name)])


async def returns(agent: Any) -> dict[str, Any]:
    """Return what each tool call returned, or the error it ended with."""
    return {
        part["toolCallId"]: part.get("output", part.get("errorText"))
        for message in await agent.conversation.messages()
        for part in message["parts"]
        if "toolCallId" in part
    }


async def refusal(agent: Any, id: str) -> str:
    """Return the code with which a call was refused."""
    exported = (await agent.conversation.export())["model_messages"]
    parts = [part for message in exported for part in message["parts"] if part.get("tool_call_id") == id]
    told = json.loads(parts[-1]["content"])
    assert (await returns(agent))[id] == told["error"]
    assert (told["ok"], told["status"], told["retryable"]) == (False, "refused", False)
    assert told["error"].endswith(".")
    return told["code"]


async def check(agent: Any) -> None:
    check_history(json.loads(await agent.seen_by_model()))
    check_transcript(await agent.conversation.messages())


async def offered(*tools: Any) -> dict[str, Any]:
    """Return the tools that the model of an agent with these is told of."""
    seen: dict[str, Any] = {}

    async def answer(messages: Any, info: AgentInfo) -> AsyncIterator[str]:
        seen.update({one.name: one for one in info.function_tools})
        yield "All right."

    async with working(caller(FunctionModel(stream_function=answer), *tools)) as (_, agent, _):
        await agent.send("go")
    return seen


@pytest.mark.promise("A-217", "A-218")
async def test_declaring_persistent_children_gives_the_model_tools_to_keep_them() -> None:
    assert await offered() == {}
    tools = await offered(persistent_agent(scribe(text("x")), mode="non-blocking"))

    assert sorted(tools) == FIVE
    schema = tools["spawn_agent"].parameters_json_schema
    assert schema["required"] == ["agent", "name", "message"]
    assert schema["properties"]["agent"]["enum"] == ["scribe"]
    assert "- scribe (non-blocking): Helps." in tools["spawn_agent"].description


@pytest.mark.promise("A-219")
async def test_there_is_a_tool_to_wait_only_if_the_model_has_to_wait_for_some_child() -> None:
    quiet, loud = scribe(text("x")), helper(ScriptedModel(text("x")), "LoudScribe")

    assert "wait_for_result" not in await offered(persistent_agent(quiet, mode="non-blocking"))
    both = await offered(persistent_agent(quiet, mode="non-blocking"), persistent_agent(loud))
    assert sorted(both) == sorted([*FIVE, "wait_for_result"])


@pytest.mark.promise("A-217")
async def test_what_cannot_be_a_persistent_child_is_refused() -> None:
    with pytest.raises(UsageError, match="is not an agent class"):
        persistent_agent(str)
    with pytest.raises(UsageError, match="'blocking' or 'non-blocking'"):
        persistent_agent(Digger, mode=cast("Any", "sometimes"))
    with pytest.raises(UsageError, match="non-blocking"):
        persistent_agent(Digger, notify=True)
    undescribed = type("UndescribedScribe", (ChatAgent,), {"model": ScriptedModel(text("x"))})
    with pytest.raises(UsageError, match="persistent_agent"):
        persistent_agent(undescribed)


@pytest.mark.promise("A-221", "A-224")
async def test_a_blocking_spawn_runs_the_child_and_returns_its_result(level: str) -> None:
    cls = keeper(ScriptedModel(spawn(), text("Thank you.")), scribe(text("A poem.")))
    async with working(cls, durability=level) as (_, agent, bench):
        turn = await agent.send("go")

        assert turn.text == "Thank you."
        assert await returns(agent) == {"c1": {"name": "ann", "status": "completed", "result": "A poem."}}
        (run,) = await agent.all_runs()
        assert (run.id, run.mode, run.agent.name, run.tool_call) == ("agent-tool:c1", "persistent", "ann", "c1")
        assert await agent.child_names() == ["ann"]
        await bench.seen("heard of ann: completed A poem.")
        assert await agent.hooks() == [("start", run.id, "queued"), ("finish", run.id, "completed")]
        await check(agent)


async def test_a_child_that_fails_is_a_failed_call_and_stays_to_be_told_more() -> None:
    child = helper(ScriptedModel(text("x")), "Scribe", base=Scribe, max_steps=0)
    ours = ScriptedModel(spawn(), text("A pity."))
    async with working(keeper(ours, child)) as (_, agent, _):
        await agent.send("go")

        told = str(ours.asked[1])
        assert '"status":"failed"' in told
        assert '"name":"ann"' in told
        assert (await agent.one("agent-tool:c1")).status == "failed"
        await check(agent)


@pytest.mark.slow
@pytest.mark.promise("A-222")
async def test_a_non_blocking_spawn_returns_at_once_and_the_reference_is_updated_at_the_end(level: str) -> None:
    child = scribe(call("look_up", id="l1"), text("A poem."))
    cls = keeper(ScriptedModel(spawn(), text("It is on its way.")), child, "non-blocking")
    async with working(cls, durability=level) as (_, agent, bench):
        turn = await agent.send("go")

        assert turn.text == "It is on its way."
        assert await returns(agent) == {"c1": {"name": "ann", "agent": "scribe", "status": "running"}}
        assert (await agent.one("agent-tool:c1")).status == "running"
        bench.go.set()
        run = await over(agent, "agent-tool:c1")
        assert (run.status, run.output) == ("completed", "A poem.")
        await bench.seen("heard of ann: completed A poem.")
        assert await agent.news() == [("agent-tool:c1", "completed")]


@pytest.mark.promise("B-35")
async def test_the_end_of_a_non_blocking_child_joins_the_conversation_if_that_is_wished() -> None:
    child = scribe(call("look_up", id="l1"), text("A poem."))
    ours = ScriptedModel(spawn(), text("It is on its way."), text("Here it is: a poem."))
    async with working(keeper(ours, child, "non-blocking", notify=True)) as (_, agent, bench):
        await agent.send("go")
        bench.go.set()
        await bench.seen("heard of ann: completed A poem.")
        async with asyncio.timeout(patience()):
            while len(await agent.ends()) < 2:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)

        said = [text_of(message) for message in await agent.conversation.messages()]
        assert said[2:] == ["[The task of your child ann was completed: A poem.]", "Here it is: a poem."]
        await check(agent)


@pytest.mark.slow
@pytest.mark.promise("A-218")
async def test_a_child_keeps_its_name_and_its_conversation_from_task_to_task() -> None:
    child = scribe(text("One."), text("Two."))
    ours = ScriptedModel(
        spawn(), message("And now?"), call("wait_for_result", id="w1", name="ann"), text("Both are there.")
    )
    async with working(cls := keeper(ours, child)) as (one, agent, _):
        turn = await agent.send("go")

        assert turn.text == "Both are there."
        told = await returns(agent)
        assert told["m1"] == {"name": "ann", "agent": "scribe", "status": "running", "delivered": "task"}
        assert told["w1"] == {"name": "ann", "status": "completed", "result": "Two."}
        runs = await agent.all_runs()
        assert [(run.id, run.agent.name) for run in runs] == [("agent-tool:c1", "ann"), ("agent-tool:m1", "ann")]
        assert await agent.child_names() == ["ann"]
        assert await (await child_of(one, cls, child)).seen() == ["Write.", "One.", "And now?", "Two."]
        await check(agent)


@pytest.mark.slow
async def test_who_waits_for_a_child_that_has_done_its_task_is_told_at_once() -> None:
    ours = ScriptedModel(spawn(), call("wait_for_result", id="w1", name="ann"), text("Yes."))
    async with working(keeper(ours, scribe(text("One.")))) as (_, agent, _):
        await agent.send("go")

        assert (await returns(agent))["w1"] == {"name": "ann", "status": "completed", "result": "One."}


@pytest.mark.slow
@pytest.mark.promise("A-218")
async def test_a_message_reaches_the_next_step_of_a_child_at_work(level: str) -> None:
    child = scribe(call("look_up", id="l1"), text("With rhymes, then."))
    ours = ScriptedModel(spawn(), message("It has to rhyme."), text("Told."))
    cls = keeper(ours, child, "non-blocking")
    async with working(cls, durability=level) as (one, agent, bench):
        sending = asyncio.create_task(agent.send("go"))
        await bench.seen("looks up")
        await sending

        assert (await returns(agent))["m1"] == {"name": "ann", "status": "running", "delivered": "joined"}
        scribing = await child_of(one, cls, child)
        assert text_of((await scribing.conversation.messages())[-1]) == "It has to rhyme."
        bench.go.set()
        await over(agent, "agent-tool:c1")

        assert await scribing.seen() == ["Write.", "It has to rhyme.", "With rhymes, then."]
        assert [run.id for run in await agent.all_runs()] == ["agent-tool:c1"]
        assert [message["role"] for message in await scribing.conversation.messages()] == ["user", "user", "assistant"]
        check_history(json.loads(await _history(scribing)))
        check_transcript(await scribing.conversation.messages())


async def _history(agent: Any) -> str:
    exported = await agent.conversation.export()
    return json.dumps(exported["model_messages"])


@pytest.mark.slow
async def test_a_child_that_was_about_to_end_goes_on_with_what_it_was_told() -> None:
    gate = asyncio.Event()
    child = scribe(text("A poem.", gate=gate), text("A rhyming poem."))
    ours = ScriptedModel(spawn(), text("Sent."), message("It has to rhyme."), text("Told."))
    async with working(cls := keeper(ours, child, "non-blocking")) as (one, agent, bench):
        client = await one.join(CALLER)
        await agent.send("go")
        await told_text(client, "agent-tool:c1", "A")
        await agent.send("more")
        gate.set()
        run = await over(agent, "agent-tool:c1")

        scribing = await child_of(one, cls, child)
        assert await scribing.seen() == ["Write.", "A poem.", "It has to rhyme.", "A rhyming poem."]
        assert run.output == "A rhyming poem."
        await bench.seen("heard of ann: completed A rhyming poem.")
        check_history(json.loads(await _history(scribing)))


@pytest.mark.slow
async def test_what_a_child_was_told_before_it_was_stopped_stays_in_its_conversation() -> None:
    child = scribe(text("A poem.", gate=asyncio.Event()), text("Two poems."))
    told = (message("It has to rhyme."), text("Told."), message("Once more.", id="m2"), text("Told again."))
    ours = ScriptedModel(spawn(), text("Sent."), *told)
    async with working(cls := keeper(ours, child, "non-blocking")) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")
        await told_text(client, "agent-tool:c1", "A")
        await agent.send("more")
        assert await agent.stop("agent-tool:c1")
        await over(agent, "agent-tool:c1")
        await agent.send("again")
        await over(agent, "agent-tool:m2")

        scribing = await child_of(one, cls, child)
        assert await scribing.seen() == ["Write.", "A", "It has to rhyme.", "Once more.", "Two poems."]
        check_history(json.loads(await _history(scribing)))


async def test_clients_of_the_parent_see_a_child_like_any_run_with_its_name() -> None:
    ours = ScriptedModel(spawn(), message("And now?"), text("Told."))
    async with working(keeper(ours, scribe(text("One."), text("Two.")))) as (one, agent, _):
        client = await one.join(CALLER)
        await agent.send("go")
        await told_end(client, "agent-tool:m1")

        for run in ("agent-tool:c1", "agent-tool:m1"):
            started = frames(client, run)[0]["event"]
            assert (started["agentType"], started["agentName"]) == ("Scribe", "ann")
            check_sequence(frames(client, run))
        await joined_later(one, CALLER, client, "agent-tool:c1", "agent-tool:m1")


@pytest.mark.slow
async def test_who_watches_sees_each_task_of_a_child_as_a_run_of_its_own_live_and_later() -> None:
    async def watched(agent: Any) -> list[tuple[str, str, int]]:
        seen: list[tuple[str, str, int]] = []
        async with asyncio.timeout(patience()):
            async for event in agent.subscribe("children"):
                if event.run_id is not None:
                    assert event.path[-1].name == "ann"
                    seen.append((event.run_id, event.kind, event.seq))
                if seen[-1:] and seen[-1][:2] == ("agent-tool:m1", "completed"):
                    return seen
        return seen

    ours = ScriptedModel(spawn(), message("And now?"), call("wait_for_result", id="w1", name="ann"), text("Told."))
    async with working(cls := keeper(ours, scribe(text("One."), text("Two.")))) as (one, agent, _):
        watching = asyncio.create_task(watched(agent))
        await agent.send("go")
        live = await watching
        await one.world.crash()
        later = await watched(await again(one, cls))

        assert later == live
        for run in ("agent-tool:c1", "agent-tool:m1"):
            mine = [(kind, seq) for id, kind, seq in live if id == run]
            assert [seq for _, seq in mine] == list(range(len(mine)))
            assert (mine[0][0], mine[-1][0]) == ("started", "completed")


@pytest.mark.slow
@pytest.mark.promise("A-218")
async def test_the_model_can_list_its_children_and_ask_how_each_stands() -> None:
    child = scribe(call("look_up", id="l1"), text("A poem."))
    ours = ScriptedModel(
        call("list_children", id="l0"),
        calls(spawn("ann", id="c1"), spawn("bob", id="c2")),
        call("terminate_child", id="t1", name="bob"),
        calls(call("list_children", id="l1"), call("get_child_status", id="s1", name="ann")),
        text("I see."),
        call("get_child_status", id="s2", name="ann"),
        text("Done."),
    )
    async with working(keeper(ours, child, "non-blocking")) as (_, agent, bench):
        await agent.send("go")
        told = await returns(agent)

        assert told["l0"] == []
        assert told["t1"] == {"name": "bob", "status": "terminated", "was_running": True}
        ann = {"name": "ann", "agent": "scribe", "mode": "non-blocking", "status": "running"}
        assert told["l1"] == [ann, {**ann, "name": "bob", "status": "terminated"}]
        assert told["s1"] == {**ann, "task": "Write.", "tasks": 1}
        bench.go.set()
        await over(agent, "agent-tool:c1")
        await agent.send("and now?")
        done = {**ann, "status": "completed", "task": "Write.", "tasks": 1, "result": "A poem."}
        assert (await returns(agent))["s2"] == done


async def test_a_child_that_waits_for_a_person_says_so() -> None:
    child = scribe(call("publish", id="p1"), text("It is published."))
    ours = ScriptedModel(spawn(), text("Wait."), call("list_children", id="l1"), text("I see."))
    async with working(cls := keeper(ours, child, "non-blocking")) as (one, agent, bench):
        await agent.send("go")
        scribing = await child_of(one, cls, child)
        async with asyncio.timeout(patience()):
            while not await scribing.questions.list():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        await agent.send("how is it?")

        assert (await returns(agent))["l1"][0]["status"] == "waiting"
        await scribing.questions.approve("p1")
        await bench.seen("heard of ann: completed It is published.")


async def test_a_child_that_waits_for_a_person_hears_what_it_was_told_once_it_goes_on() -> None:
    child = scribe(call("publish", id="p1"), text("It is published."))
    ours = ScriptedModel(spawn(), text("Wait."), message("In red."), text("Told."))
    async with working(cls := keeper(ours, child, "non-blocking")) as (one, agent, bench):
        await agent.send("go")
        scribing = await child_of(one, cls, child)
        async with asyncio.timeout(patience()):
            while not await scribing.questions.list():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        await agent.send("in red, please")
        assert (await returns(agent))["m1"]["delivered"] == "joined"
        await scribing.questions.approve("p1")
        await bench.seen("heard of ann: completed It is published.")

        assert await scribing.seen() == ["Write.", "In red.", "It is published."]
        check_history(json.loads(await _history(scribing)))


@pytest.mark.promise("A-218")
async def test_terminating_a_child_stops_it_for_good_and_says_so(level: str) -> None:
    theirs = ScriptedModel(text("A long story", gate=asyncio.Event()))
    child = helper(theirs, "Scribe", base=Scribe)
    ours = ScriptedModel(
        spawn(),
        call("terminate_child", id="t1", name="ann"),
        message("Go on."),
        spawn(id="c2"),
        call("terminate_child", id="t2", name="ann"),
        text("It is over."),
    )
    async with working(keeper(ours, child, "non-blocking", notify=True), durability=level) as (one, agent, bench):
        client = await one.join(CALLER)
        sending = asyncio.create_task(agent.send("go"))
        await told_end(client, "agent-tool:c1")
        await sending

        told = await returns(agent)
        assert told["t1"] == {"name": "ann", "status": "terminated", "was_running": True}
        assert told["t2"] == {"name": "ann", "status": "terminated", "was_running": False}
        assert await refusal(agent, "m1") == "terminated"
        assert await refusal(agent, "c2") == "name_taken"
        run = await over(agent, "agent-tool:c1")
        assert (run.status, run.reason) == ("cancelled", "terminated")
        await bench.seen("heard of ann: cancelled terminated")
        assert len(await agent.ends()) == 1  # nobody is told by a message what it has done itself
        assert theirs.cancelled <= 1
        assert len(theirs.asked) <= 1


async def test_terminating_a_child_stops_what_it_has_others_do_in_the_background() -> None:
    theirs = ScriptedModel(text("A long story", gate=asyncio.Event()))
    below = helper(theirs, "DeepScribe")
    middle = helper(
        ScriptedModel(spawn("deep", agent="deep_scribe"), text("It is at work."), each=True),
        "Scribe",
        base=Scribe,
        tools=[persistent_agent(below, mode="non-blocking", notify=True)],
    )
    ours = ScriptedModel(spawn(), text("Good."), call("terminate_child", id="t1", name="ann"), text("Over."))
    async with working(cls := keeper(ours, middle)) as (one, agent, _):
        await agent.send("go")
        async with asyncio.timeout(patience()):
            while not theirs.asked:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)

        await agent.send("stop it")

        assert (await returns(agent))["t1"] == {"name": "ann", "status": "terminated", "was_running": False}
        await one.world.settled()
        assert theirs.cancelled == 1
        assert len(await (await child_of(one, cls, middle)).conversation.messages()) == 2  # nobody tells it of that


@pytest.mark.promise("A-218")
async def test_what_the_model_may_not_do_is_refused_with_a_code() -> None:
    ours = ScriptedModel(
        spawn(),
        calls(
            spawn(id="r1"),
            spawn(agent="poet", name="x", id="r2"),
            spawn(name="a\0b", id="r3"),
            message("x", name="nobody", id="r4"),
            call("wait_for_result", id="r5", name="bea"),
        ),
        text("I see."),
    )
    loud = helper(ScriptedModel(text("x")), "LoudScribe")
    cls = caller(ours, persistent_agent(scribe(text("One."))), persistent_agent(loud, mode="non-blocking"))
    ours.lines.insert(0, spawn(name="bea", id="c0", agent="loud_scribe"))
    async with working(cls) as (_, agent, _):
        await agent.send("go")

        wanted = {"r1": "name_taken", "r2": "unknown_agent", "r3": "invalid_name"}
        wanted |= {"r4": "unknown_child", "r5": "not_blocking"}
        assert {id: await refusal(agent, id) for id in wanted} == wanted
        assert sorted(await agent.child_names()) == ["ann", "bea"]
        await check(agent)


async def test_a_child_that_could_not_be_made_does_not_keep_its_name() -> None:
    ours = ScriptedModel(
        spawn(), spawn("bob", id="c2"), call("list_children", id="l1"), spawn("bob", id="c3"), text("Well.")
    )
    cls = keeper(ours, scribe(text("One.")), limits=Limits(children=1))
    async with working(cls) as (_, agent, _):
        await agent.send("go")

        told = await returns(agent)
        assert "Limits(children=1)" in told["c2"]
        assert "Limits(children=1)" in told["c3"]
        assert [child["name"] for child in told["l1"]] == ["ann"]
        assert await agent.child_names() == ["ann"]


async def test_a_child_that_the_program_has_deleted_is_known_no_more() -> None:
    ours = ScriptedModel(spawn(), text("Good."), message("Hello?"), spawn(id="c2"), text("Well."))
    child = scribe(text("One."))
    cls = keeper(ours, child, worker=child)
    async with working(cls) as (_, agent, _):
        await agent.send("go")
        await agent.delete("ann")
        await agent.send("again")

        assert await refusal(agent, "m1") == "unknown_child"
        assert (await returns(agent))["c2"] == {"name": "ann", "status": "completed", "result": "One."}


async def test_a_kind_of_children_can_be_declared_once() -> None:
    child = scribe(text("One."))
    cls = caller(ScriptedModel(text("x")), persistent_agent(child), persistent_agent(child, name="other"))
    async with working(cls) as (_, agent, _):
        assert "with the same name or class" in ((await agent.send("go")).error or "")


async def test_a_child_without_a_conversation_does_tasks_and_cannot_be_told_more_while_it_is_at_one() -> None:
    ours = ScriptedModel(
        spawn("dig", "wait", agent="digger"),
        message("faster", name="dig"),
        text("Later, then."),
        message("again", name="dig", id="m2"),
        text("Good."),
    )
    digging = persistent_agent(Digger, mode="non-blocking", description="Digs.")
    async with working(caller(ours, digging)) as (_, agent, bench):
        await agent.send("go")
        assert await refusal(agent, "m1") == "busy"
        bench.go.set()
        await over(agent, "agent-tool:c1")
        await agent.send("go on")

        assert (await over(agent, "agent-tool:m2")).output == {"did": "again"}
        assert await agent.child_names() == ["dig"]


@pytest.mark.slow
async def test_stopping_the_turn_stops_a_blocking_child_at_work_and_its_request(level: str) -> None:
    theirs = ScriptedModel(text("A long story", gate=asyncio.Event()), text("Another one."))
    child = helper(theirs, "Scribe", base=Scribe)
    ours = ScriptedModel(spawn(), message("Another?"), call("wait_for_result", id="w1", name="ann"), text("Good."))
    async with working(cls := keeper(ours, child), durability=level) as (one, agent, _):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        await told_text(client, "agent-tool:c1", "A")

        await cancel(client, "r1")
        run = await over(agent, "agent-tool:c1")

        assert (run.status, run.reason) == ("cancelled", "parent-interrupted")
        assert theirs.cancelled == 1
        await agent.send("go on")  # the child is stopped, not terminated
        assert (await returns(agent))["w1"] == {"name": "ann", "status": "completed", "result": "Another one."}
        assert await (await child_of(one, cls, child)).seen() == ["Write.", "A", "Another?", "Another one."]


async def test_a_child_whose_turn_was_stopped_before_the_crash_does_not_go_on_after_it(level: str) -> None:
    theirs = ScriptedModel(text("A long story", gate=asyncio.Event()))
    child = helper(theirs, "Scribe", base=Scribe)
    cls = keeper(ScriptedModel(spawn(), text("never said")), child)
    async with working(cls, durability=level) as (one, agent, _):
        client = await one.join(CALLER)
        await say(client, "r1", "go")
        await told_text(client, "agent-tool:c1", "A")
        assert await agent.turns.cancel()
        await one.world.crash()

        run = await over(await again(one, cls), "agent-tool:c1")

        assert run.status == "cancelled"
        assert len(theirs.asked) == 1


@pytest.mark.slow
async def test_a_task_belongs_to_the_turn_that_waits_for_it_and_stops_with_it() -> None:
    theirs = ScriptedModel(text("One."), text("A long story", gate=asyncio.Event()))
    child = helper(theirs, "Scribe", base=Scribe)
    ours = ScriptedModel(
        spawn(), message("More."), text("It works."), call("wait_for_result", id="w1", name="ann"), text("never said")
    )
    async with working(keeper(ours, child)) as (one, agent, _):
        client = await one.join(CALLER)
        assert (await agent.send("go")).text == "It works."
        await told_text(client, "agent-tool:m1", "A")  # the turn is over, and the child works on
        sending = asyncio.create_task(agent.send("wait"))
        async with asyncio.timeout(patience()):
            while not await agent.waits_for("agent-tool:m1"):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        assert not sending.done()

        assert await agent.turns.cancel()
        turn = await sending

        assert turn.status == "cancelled"
        assert (await over(agent, "agent-tool:m1")).status == "cancelled"
        assert theirs.cancelled == 1


@pytest.mark.slow
async def test_clearing_one_task_keeps_the_child_and_clearing_the_last_deletes_it() -> None:
    failing = ScriptedModel(text("One."), text("Two."), each=True)
    child = helper(failing, "Scribe", base=Scribe)
    said = (text("Sent."), message("More."), text("Told."), message("Still there?", id="m2"), text("Gone."))
    async with working(keeper(ScriptedModel(spawn(), *said), child, "non-blocking")) as (_, agent, bench):
        await agent.send("go")
        await over(agent, "agent-tool:c1")
        await agent.send("more")
        await over(agent, "agent-tool:m1")
        await bench.seen("heard of ann: completed Two.")
        assert await agent.child_names() == ["ann"]

        assert await agent.clear_them("completed") == 2

        assert await agent.child_names() == []
        await agent.send("go on")
        assert await refusal(agent, "m2") == "unknown_child"


@pytest.mark.promise("A-206", "A-224")
async def test_a_recorded_conversation_marks_companion_tools_and_references_have_mode_and_name() -> None:
    ours = ScriptedModel(calls(spawn(), call("helper", id="h1", message="x")), text("Thank you."))
    usual = helper(ScriptedModel(text("y")))
    cls = caller(ours, persistent_agent(scribe(text("One."))), agent_tool(usual))
    async with working(cls) as (_, agent, _):
        await agent.send("go")
        told = (await agent.conversation.export())["helix"]

        names = [call["name"] for message in told["messages"] for call in message.get("toolCalls", ())]
        assert names == ["companion__spawnAgent", "subagent__Helper"]
        refs = {ref["toolCallId"]: (ref["mode"], ref["name"]) for ref in told["subSessionRefs"]}
        assert refs == {"c1": ("persistent", "ann"), "h1": ("ephemeral", "agent-tool:h1")}


async def killed(one: Served, cls: Any, nth: int, is_over: Any) -> bool:
    """Have the process die at its n-th commit from when the agent is asked, if it is not over before; ask again."""
    agent = await again(one, cls)
    one.world.crash_at("committed", nth)
    with contextlib.suppress(Unavailable):
        await agent.send("go")
        async with asyncio.timeout(patience()):
            while not one.world.points.ended and not await is_over(agent):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.002)
        await one.world.settled()
    was_killed = one.world.points.ended
    await one.world.crash()
    agent = await again(one, cls)
    if not await agent.conversation.messages():
        await agent.send("go")
    async with asyncio.timeout(patience()):
        while not (await agent.ends() and await is_over(agent)):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.005)
    return was_killed


async def ended(agent: Any) -> bool:
    return bool(await agent.ends())


@pytest.mark.promise("A-221")
@pytest.mark.slow
async def test_killed_at_one_commit_or_another_a_blocking_child_does_its_tasks_once_and_the_model_hears_of_each(
    level: str,
) -> None:
    for nth in range(1 + (level == "disk"), 120, 7):  # the others: tests/faults
        child = scribe(text("One."), text("Two."))
        ours = ScriptedModel(
            spawn(), message("More."), call("wait_for_result", id="w1", name="ann"), text("Good."), each=True
        )
        async with working(cls := keeper(ours, child), durability=level) as (one, _, _):
            was_killed = await killed(one, cls, nth, ended)
            agent = await again(one, cls)

            told = await returns(agent)
            assert told["c1"] == {"name": "ann", "status": "completed", "result": "One."}, nth
            assert told["w1"] == {"name": "ann", "status": "completed", "result": "Two."}, nth
            assert await (await child_of(one, cls, child)).seen() == ["Write.", "One.", "More.", "Two."], nth
            assert len(await agent.all_runs()) == 2
            await check(agent)
        if not was_killed:
            assert nth > 10
            return
    raise AssertionError("it never got to the end")


@pytest.mark.promise("A-222", "B-35")
@pytest.mark.slow
@pytest.mark.parametrize("at_work", [True, False])
async def test_killed_at_one_commit_or_another_a_non_blocking_child_hears_a_message_once_and_its_end_is_told_once(
    level: str, at_work: bool
) -> None:
    async def told(agent: Any) -> bool:
        if await agent.ends():  # until then a child that is to be at work is
            bench.go.set()
        return len(await agent.news()) == len(await agent.all_runs()) > 0

    for nth in range(1 + (level == "disk"), 120, 7):  # the others: tests/faults
        child = scribe(call("look_up", id="l1"), text("Three."), text("Four."))
        ours = ScriptedModel(spawn(), message("More."), text("Good."), each=True)
        async with working(cls := keeper(ours, child, "non-blocking"), durability=level) as (one, _, bench):
            if not at_work:
                bench.go.set()
            was_killed = await killed(one, cls, nth, told)
            agent = await again(one, cls)

            seen = await (await child_of(one, cls, child)).seen()
            assert seen.count("More.") == 1, (nth, seen)
            runs = await agent.all_runs()
            assert [run.status for run in runs] == ["completed"] * len(runs)
            assert await agent.news() == [(run.id, "completed") for run in runs]
            delivered = (await returns(agent))["m1"]["delivered"]
            assert len(runs) == {"joined": 1, "task": 2}[delivered], (nth, seen)
            assert delivered == "joined" or not at_work
            await check(agent)
        if not was_killed:
            assert nth > 10
            return
    raise AssertionError("it never got to the end")


@pytest.mark.promise("B-35")
async def test_a_child_that_ends_after_a_crash_wakes_its_parent_which_nobody_asks_for(level: str) -> None:
    child = scribe(call("look_up", id="l1"), text("A poem."))
    ours = ScriptedModel(spawn(), text("It is on its way."), text("Here it is."), each=True)
    cls = keeper(ours, child, "non-blocking", notify=True)
    async with working(cls, durability=level) as (one, agent, bench):
        await agent.send("go")
        await bench.seen("looks up")
        await one.world.crash()
        bench.go.set()

        await bench.seen("heard of ann: completed A poem.")  # by itself: the test has not asked for the agent
        agent = await again(one, cls)
        async with asyncio.timeout(patience()):
            while len(await agent.ends()) < 2:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.005)
        assert await agent.news() == [("agent-tool:c1", "completed")]
        assert text_of((await agent.conversation.messages())[-1]) == "Here it is."


@pytest.mark.slow
async def test_a_terminated_child_stays_so_after_a_crash() -> None:
    child = scribe(text("A long story", gate=asyncio.Event()))
    ours = ScriptedModel(
        spawn(), call("terminate_child", id="t1", name="ann"), text("Over."), message("Hello?"), text("Oh.")
    )
    async with working(cls := keeper(ours, child, "non-blocking")) as (one, agent, _):
        await agent.send("go")
        await one.world.crash()
        agent = await again(one, cls)
        await agent.send("say hello")

        assert await refusal(agent, "m1") == "terminated"
        assert (await agent.one("agent-tool:c1")).reason == "terminated"
