from dataclasses import dataclass
from pathlib import Path

import pytest

import todo
import todo_v2
from sapwood import Agent, App
from sapwood.errors import UsageError
from sapwood.testing import running


async def test_the_second_version_reads_the_state_of_the_first(tmp_path: Path) -> None:
    async with running(App(agents=[todo.TodoList]), data=tmp_path) as world:
        home = await world.get_agent(todo.TodoList, "home")
        await home.add("mend the roof")

    async with running(App(agents=[todo_v2.TodoList]), data=tmp_path) as world:
        home = await world.get_agent(todo_v2.TodoList, "home")
        assert (await home.show()).tasks == (todo_v2.Task("mend the roof"),)


@dataclass  # not frozen
class Visits:
    count: int = 0


class Door(Agent[Visits]):
    initial_state = Visits()

    async def enter(self) -> int:
        self.state.count += 1  # wrong: nothing is stored
        return self.state.count


async def test_changing_the_state_in_place_raises() -> None:
    async with running(App(agents=[Door])) as world:
        door = await world.get_agent(Door, "front")
        with pytest.raises(UsageError, match="changed in place"):
            await door.enter()
