"""Records survive accidents: undone writes, damaged rows, a full disk, a deletion or a clearing during a turn."""

from __future__ import annotations

import asyncio
import errno
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases import slow
from tests.conformance.chats import Talking, talker
from tests.conformance.full_disk import full_disk
from tests.conformance.test_chat_records import Looking, counted, rows, said, sent, told

from sapwood import Agent, App, Retention, agent, tool
from sapwood.address import Address
from sapwood.admin.agent_lookup import AgentLookup
from sapwood.errors import Unavailable, UsageError
from sapwood.testing import ScriptedModel, World, call, calls, running, text
from sapwood.when import After


async def change(world: World, sql: str) -> None:
    """Damage the rows of an agent, as a mistake of ours or another program could."""
    tree, _, stem = await AgentLookup(world.node).find(Address.parse("Talker:t"))
    tree.database(stem, tree.limits).execute(sql)
    tree.slices.commit()


class Starting(Talking):
    """Starts turns from a scheduled call, which fails the first time."""

    begun = 0

    async def later(self) -> None:
        self.schedule(After(timedelta(seconds=5)), self.ring)

    async def ring(self) -> None:
        await self.turns.start("hello")
        type(self).begun += 1
        if type(self).begun == 1:
            raise ValueError("not the first time")


async def test_a_turn_that_was_undone_with_its_call_leaves_no_record() -> None:
    cls = talker(ScriptedModel(text("yes"), each=True), base=Starting)
    async with running(App(agents=[cls])) as world:
        one = await world.get_agent(cls, "t")
        await one.later()
        await world.clock.advance(10)
        await world.settled()

        turns = await counted(world, "SELECT id FROM sapwood_turns")
        recorded = await counted(
            world, "SELECT facts ->> 'turn', status, attempt FROM sapwood_spans WHERE kind = 'turn'"
        )
        assert recorded == [[id, "completed", 1] for (id,) in turns]
        assert await counted(world, "SELECT status FROM sapwood_spans WHERE kind = 'call' ORDER BY number") == [
            ["failed"],
            ["completed"],
        ]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sapwood_spans SET facts = '{broken'",
        "DELETE FROM sapwood_sent_texts",
        "UPDATE sapwood_sent_messages SET previous = (SELECT max(number) FROM sapwood_sent_messages)",
        "UPDATE sapwood_model_requests SET parts = '{broken', last = 99",
        "DELETE FROM sapwood_model_requests",
        "DELETE FROM sapwood_incarnations",
        "UPDATE sapwood_spans SET status = 'running', parent = 77",
        *slow(
            ["UPDATE sapwood_spans SET facts = '[]'", "UPDATE sapwood_sent_messages SET previous = NULL, text = 'x'"]
        ),
    ],
)
async def test_damaged_records_stop_no_turn_and_can_be_shown(damage: str) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(call("look", about="a", id="c1"), text("never heard", gate=gate), text("heard"), text("yes"))
    cls = talker(model, base=Looking)
    async with running(App(agents=[cls])) as world:
        one = await world.get_agent(cls, "t")
        first = (await one.turns.start("hello")).id
        await world.until(lambda: len(model.asked) == 2)
        await change(world, damage)
        await world.crash()
        one = await world.get_agent(cls, "t")

        assert (await one.turns.wait(first)).text == "heard"
        second = await one.send("again")

        assert second.status == "completed"
        assert await rows(world, first)
        for turn, step in ((first, 1), (first, 2), (second.id, 1)):
            await told(world, turn=turn, step=step)
        (body,) = await sent(world, second.id, 1)
        assert "again" in said(body)


@pytest.mark.parametrize("write", [1, 4, 9, *slow([2, 3, 5, 6, 7, 8])])
async def test_a_full_disk_while_records_are_written_loses_none_that_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    cls = talker(ScriptedModel(call("look", about="a", id="c1"), text("done"), each=True), base=Looking)
    with full_disk(monkeypatch, errno.ENOSPC) as disk:
        async with running(App(agents=[cls]), slow_slices="warn") as world:
            disk.fill_at(write, 1)
            while (turn := await finished(world, cls)) is None:  # noqa: ASYNC110 - as a client retries
                await asyncio.sleep(1)
            found = await rows(world, turn)

    ended = [row[:3] for row in found if row[-1] == "completed"]
    steps = [("step", "scripted", 1), ("tool", "look", 1), ("step", "scripted", 2)]
    assert ended == [("turn", "Talker", None), *steps], found
    assert {row[-1] for row in found} <= {"completed", "interrupted"}, found


async def finished(world: World, cls: Any) -> str | None:
    """Return the id of a turn when it is over; `None` if the disk refused something."""
    try:
        one = await world.get_agent(cls, "t")
        return (await one.turns.wait((await one.turns.start("hello", id="only")).id)).id
    except Unavailable:
        return None


async def test_clearing_during_a_turn_leaves_no_records_of_it() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("a secret", gate=gate), text("yes"))
    cls = talker(model)
    async with running(App(agents=[cls])) as world:
        one = await world.get_agent(cls, "t")
        turn = (await one.turns.start("a secret")).id
        await world.until(lambda: len(model.asked) == 1)
        await one.conversation.clear()
        await one.turns.wait(turn)

        for table in ("sapwood_spans", "sapwood_model_requests", "sapwood_sent_messages", "sapwood_sent_texts"):
            assert await counted(world, f"SELECT count(*) FROM {table}") == [[0]], table
        second = await one.send("hello")
        (body,) = await sent(world, second.id, 1)
        assert "a secret" not in said(body)


async def test_clearing_while_a_turn_waits_leaves_no_records_of_it() -> None:
    cls = talker(ScriptedModel(call("pay", amount=3, id="c1"), text("yes")), base=Looking)
    async with running(App(agents=[cls])) as world:
        one = await world.get_agent(cls, "t")
        turn = await one.send("a secret")
        assert turn.status == "waiting"
        await one.conversation.clear()
        await world.settled()

        for table in ("sapwood_spans", "sapwood_model_requests", "sapwood_sent_messages", "sapwood_sent_texts"):
            assert await counted(world, f"SELECT count(*) FROM {table}") == [[0]], table


async def test_an_agent_that_is_destroyed_during_a_turn_takes_its_records_along() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("never heard", gate=gate), text("yes"))

    class Ending(Talking):
        async def end(self) -> None:
            await self.destroy()

    cls = talker(model, base=Ending)
    async with running(App(agents=[cls])) as world:
        one = await world.get_agent(cls, "t")
        await one.turns.start("hello")
        await world.until(lambda: len(model.asked) == 1)
        await one.end()
        one = await world.get_agent(cls, "t")
        second = await one.send("again")

        assert [row[0] for row in await rows(world, second.id)] == ["turn", "step"]
        assert await counted(world, "SELECT count(*), max(number) FROM sapwood_spans") == [[2, 2]]


async def test_a_class_that_was_renamed_or_is_gone_can_still_be_explained(tmp_path: Path) -> None:
    cls = talker(ScriptedModel(text("yes")), instructions="Be short.")

    @agent(type="Speaker", aliases=["Talker"])
    class Speaker(Talking):
        model = ScriptedModel(text("other"))

        def get_instructions(self) -> str:
            return "Be long."

    class Other(Agent):
        pass

    async with running(App(agents=[cls]), data=tmp_path) as world:
        one = await world.get_agent(cls, "t")
        turn = await one.send("hello")
        (before,) = await sent(world, turn.id, 1)
    for app in (App(agents=[Speaker]), App(agents=[Other])):
        async with running(app, data=tmp_path) as world:
            (after,) = await sent(world, turn.id, 1)
        assert after == before
        assert "Be short." in str(after)


async def test_names_that_models_and_users_choose_are_redacted() -> None:
    class Naming(Talking):
        async def load(self, name: str) -> None:
            self.start_fiber(name, self.work)

        async def work(self) -> None:
            pass

    def redact(kind: str, text: str) -> str:
        return text.replace("hunter2", f"<{kind}>")

    cls = talker(ScriptedModel(text("done")), base=Naming)
    async with running(App(agents=[cls], redact=redact)) as world:
        one = await world.get_agent(cls, "t")
        await one.load("import of hunter2")
        await world.settled()

        (fiber,) = (await told(world))["spans"]
        assert fiber["name"] == "import of <name>"
        assert "hunter2" not in msgspec.json.encode(fiber).decode()


async def test_many_calls_of_one_turn_are_each_recorded_and_none_stays_in_memory() -> None:
    many = [call("look", about=str(number), id=f"c{number}") for number in range(300)]
    cls = talker(ScriptedModel(calls(*many), text("done")), base=Looking)
    async with running(App(agents=[cls])) as world:
        one = await world.get_agent(cls, "t")
        turn = await one.send("hello")

        assert await counted(
            world, "SELECT count(*), count(DISTINCT facts ->> 'key') FROM sapwood_spans WHERE kind = 'tool'"
        ) == [[300, 300]]
        assert turn.status == "completed"


async def test_incarnations_without_records_are_forgotten() -> None:
    cls = talker(ScriptedModel(text("yes"), each=True), record_retention=Retention(count=1))
    async with running(App(agents=[cls])) as world:
        for _ in range(5):
            one = await world.get_agent(cls, "t")
            await one.send("hello")
            await world.restart()

        ((incarnations,),) = await counted(world, "SELECT count(*) FROM sapwood_incarnations")
        assert incarnations <= 2


def test_a_retention_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="Set it to `None`"):
        talker(record_retention=Retention(count=0))


async def test_a_text_above_the_limit_is_left_out_and_the_rest_of_its_request_is_whole() -> None:
    class Drawing(Talking):
        @tool
        async def draw(self) -> str:
            """Return a picture."""
            return "ü" * 600_000

    cls = talker(
        ScriptedModel(call("draw", id="c1"), text("done"), text("yes")), base=Drawing, instructions="Be short."
    )
    async with running(App(agents=[cls])) as world:
        one = await world.get_agent(cls, "t")
        turn = await one.send("hello")
        found = await told(world, turn=turn.id, step=2)
        (body,) = [request["body"] for request in found["requests"]]

        assert "bytes left out, BLAKE2" in body
        assert len(body) < 10_000
        assert "hello" in body
        assert "draw" in body
        assert await counted(world, "SELECT count(*) FROM sapwood_sent_texts WHERE body IS NULL") == [[1]]
        second = await one.send("again")
        assert len((await told(world, turn=second.id, step=1))["requests"]) == 1


async def test_an_incarnation_begins_with_what_it_does_and_not_with_what_a_crash_interrupted() -> None:
    gate = asyncio.Event()
    model = ScriptedModel(text("never heard", gate=gate), text("heard"))
    cls = talker(model, base=Looking)
    async with running(App(agents=[cls])) as world:
        one = await world.get_agent(cls, "t")
        turn = (await one.turns.start("hello")).id
        await world.until(lambda: len(model.asked) == 1)
        await world.clock.advance(5)  # the request is committed
        await world.crash()
        one = await world.get_agent(cls, "t")
        await one.turns.wait(turn)

        steps = await counted(world, "SELECT began_at FROM sapwood_spans WHERE kind = 'step' ORDER BY number")
        begun = await counted(world, "SELECT began_at FROM sapwood_incarnations ORDER BY number")
        assert steps[0][0] + 5 <= begun[1][0] <= steps[1][0]
