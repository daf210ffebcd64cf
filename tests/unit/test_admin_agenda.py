"""What agents have to do later is listed without waking them, and an operator acts on it, after a preview."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.admin_requests import LOOK, ask, pages

from sapwood import After, Agent, App, ChatAgent, Every, NotFound, Retry, agent, tool
from sapwood.admin.access import Access, Scope
from sapwood.errors import InvalidArguments, SignatureChanged, StoredDataError
from sapwood.testing import ScriptedModel, World, call, running, text
from sapwood.types import Address, Fiber

CALLS: list[str] = []
STARTS: list[str] = []
SLOW = Retry(max_attempts=3, initial_delay=timedelta(hours=1), max_delay=timedelta(hours=1))
STORM = Retry(max_attempts=100, initial_delay=timedelta(minutes=1), max_delay=timedelta(minutes=1))
ROOT = "AdminPlanner:main"


@pytest.fixture(autouse=True)
def _reset() -> None:
    CALLS.clear()
    STARTS.clear()
    AdminPlanner.is_broken = True


class AdminPlanner(Agent):
    """Plans calls, queues them, and has fibers that sleep or fail."""

    is_broken = True

    async def on_start(self) -> None:
        STARTS.append(str(self.address))

    async def plan(self) -> None:
        self.schedule(After(timedelta(hours=1)), self.remind, "later")
        self.schedule(Every(timedelta(hours=2)), self.remind, "again")

    async def line_up(self) -> None:
        for what in ("first", "second"):
            self.queues["post"].with_retry(SLOW).add(self.send, what)

    async def go_to_sleep(self) -> None:
        self.start_fiber("nap", self.nap)

    async def go_wrong(self) -> None:
        self.start_fiber("wreck", self.wreck)

    async def storm(self) -> None:
        self.queues["post"].with_retry(STORM).add(self.send, "storm")

    async def lose(self) -> None:
        self.queues.default.with_retry(Retry(max_attempts=1)).add(self.send, "lost")

    async def lose_wreck(self) -> None:
        self.queues.default.with_retry(Retry(max_attempts=1)).add(self.wreck)

    async def plan_below(self, name: str) -> None:
        await (await self.sub_agent(AdminPlanner, name)).plan()

    async def remind(self, what: str) -> None:
        CALLS.append(f"remind {what}")

    async def send(self, what: str) -> None:
        if self.is_broken:
            raise ValueError(f"no post for {what}")
        CALLS.append(f"send {what}")

    async def nap(self) -> None:
        await self.sleep_until(datetime(2100, 1, 1, tzinfo=UTC))

    async def go_fishing(self) -> None:
        self.start_fiber("fish", self.fish)

    async def fish(self) -> None:
        if self.is_broken:
            await asyncio.Event().wait()
        CALLS.append("fish")

    async def wreck(self) -> None:
        if self.is_broken:
            raise ValueError("wrecked")
        CALLS.append("wreck")

    async def on_fiber_recovered(self, fiber: Fiber) -> None:
        if self.is_broken:
            raise ValueError("not now")


class AdminPlannerChat(ChatAgent):
    """Asks before it pays, so that its turn waits."""

    model = ScriptedModel(call("pay", id="k1"), text("Done."), each=True)

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay a bill."""
        return "paid"


def app() -> App:
    return App(agents=[AdminPlanner, AdminPlannerChat])


async def planned(world: World) -> Any:
    agent = await world.get_agent(AdminPlanner, "main")
    for plan in (agent.plan, agent.line_up, agent.go_to_sleep, agent.go_wrong):
        await plan()
    await world.settled()
    return agent


async def row_of(world: World, name: str, kind: str, address: str = ROOT) -> dict[str, Any]:
    rows = (await ask(world, "agenda", address=address))["rows"]
    return next(row for row in rows if (row["name"], row["kind"]) == (name, kind))


async def act(world: World, row: dict[str, Any], do: str, **params: Any) -> dict[str, Any]:
    return await ask(world, "act", address=row["address"], id=row["id"], do=do, **params)


async def test_what_an_agent_has_to_do_later_is_listed_and_it_is_not_woken() -> None:
    async with running(app()) as world:
        await planned(world)
        await world.restart()
        STARTS.clear()

        told = await ask(world, "agenda", address=ROOT)
        one_each = await pages(world, "agenda", address=ROOT, limit=1)

        assert [(row["kind"], row["name"], row["status"], row["repeats"], row["failures"]) for row in told["rows"]] == [
            ("schedule", "remind", "waiting", False, 0),
            ("schedule", "remind", "waiting", True, 0),
            ("queued", "send", "waiting", False, 1),
            ("queued", "send", "waiting", False, 0),
            ("fiber", "nap", "waiting", False, 0),
            ("fiber", "wreck", "failed", False, 0),
        ]
        assert [page[0] for page in one_each] == told["rows"]
        assert told["rows"][0]["arguments"] == {"what": "later"}
        assert [row["queue"] for row in told["rows"]] == [None, None, "post", "post", None, None]
        assert told["rows"][2]["error"] == "ValueError: no post for first"
        assert told["rows"][3]["due_at"] is None
        assert len({row["id"] for row in told["rows"]}) == 6
        assert STARTS == []


async def test_the_work_of_all_trees_is_listed_by_agent() -> None:
    async with running(app()) as world:
        for name in ("b", "a"):
            agent = await world.get_agent(AdminPlanner, name)
            await agent.plan()
            await agent.plan_below("x")
        await world.get_agent(AdminPlanner, "idle")
        await world.restart()
        STARTS.clear()

        whole = [row for page in await pages(world, "agenda", limit=3) for row in page]
        below = await ask(world, "agenda", address="AdminPlanner:a", below=True)
        own = await ask(world, "agenda", address="AdminPlanner:a")
        deep = await ask(world, "agenda", address="AdminPlanner:a/AdminPlanner:x", below=True)
        limited = Access("ann", frozenset[Scope](["look"]), Address.parse("AdminPlanner:a"))

        agents = ["AdminPlanner:a", "AdminPlanner:a/AdminPlanner:x", "AdminPlanner:b", "AdminPlanner:b/AdminPlanner:x"]
        assert [row["address"] for row in whole] == [agent for agent in agents for _ in range(2)]
        assert below["rows"] == whole[:4]
        assert own["rows"] == whole[:2]
        assert deep["rows"] == whole[2:4]
        assert [row["address"] for row in (await ask(world, "agenda", limited))["rows"]] == [
            row["address"] for row in whole[:4]
        ]
        assert STARTS == []


async def test_turns_are_not_listed() -> None:
    async with running(app()) as world:
        chat = await world.get_agent(AdminPlannerChat, "main")
        await chat.send("Pay.")
        await world.settled()

        assert (await ask(world, "questions"))["rows"]
        assert (await ask(world, "agenda", address="AdminPlannerChat:main"))["rows"] == []


async def test_without_the_scope_content_arguments_and_errors_are_hidden() -> None:
    async with running(app()) as world:
        await planned(world)

        row = (await ask(world, "agenda", LOOK, address=ROOT))["rows"][2]

        assert row["arguments"] == {"hidden": "object", "length": 1}
        assert row["error"]["hidden"] == "string"


async def test_a_schedule_is_made_due_and_a_preview_changes_nothing() -> None:
    async with running(app()) as world:
        await planned(world)
        await world.restart()
        STARTS.clear()
        row = await row_of(world, "remind", "schedule")

        told = await act(world, row, "fire", preview=True)
        assert (told, STARTS, CALLS) == ({"done": 0, "effect": "Calls remind() now."}, [], [])
        assert await act(world, row, "fire") == {"done": 1, "effect": "Calls remind() now."}
        await world.settled()

        assert CALLS == ["remind later"]
        with pytest.raises(NotFound):
            await act(world, row, "fire")


async def test_a_schedule_that_repeats_is_made_due_once_and_goes_on() -> None:
    async with running(app()) as world:
        await (await world.get_agent(AdminPlanner, "main")).plan()
        rows = (await ask(world, "agenda", address=ROOT))["rows"]
        (row,) = [row for row in rows if row["repeats"]]

        await act(world, row, "fire")
        await world.settled()

        assert CALLS == ["remind again"]
        assert [one["id"] for one in (await ask(world, "agenda"))["rows"] if one["repeats"]] == [row["id"]]


async def test_schedules_queued_calls_and_fibers_are_cancelled() -> None:
    async with running(app()) as world:
        await planned(world)
        effects = {
            ("remind", "schedule"): "Cancels the schedule of remind().",
            ("send", "queued"): "Removes send() from the queue 'post'.",
            ("nap", "fiber"): "Cancels the fiber 'nap'.",
        }
        for (name, kind), effect in effects.items():
            row = await row_of(world, name, kind)
            assert await act(world, row, "cancel", preview=True) == {"done": 0, "effect": effect}
            assert await row_of(world, name, kind) == row
            assert await act(world, row, "cancel") == {"done": 1, "effect": effect}
            with pytest.raises(NotFound):
                await act(world, row, "cancel")
        await world.settled()

        told = (await ask(world, "agenda", address=ROOT))["rows"]
        assert [(row["kind"], row["failures"]) for row in told] == [("schedule", 0), ("queued", 1), ("fiber", 0)]
        assert "second" in told[1]["error"]


async def test_what_failed_is_tried_again_at_once() -> None:
    async with running(app()) as world:
        await planned(world)
        AdminPlanner.is_broken = False
        for name, kind, effect in [
            ("send", "queued", "Calls send() again now."),
            ("wreck", "fiber", "Resumes the fiber 'wreck'."),
        ]:
            row = await row_of(world, name, kind)
            assert await act(world, row, "retry", preview=True) == {"done": 0, "effect": effect}
            assert await act(world, row, "retry") == {"done": 1, "effect": effect}
        await world.settled()

        assert sorted(CALLS) == ["send first", "send second", "wreck"]


async def test_a_fiber_that_could_not_be_recovered_is_recovered_without_its_backoff() -> None:
    async with running(app()) as world:
        await (await world.get_agent(AdminPlanner, "main")).go_fishing()
        await world.crash()
        await world.settled()
        row = await row_of(world, "fish", "fiber")
        assert row["failures"] > 0
        assert row["status"] == "waiting"

        AdminPlanner.is_broken = False
        assert await act(world, row, "retry") == {"done": 1, "effect": "Recovers the fiber 'fish'."}
        await world.settled()

        assert CALLS == ["fish"]
        with pytest.raises(NotFound):
            await act(world, row, "retry")


@pytest.mark.parametrize(
    ("name", "kind", "do"),
    [
        ("send", "queued", "fire"),
        ("nap", "fiber", "fire"),
        ("remind", "schedule", "retry"),
        ("nap", "fiber", "retry"),
        ("wreck", "fiber", "cancel"),
    ],
)
async def test_what_does_not_fit_is_refused(name: str, kind: str, do: str) -> None:
    async with running(app()) as world:
        await planned(world)
        row = await row_of(world, name, kind)

        with pytest.raises(InvalidArguments):
            await act(world, row, do, preview=True)


@pytest.mark.parametrize("id", ["", "x", "0-0", "1-0000000000", "fiber:1-0000000000", "9" * 30])
async def test_an_id_of_other_work_is_refused(id: str) -> None:
    async with running(app()) as world:
        await planned(world)

        with pytest.raises(NotFound):
            await ask(world, "act", address=ROOT, id=id, do="cancel")
        with pytest.raises(NotFound):
            await ask(world, "act", address=ROOT, id=id, do="replay")


@pytest.mark.parametrize("after", ["", "x", '["AdminPlanner:main","other",1]'])
async def test_a_cursor_of_something_else_is_refused(after: str) -> None:
    async with running(app()) as world:
        await planned(world)

        with pytest.raises(InvalidArguments):
            await ask(world, "agenda", after=after)


async def test_dead_letters_are_called_again_or_deleted() -> None:
    async with running(app()) as world:
        agent = await world.get_agent(AdminPlanner, "main")
        for _ in range(3):
            await agent.lose()
        await world.settled()
        AdminPlanner.is_broken = False
        letters = (await ask(world, "dead-letters"))["letters"]
        one: dict[str, Any] = {"address": ROOT, "id": letters[0]["id"]}

        assert await ask(world, "act", **one, do="replay", preview=True) == {
            "done": 0,
            "effect": "Calls send() again, with the same arguments.",
        }
        assert CALLS == []
        assert (await ask(world, "act", **one, do="replay"))["done"] == 1
        await world.settled()
        assert CALLS == ["send lost"]
        told = await ask(world, "act", address=ROOT, id="all", do="delete", preview=True)
        assert told["effect"] == "Deletes 2 dead letters."
        assert (await ask(world, "act", address=ROOT, id="all", do="delete"))["done"] == 2
        assert (await ask(world, "dead-letters"))["letters"] == []
        assert CALLS == ["send lost"]


async def test_calls_that_fail_again_and_again_are_shown_until_they_are_cancelled() -> None:
    async def failing(world: World) -> list[tuple[str, str, int]]:
        rows = (await ask(world, "top"))["failing"]
        assert all(row["due_at"] > 0 and "worker" in row for row in rows)
        return [(row["address"], row["method"], row["failures"]) for row in rows]

    async with running(app()) as world:
        agent = await world.get_agent(AdminPlanner, "main")
        await agent.storm()
        await world.settled()
        for _ in range(100):  # the delays are random
            (row,) = (await ask(world, "agenda"))["rows"]
            number = row["failures"]
            assert await failing(world) == ([(ROOT, "send", number)] if number >= 3 else [])
            if number > 4:
                break
            await world.clock.advance(15)
            await world.settled()
        else:
            raise AssertionError("It does not fail again.")

        await ask(world, "act", address=ROOT, id=row["id"], do="cancel")
        assert await failing(world) == []


async def test_a_dead_letter_is_replayed_under_the_new_name_of_its_method() -> None:
    async with running(app()) as world:
        agent = await world.get_agent(AdminPlanner, "main")
        await agent.lose()
        await world.settled()
        (letter,) = (await ask(world, "dead-letters"))["letters"]
        one: dict[str, Any] = {"address": ROOT, "id": letter["id"], "do": "replay"}

        told = await ask(world, "act", **one, method="remind", preview=True)
        assert told["effect"] == "Calls remind() with the arguments of send()."
        for wrong, error in (
            ("nothing", SignatureChanged),
            ("plan", SignatureChanged),  # it takes no arguments
            ("destroy", InvalidArguments),
            ("_sapwood_sweep_runs", InvalidArguments),
        ):
            with pytest.raises(error):
                await ask(world, "act", **one, method=wrong)
        with pytest.raises(InvalidArguments, match="for `replay` only"):
            await ask(world, "act", address=ROOT, id=letter["id"], do="delete", method="remind")
        assert (await ask(world, "dead-letters"))["letters"] == [letter]

        assert (await ask(world, "act", **one, method="remind"))["done"] == 1
        await world.settled()
        assert CALLS == ["remind lost"]
        assert (await ask(world, "dead-letters"))["letters"] == []


async def test_dead_letters_whose_arguments_do_not_fit_the_new_method_are_skipped() -> None:
    async with running(app()) as world:
        agent = await world.get_agent(AdminPlanner, "main")
        for lose in (agent.lose_wreck, agent.lose, agent.lose_wreck, agent.lose):
            await lose()
        await world.settled()

        told = await ask(world, "act", address=ROOT, id="all", do="replay", method="remind")
        await world.settled()

        of_four = "Called remind() with the arguments of 2 of 4 dead letters. The other arguments do not fit it."
        assert told == {"done": 2, "effect": of_four}
        assert CALLS == ["remind lost", "remind lost"]
        left = (await ask(world, "dead-letters"))["letters"]
        assert [letter["method"] for letter in left] == ["wreck", "wreck"]
        with pytest.raises(SignatureChanged):
            await ask(world, "act", address=ROOT, id="all", do="replay", method="remind")


async def test_work_is_found_while_the_index_of_alarms_is_made_again() -> None:
    async with running(app()) as world:
        await (await world.get_agent(AdminPlanner, "main")).plan_below("x")
        before = (await ask(world, "agenda"))["rows"]

        world.node.alarms.when_lost = lambda: None
        world.node.alarms.start_over(StoredDataError("a page does not match its checksum"))

        assert not world.node.alarms.is_whole
        assert len(before) == 2
        assert (await ask(world, "agenda"))["rows"] == before


async def test_work_is_found_after_its_root_got_another_type_id(tmp_path: Path) -> None:
    async def found(of: type[AdminPlanner], *, woken: bool) -> list[str]:
        async with running(App(agents=[of]), data=str(tmp_path)) as world:
            if woken:
                root = await world.get_agent(of, "main")
                await root.plan()
                await root.plan_below("x")
            await world.settled()
            whole = [row["address"] for row in (await ask(world, "agenda"))["rows"]]
            one_each = [row["address"] for page in await pages(world, "agenda", limit=1) for row in page]
            assert one_each == whole
            return list(dict.fromkeys(whole))

    @agent(type="planner-before")
    class PlannerBefore(AdminPlanner):
        pass

    assert await found(PlannerBefore, woken=True) == ["planner-before:main", "planner-before:main/AdminPlanner:x"]
    del PlannerBefore
    gc.collect()

    @agent(type="planner-after", aliases=["planner-before"])
    class PlannerAfter(AdminPlanner):
        pass

    assert await found(PlannerAfter, woken=False) == ["planner-before:main", "planner-before:main/AdminPlanner:x"]
    assert await found(PlannerAfter, woken=True) == ["planner-after:main", "planner-after:main/AdminPlanner:x"]
