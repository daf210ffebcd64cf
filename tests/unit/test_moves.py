"""A root gets another name: what it knows and what it has to do goes with it, and the old name leads to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from tests.conformance.served import served
from tests.conformance.test_tree_transfer import TransferClerk, TransferShop
from tests.unit.histories import Node
from tests.unit.test_history import DAY
from tests.unit.test_time_travel import asked
from tests.unit.test_workers_together import ONE, TWO, Peer, Seen, of, two_workers

from sapwood import After, Agent, App, with_options
from sapwood.cli.commands import cli
from sapwood.errors import NotFound, SapwoodError, StoredDataError, Unavailable, UsageError
from sapwood.testing import World, running
from sapwood.types import Address

pytestmark = pytest.mark.slow


class Bank(Agent):
    paid: ClassVar[list[int]] = []

    async def pay(self, amount: int) -> int:
        Bank.paid.append(amount)
        return amount


class DoorBell(Agent):
    rung: ClassVar[list[str]] = []

    async def set(self) -> str:
        return self.schedule(After(timedelta(hours=1), key="bell"), self.ring).id

    async def ring(self) -> None:
        DoorBell.rung.append(str(self.address))

    async def cancel(self, id: str) -> bool:
        return self.schedules.cancel(id)


class Applicant(Agent):
    async def ask(self) -> None:
        self.start_fiber("ask", self.asks)

    async def asks(self) -> str:
        return str(await self.questions.ask("May I?", options=["yes", "no"]))

    async def result(self) -> str:
        return str(await self.fibers.result("ask"))


class Desk(DoorBell):
    migrations = ("CREATE TABLE notes (n INTEGER PRIMARY KEY, times INTEGER NOT NULL) STRICT",)

    async def note(self, n: int) -> int:
        self.sql("INSERT INTO notes VALUES (?, 1) ON CONFLICT (n) DO UPDATE SET times = times + 1", n)
        await asyncio.sleep(0)
        return n

    async def notes(self) -> dict[int, int]:
        return {int(str(row["n"])): int(str(row["times"])) for row in self.sql("SELECT n, times FROM notes ORDER BY n")}

    async def bell(self) -> str:
        return await (await self.sub_agent(DoorBell, "a")).set()

    async def count(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    async def work(self) -> None:
        self.start_fiber("work", self.steps)

    async def steps(self) -> str:
        await self.step("pay", self._pay)
        return "done"

    async def _pay(self) -> None:
        bank = with_options(await self.get_agent(Bank, "bank"), idempotency_key="rent")
        await bank.pay(7)
        DoorBell.rung.append("asked to pay")
        if len(DoorBell.rung) == 1:
            await asyncio.Event().wait()  # the bank has done it, and the step is not stored

    async def ask_below(self) -> None:
        await (await self.sub_agent(Applicant, "a")).ask()

    async def answer_below(self) -> str:
        return await (await self.sub_agent(Applicant, "a")).result()

    async def result(self, key: str) -> str:
        return str(await self.fibers.result(key))

    async def end(self) -> None:
        await self.destroy()


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    Bank.paid.clear()
    DoorBell.rung.clear()


def app() -> App:
    return App(agents=[Desk, Bank])


async def desk_named(world: World, name: str) -> Desk:
    return await world.get_agent(Desk, name)


async def test_schedules_at_every_level_fire_once_under_the_new_name() -> None:
    async with running(app()) as world:
        old = await desk_named(world, "old")
        await old.set()
        await old.bell()
        assert await world.app.move(Desk, "old", to="new") == Address.root_of("Desk", "new")
        await world.clock.advance(timedelta(hours=3))
        assert sorted(DoorBell.rung) == ["Desk:new", "Desk:new/DoorBell:a"]
        await world.restart()
        await world.clock.advance(timedelta(hours=3))
        assert len(DoorBell.rung) == 2


async def test_ids_stay_the_same_so_that_what_the_program_stored_still_fits() -> None:
    async with running(app()) as world:
        id = await (await desk_named(world, "old")).set()
        await world.app.move(Desk, "old", to="new")
        await world.app.move(Desk, "new", to="newer")
        await world.restart()
        assert await (await desk_named(world, "newer")).cancel(id)
        await world.clock.advance(timedelta(hours=3))
        assert DoorBell.rung == []


async def test_stubs_and_the_old_name_lead_to_the_agent_at_every_level() -> None:
    async with running(app()) as world:
        stub = await desk_named(world, "old")
        await stub.bell()
        child = await world.get_agent(Desk, "old", sub=[(DoorBell, "a")])
        await world.app.move(Desk, "old", to="new")
        assert await stub.note(1) == 1
        assert [one async for one in stub.count(3)] == [0, 1, 2]
        await child.set()
        await world.app.move(Desk, "new", to="newer")
        assert await (await desk_named(world, "old")).notes() == await stub.notes() == {1: 1}
        await (await world.get_agent(Desk, "old", sub=[(DoorBell, "a")])).set()
        # Back again: the name is its own then.
        await world.app.move(Desk, "newer", to="old")
        for name in ("old", "new", "newer"):
            assert await (await desk_named(world, name)).notes() == {1: 1}


async def test_a_question_is_answered_and_a_fiber_ends_under_the_new_name() -> None:
    async with running(app()) as world:
        desk = await desk_named(world, "old")
        await desk.ask_below()
        await world.settled()
        await world.app.move(Desk, "old", to="new")
        _, found = await asked(world, "questions", address="Desk:new")
        assert [one["address"] for one in found["rows"]] == ["Desk:new/Applicant:a"], found
        id = found["rows"][0]["id"]
        status, answer = await asked(
            world, "answer", address="Desk:new/Applicant:a", id=id, answer="value", value="yes"
        )
        assert status == 200, answer
        assert await desk.answer_below() == "yes"


async def test_a_keyed_call_of_a_step_that_the_move_interrupts_is_not_done_again() -> None:
    async with running(app()) as world:
        desk = await desk_named(world, "old")
        await desk.work()
        await world.until(lambda: DoorBell.rung == ["asked to pay"])
        await world.app.move(Desk, "old", to="new")
        assert await desk.result("work") == "done"
        assert (DoorBell.rung, Bank.paid) == (["asked to pay"] * 2, [7])


async def test_calls_during_moves_are_done_once_or_unavailable() -> None:
    async with running(app()) as world:
        desk = await desk_named(world, "n0")
        done, lost = set[int](), set[int]()
        stopped = False

        async def load(first: int) -> None:
            n = first
            while not stopped:
                try:
                    done.add(await desk.note(n))
                except Unavailable:
                    lost.add(n)
                n += 10
                await asyncio.sleep(0.001)

        loads = [asyncio.create_task(load(number)) for number in range(10)]
        for number in range(8):
            await asyncio.sleep(0.02)
            await world.app.move(Desk, f"n{number}", to=f"n{number + 1}")
        stopped = True
        await asyncio.gather(*loads)
        notes = await desk.notes()
        assert done <= set(notes) <= done | lost
        assert set(notes.values()) == {1}
        assert len(done) > 80
        assert len(lost) <= 8 * 10  # of each load, the call that ran


async def test_a_name_that_is_taken_is_refused_and_nothing_changes() -> None:
    async with running(app()) as world:
        for name in ("old", "other"):
            await (await desk_named(world, name)).note(1)
        with pytest.raises(UsageError, match="Desk:other exists already"):
            await world.app.move(Desk, "old", to="other")
        await world.app.move(Desk, "other", to="another")
        with pytest.raises(UsageError, match="Desk:other is a former address of Desk:another"):
            await world.app.move(Desk, "old", to="other")
        with pytest.raises(UsageError, match="has this name already"):
            await world.app.move(Desk, "old", to="old")
        with pytest.raises(UsageError, match="another server"):
            await world.app.move(Desk, "old", to="https://other.example")
        with pytest.raises(NotFound, match="Desk:none has no data"):
            await world.app.move(Desk, "none", to="some")
        with pytest.raises(NotFound, match="Desk:other was moved to Desk:another"):
            await world.app.fork(Desk, "other", to="fork")
        with pytest.raises(NotFound, match="Desk:other was moved to Desk:another"):
            await world.app.fork(Desk, "old", to="other")
        assert await (await desk_named(world, "old")).notes() == {1: 1}


async def test_a_destroyed_root_frees_the_names_that_it_had() -> None:
    async with running(app()) as world:
        await (await desk_named(world, "old")).note(1)
        await world.app.move(Desk, "old", to="new")
        await (await desk_named(world, "old")).end()
        assert await (await desk_named(world, "old")).notes() == {}
        assert not list((world.data / "moved").iterdir())
        await (await desk_named(world, "old")).note(2)
        assert await (await desk_named(world, "new")).notes() == {}


async def test_the_history_goes_with_the_tree() -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1")
        await node.mark("first")
        await node.add("v2")
        await world.app.move(Node, "a", to="b")
        await node.add("v3")
        assert "first" in [one.label for one in await world.app.moments(Node, "b")]
        await world.app.fork(Node, "b", to="c", at="first")
        assert await (await world.get_agent(Node, "c")).values() == ["v1"]


async def test_a_subtree_of_a_moved_tree_keeps_the_outcomes_of_its_keyed_calls(tmp_path: Path) -> None:
    async with running(App(agents=[TransferShop, TransferClerk])) as world:
        assert await (await world.get_agent(TransferShop, "a")).charge() == [1]
        await world.app.move(TransferShop, "a", to="b")
        await world.app.export(TransferShop, "b", tmp_path / "clerk", sub=[(TransferClerk, "c")])
        await world.app.import_(tmp_path / "clerk")
        assert await (await world.get_agent(TransferClerk, "c")).charge() == [1]


async def test_moments_before_a_move_have_the_address_of_now() -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "first")
        await node.add("v2")
        (before,) = await world.app.moments(Node, "a")
        await world.app.move(Node, "a", to="b")
        (after,) = await world.app.moments(Node, "b")
        assert (str(before.address), str(after.address)) == ("Node:a", "Node:b")
        for to, moment in (("c", before), ("d", after)):
            await world.app.fork(Node, "b", to=to, at=moment)
            assert await (await world.get_agent(Node, to)).values() == ["v1"]
        await (await world.get_agent(Node, "c")).add("v3", "other")
        with pytest.raises(UsageError, match="The moment is one of Node:b, not of Node:c"):
            await world.app.fork(Node, "c", to="e", at=after)


async def test_a_fork_or_rewind_to_before_a_move_has_the_indexes_and_the_birthplace() -> None:
    async with running(app(), history=DAY) as world:
        desk = await desk_named(world, "old")
        await desk.ask_below()
        await world.until(lambda: world.node.trees[desk_address("old")].questions.has(desk_address("old")))
        then = datetime.fromtimestamp(world.clock.now(), UTC)
        await world.clock.advance(10)
        await world.app.move(Desk, "old", to="middle")
        await world.app.move(Desk, "middle", to="new")
        fork = await world.app.fork(Desk, "new", to="fork", at=then)
        assert fork.held.questions == 1
        done = await world.app.rewind(Desk, "new", at=then)
        assert done.held.questions == 1
        for name in ("fork", "new"):
            stub: Any = await world.get_agent(Desk, name)
            (question,) = await stub.questions.list()
            assert await stub.questions.answer(question, "yes")
            assert await stub.answer_below() == "yes"
        await (await desk_named(world, "new")).end()
        assert not list((world.data / "moved").iterdir())  # it still knows that it had these names


def desk_address(name: str) -> Address:
    return Address.parse(f"Desk:{name}")


async def test_a_fork_of_a_moved_tree_has_ids_of_its_own() -> None:
    async with running(app()) as world:
        desk = await desk_named(world, "old")
        id = await desk.set()
        await world.app.move(Desk, "old", to="new")
        await world.app.fork(Desk, "new", to="fork", work="run")
        fork = await desk_named(world, "fork")
        assert not await fork.cancel(id)
        await (await desk_named(world, "fork")).end()
        assert await (await desk_named(world, "old")).cancel(id)  # the names of the original are not the fork's


async def test_clients_by_the_old_url_reach_the_agent() -> None:
    asked_about: list[str] = []

    def authorize(user: object, address: Address, action: str) -> bool:
        asked_about.append(str(address))
        return True

    async with served(App(agents=[Desk, Bank], authorize=authorize)) as one:
        client = await one.join("/agents/desk/old")
        await (await desk_named(one.world, "old")).note(1)
        await one.world.app.move(Desk, "old", to="new")
        assert await client.ended() == (1012, "The agent moves")
        again = await one.join("/agents/desk/old")
        assert again.of_type("cf_agent_identity")[0]["name"] == "new"
        assert asked_about == ["Desk:old", "Desk:new"]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{one.site.port}") as http:
            assert (await http.get("/agents/desk/old")).status_code == (await http.get("/agents/desk/new")).status_code


@pytest.mark.parametrize("content", [b"{", b'{"former": "x", "address": "y"}', b"\xff"], ids=["torn", "names", "bytes"])
async def test_a_damaged_forward_refuses_its_address_and_no_other(
    content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(App(agents=[Desk, Bank])) as one:
        for name in ("old", "other"):
            await (await desk_named(one.world, name)).note(1)
            await one.world.app.move(Desk, name, to=f"{name}-now")
        forward = next(path for path in (one.world.data / "moved").iterdir() if b"other" not in path.read_bytes())
        forward.write_bytes(content)
        await one.world.restart()
        with pytest.raises(StoredDataError, match=forward.name):
            await (await desk_named(one.world, "old")).notes()
        assert await (await desk_named(one.world, "other")).notes() == {1: 1}
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{one.site.port}") as http:
            assert (await http.get("/agents/desk/old")).status_code == 500
            assert (await http.get("/agents/desk/other")).status_code != 500
        client = await one.connect("/agents/desk/old")
        assert (await client.ended())[0] == 1011

        cli(["doctor", "--data", str(one.world.data)])
        assert forward.name in capsys.readouterr().out


async def test_operators_move_a_root() -> None:
    async with running(app()) as world:
        await (await desk_named(world, "old")).note(1)
        status, answer = await asked(world, "move", address="Desk:old", to="new")
        assert (status, answer) == (200, {"address": "Desk:new"})
        _, refused = await asked(world, "move", address="Desk:new/DoorBell:a", to="x")
        assert refused["code"] == "usage"
        status, refused = await asked(world, "state", address="Desk:old")
        assert (status, refused["code"]) == (404, "not_found")


async def test_each_request_says_where_a_root_was_moved() -> None:
    async with running(app(), history=86400) as world:
        await (await desk_named(world, "old")).note(1)
        await world.app.move(Desk, "old", to="new")
        for what, more in (
            ("state", {}),
            ("sql", {"sql": "SELECT 1"}),
            ("tree", {}),
            ("questions", {}),
            ("runs", {}),
            ("dead-letters", {}),
            ("explain", {}),
            ("destroy", {"preview": True}),
            ("moments", {}),
            ("rewind", {"at": "first"}),
            ("fork", {"to": "copy"}),
        ):
            _, refused = await asked(world, what, address="Desk:old", **more)
            assert refused["code"] == "not_found", what
            assert "Desk:old was moved to Desk:new. Use that address." in refused["error"], (what, refused)


async def test_a_request_for_an_unknown_root_leaves_none() -> None:
    async with running(app()) as world:
        await (await desk_named(world, "one")).note(1)
        for what in ("fork", "move"):
            _, refused = await asked(world, what, address="Desk:none", to="other")
            assert refused["code"] == "not_found"
        _, refused = await asked(world, "diff", address="Desk:one", other="Desk:none")
        assert refused["code"] == "not_found"
        _, tree = await asked(world, "tree")
        assert ([one["address"] for one in tree["roots"]], tree["count"]) == (["Desk:one"], 1)
        _, agents = await asked(world, "agents")
        assert ([one["address"] for one in agents["rows"]], agents["total"]) == (["Desk:one"], 1)


async def test_a_tree_moves_from_one_worker_to_another_and_its_stubs_follow() -> None:
    async with two_workers(Seen()) as apps:
        stubs = [await one.get_agent(Peer, ONE) for one in apps]
        for stub in stubs:
            await stub.lend_to(of(1, 3))
        for at, name in enumerate([TWO, of(0, 5), of(1, 6)]):
            former = [ONE, TWO, of(0, 5)][at]
            assert (await apps[at % 2].move(Peer, former, to=name)).name == name
            for app in apps:
                for stub in (*stubs, await app.get_agent(Peer, former), await app.get_agent(Peer, name)):
                    assert await stub.play(of(1, 8), of(0, 9), 1) == 1
        with pytest.raises(SapwoodError, match="exists already"):
            await apps[0].move(Peer, of(1, 3), to=of(1, 6))
