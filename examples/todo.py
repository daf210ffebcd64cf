"""A to-do list: a state that clients see, and a table that they do not see."""

import asyncio
import sys
from dataclasses import dataclass, replace

from sapwood import Agent, App, Settings


@dataclass(frozen=True)
class Todo:
    title: str = "untitled"
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tasks) > 3:
            raise ValueError("Three tasks are enough. Do one first.")


class TodoList(Agent[Todo]):
    initial_state = Todo()
    migrations = ("CREATE TABLE log (line TEXT NOT NULL) STRICT",)

    async def rename(self, title: str) -> Todo:
        self.set_state(replace(self.state, title=title))
        return self.state

    async def add(self, task: str) -> Todo:
        self.sql("INSERT INTO log VALUES (?)", f"add {task}")
        self.set_state(replace(self.state, tasks=(*self.state.tasks, task)))
        return self.state

    async def show(self) -> Todo:
        return self.state

    async def tries(self) -> int:
        return self.sql("SELECT count(*) FROM log").scalar(int)


async def main(data: str) -> None:
    async with App(agents=[TodoList], settings=Settings(data=data)) as app:
        home = await app.get_agent(TodoList, "home")
        print("found:  ", await home.show())
        await home.rename("House and garden")
        try:
            for task in ("water the plants", "mend the roof"):
                await home.add(task)
        except ValueError as error:
            print("refused:", error)
        print("left:   ", await home.show())
        print("tries:  ", await home.tries())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "todo-data"))
