"""Brackets: the output of a turn or a run has the declared type, wherever it is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel
from tests.conformance.worlds import Run as RunWorld

from sapwood import Agent, Branch, ChatAgent, Run, Turn, agent
from sapwood.errors import StoredDataError, UsageError
from sapwood.testing import ScriptedModel, call, text


@dataclass(frozen=True)
class Recipe:
    dish: str
    since: date


class City(BaseModel):
    name: str
    people: int


@dataclass(frozen=True)
class Kitchen:
    pots: int = 1


PIE = Recipe("pie", date(2026, 11, 18))


class Cook(ChatAgent[Recipe, Kitchen]):
    model = ScriptedModel(call("final_result", dish="pie", since="2026-11-18"), each=True)
    initial_state = Kitchen()

    async def after_turn(self, turn: Turn[Recipe]) -> None:
        self.set_state(Kitchen(self.state.pots + (turn.output == PIE)))

    async def pots(self) -> int:
        return self.state.pots


class Counter(ChatAgent[int]):
    model = ScriptedModel(call("final_result", response=3), each=True)
    initial_state = Kitchen()

    async def pots(self) -> int:
        return self.state.pots


class Guide(ChatAgent[City | str]):
    model = ScriptedModel(call("final_result", name="Bern", people=1), text("Which one?"), each=True)
    output_type = (City, str)


def submit(dish: str) -> Recipe:
    """Submit the dish."""
    return Recipe(dish, date(2026, 11, 18))


class Baker(ChatAgent[Recipe]):
    model = ScriptedModel(call("final_result", dish="pie"), each=True)
    output_type = submit


async def test_the_output_of_a_turn_is_of_the_type_in_the_brackets(run: RunWorld) -> None:
    async with run(Cook, Counter, Guide, Baker) as world:
        guide = await world.get_agent(Guide, "g")

        assert (await (await world.get_agent(Cook, "c")).send("go")).output == PIE
        assert (await (await world.get_agent(Counter, "c")).send("go")).output == 3
        assert (await (await world.get_agent(Baker, "b")).send("go")).output == PIE
        assert (await guide.send("go")).output == City(name="Bern", people=1)
        assert (await guide.send("go")).output == "Which one?"


async def test_the_output_of_a_turn_is_typed_in_hooks_and_after_a_crash(run: RunWorld) -> None:
    async with run(Cook) as world:
        cook = await world.get_agent(Cook, "c")
        turn = await cook.turns.start("go", id="t1")
        assert turn.output is None
        await cook.turns.wait("t1")

        await world.crash()

        cook = await world.get_agent(Cook, "c")
        assert (await cook.turns.wait("t1")).output == PIE
        assert await cook.pots() == 2
        (stored,) = (await cook.conversation.export())["turns"]
        assert stored["output"] == {"dish": "pie", "since": "2026-11-18"}


async def test_brackets_with_an_output_only_leave_the_state_to_the_initial_state(run: RunWorld) -> None:
    async with run(Counter) as world:
        assert await (await world.get_agent(Counter, "c")).pots() == 1


def test_an_output_type_that_differs_from_the_brackets_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Torn.output_type is str, but the class is a ChatAgent\[int\]. Remove outp"):

        class Torn(ChatAgent[int]):  # pyright: ignore[reportUnusedClass]
            output_type = str  # pyright: ignore[reportAssignmentType]


def test_a_type_in_quotes_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Early: ChatAgent\['Later'\] names a type that is not defined yet"):

        class Early(ChatAgent["Later"]):  # pyright: ignore[reportUnusedClass]
            pass


class Later:
    pass


def test_a_typed_output_and_an_own_response_exclude_each_other() -> None:
    with pytest.raises(UsageError, match=r"Own has respond\(\), whose output is text, but is a ChatAgent\[int\]"):

        class Own(ChatAgent[int]):  # pyright: ignore[reportUnusedClass]
            async def respond(self, turn: Turn[int]) -> Any:
                yield "text"


class Smith(Agent):
    async def on_run(self, input: int) -> Recipe:
        return Recipe("pie" * input, date(2026, 11, 18))


class Liar(Agent):
    async def on_run(self, input: int) -> Recipe:
        return "no recipe"  # pyright: ignore[reportReturnType]


@agent(type="Shape")
class Old(Agent):
    async def on_run(self, input: int) -> int:
        return input


@agent(type="Shape")
class New(Agent):
    async def on_run(self, input: int) -> Recipe:
        return PIE


class Head(Agent):
    migrations = ("CREATE TABLE heard (dish TEXT NOT NULL) STRICT",)

    async def cook(self) -> tuple[Recipe, Recipe, Recipe]:
        smith = await self.run_agent(Smith, 1)
        chat = await self.run_agent(Cook, "go")
        started = await self.start_run(Smith, 1, on_finish=self.heard)
        return smith.output, chat.output, (await started.result()).output

    async def heard(self, run: Run[Recipe]) -> None:
        self.sql("INSERT INTO heard VALUES (?)", run.output.dish)

    async def dishes(self) -> list[str]:
        return [str(row["dish"]) for row in self.sql("SELECT dish FROM heard")]

    async def together(self) -> list[Recipe]:
        mapped = await self.runs.map(Smith, [1, 2])
        gathered = await self.runs.gather(Branch(Smith, 1), Branch(Smith, 2))
        fastest = await self.runs.race(Branch(Smith, 1))
        return [run.output for run in [*mapped, *gathered, fastest]]

    async def listed(self) -> list[str]:
        found = self.runs.get(self.runs.list()[0].id)
        assert found is not None
        return [type(run.output).__name__ for run in [*self.runs.list(), found]]

    async def lie(self) -> Run[Recipe]:
        return await self.run_agent(Liar, 1)

    async def old(self) -> int:
        return (await self.run_agent(Old, 1, run_id="r")).output

    async def new(self) -> Recipe:
        return (await self.run_agent(New, 1, run_id="r")).output


async def test_the_output_of_a_run_is_of_the_type_that_its_class_declares(run: RunWorld) -> None:
    async with run(Head) as world:
        head = await world.get_agent(Head, "h")

        assert await head.cook() == (PIE, PIE, PIE)
        assert await head.listed() == ["Recipe"] * 4
        while not (dishes := await head.dishes()):
            await world.clock.advance(1)
        assert dishes == ["pie"]

        await world.crash()

        assert await (await world.get_agent(Head, "h")).listed() == ["Recipe"] * 4


class Hooked(Agent):
    migrations = ("CREATE TABLE finished (output TEXT NOT NULL) STRICT",)

    async def cook(self) -> None:
        await self.run_agent(Smith, 1)
        await self.run_agent(Cook, "go")
        await self.run_agent(Liar, 1)

    async def on_run_finish(self, run: Run) -> None:
        self.sql("INSERT INTO finished VALUES (?)", repr(run.output))

    async def finished(self) -> list[str]:
        return [str(row["output"]) for row in self.sql("SELECT output FROM finished")]


async def test_the_output_of_a_run_is_typed_in_on_run_finish(run: RunWorld) -> None:
    async with run(Hooked) as world:
        hooked = await world.get_agent(Hooked, "h")
        await hooked.cook()
        for _ in range(100):
            if len(await hooked.finished()) == 3:
                break
            await world.clock.advance(1)
        assert sorted(await hooked.finished()) == sorted([repr(PIE), repr(PIE), "None"])


async def test_the_outputs_of_several_runs_are_typed(run: RunWorld) -> None:
    async with run(Head) as world:
        outputs = await (await world.get_agent(Head, "h")).together()

        assert [one.dish for one in outputs] == ["pie", "piepie", "pie", "piepie", "pie"]


async def test_a_result_that_does_not_fit_its_annotation_fails_the_run(run: RunWorld) -> None:
    async with run(Head) as world:
        ended = await (await world.get_agent(Head, "h")).lie()

        assert ended.status == "failed"
        assert ended.output is None


async def test_an_output_that_no_longer_fits_is_refused_and_listed_as_json(run: RunWorld) -> None:
    async with run(Head) as world:
        head = await world.get_agent(Head, "h")
        assert await head.old() == 1

        with pytest.raises(StoredDataError, match=r"The output of the run 'r' does not fit Shape"):
            await head.new()
        assert await head.listed() == ["int", "int"]
