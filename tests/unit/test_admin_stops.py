"""An operator cancels runs and turns, restarts and deletes agents, after a preview that counts them."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest
from tests.unit.admin_requests import ask

from sapwood import Agent, App, ChatAgent, NotFound, agent_tool, tool
from sapwood.errors import Aborted, InvalidArguments, Unavailable, UsageError
from sapwood.testing import ScriptedModel, World, call, running, text

MAIN = "AdminBoss:main"
STARTS: list[str] = []
FREE = asyncio.Event()


@pytest.fixture(autouse=True)
def _reset() -> None:
    global FREE  # noqa: PLW0603 - an event belongs to one loop
    FREE = asyncio.Event()
    STARTS.clear()


class AdminWorker(Agent):
    """Works until it is told to stop, and has helpers that do the same."""

    async def on_start(self) -> None:
        STARTS.append(str(self.address))

    async def on_run(self, depth: int) -> str:
        if depth:
            await self.runs.map(AdminWorker, [depth - 1] * 2)
        else:
            await FREE.wait()
        return "done"


class AdminBoss(Agent):
    """Starts runs, and has children."""

    async def on_start(self) -> None:
        STARTS.append(str(self.address))

    async def begin(self, id: str, depth: int) -> None:
        await self.start_run(AdminWorker, depth, run_id=id)

    async def grow(self, *names: str) -> None:
        for name in names:
            await (await self.sub_agent(AdminBoss, name)).note()

    async def grow_below(self, name: str, *names: str) -> None:
        await (await self.sub_agent(AdminBoss, name)).grow(*names)

    async def note(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS notes (text TEXT)")

    async def hang(self) -> None:
        await FREE.wait()

    async def stop_child(self, name: str) -> None:
        self.children.abort(AdminBoss, name, "enough")


class AdminBossHelper(ChatAgent):
    """Looks something up, which takes long."""

    model = ScriptedModel(call("wait", id="w1"), text("Found."), each=True)

    @tool
    async def wait(self) -> str:
        """Wait."""
        await FREE.wait()
        return "waited"


class AdminBossChat(ChatAgent):
    """Lets a helper look something up."""

    model = ScriptedModel(call("admin_boss_helper", id="c1", message="look"), text("Done."), each=True)
    tools = (agent_tool(AdminBossHelper),)


def app() -> App:
    return App(agents=[AdminBoss, AdminBossChat])


async def statuses(world: World, address: str = MAIN) -> list[str]:
    return [row["status"] for row in (await ask(world, "runs", address=address))["rows"]]


async def test_a_run_is_cancelled_with_all_runs_below_it_after_a_preview_that_counts_them() -> None:
    async with running(app()) as world:
        boss = await world.get_agent(AdminBoss, "main")
        await boss.begin("deep", 2)
        await boss.begin("flat", 0)
        await world.settled()
        about: dict[str, Any] = {"address": MAIN, "run": "deep"}

        told = await ask(world, "cancel-run", **about, preview=True)
        assert (told["done"], told["effect"].partition(". ")[2]) == (0, "Stops 7 agents.")
        assert await statuses(world) == ["running", "running"]
        assert (await ask(world, "cancel-run", **about))["done"] == 1
        await world.settled()

        assert await statuses(world) == ["running", "cancelled"]
        with pytest.raises(NotFound):
            await ask(world, "cancel-run", **about)


async def test_the_preview_of_a_run_wakes_no_agent() -> None:
    async with running(app()) as world:
        boss = await world.get_agent(AdminBoss, "main")
        await boss.begin("deep", 1)
        await world.settled()
        world.sleep()
        STARTS.clear()

        told = await ask(world, "cancel-run", address=MAIN, run="deep", preview=True)

        assert told["effect"].endswith("Stops 3 agents.")
        assert STARTS == []


async def test_the_running_turn_is_cancelled_with_the_runs_below_it() -> None:
    async with running(app()) as world:
        chat = await world.get_agent(AdminBossChat, "main")
        for message in ("one", "two", "three"):
            await chat.turns.start(message)
        await world.settled()
        about: dict[str, Any] = {"address": "AdminBossChat:main"}
        work = (await ask(world, "works", **about))["rows"][-1]["work"]

        told = await ask(world, "cancel-turn", **about, turn=work, preview=True)
        assert told["effect"].endswith("Stops 1 agent.")
        told = await ask(world, "cancel-turn", **about, preview=True)
        assert told == {"done": 0, "effect": "Cancels 3 turns. Stops 1 agent."}
        assert (await ask(world, "cancel-turn", **about))["done"] == 3
        await world.settled()

        assert await statuses(world, "AdminBossChat:main") == ["cancelled"]
        with pytest.raises(NotFound):
            await ask(world, "cancel-turn", **about)


async def test_one_turn_is_cancelled_and_the_next_one_begins() -> None:
    async with running(app()) as world:
        chat = await world.get_agent(AdminBossChat, "main")
        first, second = [await chat.turns.start(message) for message in ("one", "two")]
        await world.settled()

        assert (await ask(world, "cancel-turn", address="AdminBossChat:main", turn=first.id))["done"] == 1
        FREE.set()
        assert (await chat.turns.wait(second.id)).status == "completed"
        assert (await chat.turns.wait(first.id)).status == "cancelled"


async def test_a_root_is_created_and_started_once() -> None:
    async with running(app()) as world:
        STARTS.clear()
        new = "AdminBoss:new"

        assert await ask(world, "create", address=new, preview=True) == {
            "done": 0,
            "effect": "Creates AdminBoss:new and starts it.",
        }
        assert STARTS == []
        assert (await ask(world, "create", address=new))["done"] == 1
        assert STARTS == ["AdminBoss:new"]
        assert await ask(world, "create", address=new) == {"done": 0, "effect": "Changes nothing: it exists."}
        for refused in ("AdminBoss:new/AdminBoss:a", "Nothing:new"):
            with pytest.raises(InvalidArguments, match="root"):
                await ask(world, "create", address=refused)


async def test_agents_in_memory_are_restarted_and_those_that_sleep_stay_asleep() -> None:
    async with running(app()) as world:
        boss = await world.get_agent(AdminBoss, "main")
        await boss.grow("a", "b")
        hanging = asyncio.ensure_future(boss.hang())
        await world.settled()
        STARTS.clear()

        told = await ask(world, "restart", address=MAIN, preview=True)
        assert told == {"done": 0, "effect": "Restarts 3 agents and ends 1 call."}
        assert not hanging.done()
        assert (await ask(world, "restart", address=MAIN))["done"] == 3

        with pytest.raises(Unavailable, match="operator"):
            await hanging
        assert STARTS == []
        assert (await ask(world, "restart", address=MAIN))["effect"].startswith("Changes nothing")
        await boss.note()
        assert STARTS == [MAIN]


async def test_work_goes_on_by_itself_after_a_restart() -> None:
    async with running(app()) as world:
        boss = await world.get_agent(AdminBoss, "main")
        await boss.begin("flat", 0)
        await world.settled()

        await ask(world, "restart", address=MAIN)
        FREE.set()
        await world.clock.advance(5)
        await world.settled()

        assert await statuses(world) == ["completed"]


async def test_an_aborted_agent_answers_again_after_a_restart() -> None:
    async with running(app()) as world:
        boss = await world.get_agent(AdminBoss, "main")
        await boss.grow("a")
        child = await world.get_agent(AdminBoss, "main", sub=[(AdminBoss, "a")])
        await boss.stop_child("a")
        with pytest.raises(Aborted):
            await child.note()

        told = await ask(world, "restart", address=f"{MAIN}/AdminBoss:a")

        assert told["effect"] == "Restarts 0 agents and ends 0 calls. Lets 1 agent answer again after an abort."
        await child.note()


async def test_an_agent_is_deleted_with_all_below_it_once_its_name_is_given() -> None:
    async with running(app()) as world:
        boss = await world.get_agent(AdminBoss, "main")
        await boss.grow("a", "b")
        await boss.grow_below("a", "x", "y")
        about: dict[str, Any] = {"address": f"{MAIN}/AdminBoss:a"}

        told = await ask(world, "destroy", **about, preview=True)
        assert told == {"done": 0, "effect": f"Deletes {MAIN}/AdminBoss:a and 2 agents below it."}
        for name in (None, "", "A", "main"):
            with pytest.raises(InvalidArguments):
                await ask(world, "destroy", **about, name=name)
        assert (await ask(world, "destroy", **about, name="a"))["done"] == 3

        rows = (await ask(world, "agents", address=MAIN))["rows"]
        assert [row["name"] for row in rows] == ["b"]
        with pytest.raises(NotFound):
            await ask(world, "destroy", **about, name="a")


async def test_a_root_is_deleted_with_its_tree() -> None:
    async with running(app()) as world:
        boss = await world.get_agent(AdminBoss, "main")
        await boss.grow("a", "b")
        await boss.grow_below("a", "x")

        told = await ask(world, "destroy", address=MAIN, preview=True)
        assert told == {"done": 0, "effect": f"Deletes {MAIN} and 3 agents below it."}
        assert (await ask(world, "destroy", address=MAIN, name="main"))["done"] == 4
        await world.settled()

        assert (await ask(world, "agents"))["rows"] == []


async def test_a_root_that_cannot_start_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(app()) as world:
        await (await world.get_agent(AdminBoss, "main")).note()
        await world.restart()

        async def on_start(self: AdminBoss) -> None:
            raise ValueError("broken")

        monkeypatch.setattr(AdminBoss, "on_start", on_start)
        assert (await ask(world, "destroy", address=MAIN, name="main"))["done"] == 1
        await world.settled()

        assert (await ask(world, "agents"))["rows"] == []


async def test_a_message_of_the_operator_is_answered_once() -> None:
    async with running(app()) as world:
        await world.get_agent(AdminBossChat, "main")
        await world.get_agent(AdminBoss, "main")
        FREE.set()
        about: dict[str, Any] = {"address": "AdminBossChat:main", "message": "Look.", "id": "studio-1"}

        preview = await ask(world, "send", **about, preview=True)
        sent = [await ask(world, "send", **about) for _ in range(2)]
        await world.settled()

        assert (preview["done"], preview["turn"]) == (0, None)
        assert [one["turn"] for one in sent] == ["studio-1"] * 2
        (turn,) = (await ask(world, "works", address="AdminBossChat:main"))["rows"]
        assert (turn["input"], turn["facts"]["user"], turn["status"]) == ("Look.", "operator", "completed")
        rows = (await ask(world, "transcript", address="AdminBossChat:main"))["rows"]
        said = [row["message"]["parts"][-1]["text"] for row in rows]
        assert said == ["Done.", "Look."]
        with pytest.raises(InvalidArguments, match="not a chat agent"):
            await ask(world, "send", address=MAIN, message="Look.")
        with pytest.raises(InvalidArguments, match="empty"):
            await ask(world, "send", address="AdminBossChat:main", message=" ")
        known = next(row["message"]["id"] for row in rows if row["message"]["role"] == "user")
        await ask(world, "send", address="AdminBossChat:main", message="Again.", id=known.removeprefix("msg-"))
        await world.settled()
        rows = (await ask(world, "transcript", address="AdminBossChat:main"))["rows"]
        assert [row["message"]["parts"][-1]["text"] for row in rows] == ["Done.", "Again.", "Done.", "Look."]
        for id in ("notify-x-completed", "a b", "x" * 101):
            with pytest.raises(InvalidArguments, match="letters, digits"):
                await ask(world, "send", address="AdminBossChat:main", message="Look.", id=id)


class AdminChooser(ChatAgent):
    """Has another model for operators."""

    model = ScriptedModel(text("From the first."), each=True)
    alternative_models: ClassVar = {"other": ScriptedModel(text("From the other."), each=True)}


async def test_an_operator_chooses_one_of_the_models_of_the_class_for_one_message() -> None:
    async with running(App(agents=[AdminChooser])) as world:
        await world.get_agent(AdminChooser, "main")
        about: dict[str, Any] = {"address": "AdminChooser:main", "message": "Who?"}

        preview = await ask(world, "send", **about, model="other", preview=True)
        assert preview["models"] == ["other"]
        assert "The model 'other' answers." in preview["effect"]
        for model in ("other", None):
            await ask(world, "send", **about, model=model)
            await world.settled()

        rows = (await ask(world, "transcript", address="AdminChooser:main"))["rows"]
        said = [row["message"]["parts"][-1]["text"] for row in rows if row["role"] == "assistant"]
        assert said == ["From the first.", "From the other."]
        with pytest.raises(InvalidArguments, match=r"'openai:gpt-5' cannot be chosen: .* has: other"):
            await ask(world, "send", **about, model="openai:gpt-5")


async def test_the_chosen_model_is_kept_through_a_restart_and_a_lost_one_fails_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(App(agents=[AdminChooser])) as world:
        for name, models in (("kept", None), ("lost", {})):
            await world.get_agent(AdminChooser, name)
            monkeypatch.setattr(AdminChooser, "concurrency", "debounce")  # so that the turn is queued
            await ask(world, "send", address=f"AdminChooser:{name}", message="Who?", model="other")
            await world.restart()
            if models is not None:
                monkeypatch.setattr(AdminChooser, "alternative_models", models)
            await world.clock.advance(5)
            await world.settled()

            works = (await ask(world, "works", address=f"AdminChooser:{name}"))["rows"]
            (turn,) = [one for one in works if one["kind"] == "turn"]
            rows = (await ask(world, "transcript", address=f"AdminChooser:{name}"))["rows"]
            if models is None:
                assert rows[0]["message"]["parts"][-1]["text"] == "From the other."
            else:
                assert turn["status"] == "failed"


@pytest.mark.parametrize("models", [["openai:gpt-5"], {"": "openai:gpt-5"}, {"x": None}, {"x": 3}])
def test_alternative_models_are_models_by_names(models: Any) -> None:
    with pytest.raises(UsageError, match="alternative_models"):
        type("AdminMistaken", (ChatAgent,), {"alternative_models": models, "__module__": __name__})
