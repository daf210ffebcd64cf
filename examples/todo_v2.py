"""The second version of the to-do list: tasks can be done."""

import asyncio
import sys
from dataclasses import dataclass, replace
from typing import Any

from sapwood import Agent, App, Settings


@dataclass(frozen=True)
class Task:
    text: str
    done: bool = False


@dataclass(frozen=True)
class Todo:
    title: str = "untitled"
    tasks: tuple[Task, ...] = ()


class TodoList(Agent[Todo]):
    initial_state = Todo()
    state_version = 2
    migrations = ("CREATE TABLE log (line TEXT NOT NULL) STRICT",)

    def upgrade_state(self, old: Any, version: int) -> Todo:
        # Version 1 had only texts: {"title": "…", "tasks": ["…", "…"]}
        return Todo(old["title"], tuple(Task(text) for text in old["tasks"]))

    async def add(self, text: str) -> Todo:
        self.set_state(replace(self.state, tasks=(*self.state.tasks, Task(text))))
        return self.state

    async def finish(self, text: str) -> Todo:
        tasks = tuple(
            replace(task, done=True) if task.text == text else task
            for task in self.state.tasks
        )
        self.set_state(replace(self.state, tasks=tasks))
        return self.state

    async def show(self) -> Todo:
        return self.state


async def main(data: str) -> None:
    async with App(agents=[TodoList], settings=Settings(data=data)) as app:
        home = await app.get_agent(TodoList, "home")
        await home.add("plant a tree")
        await home.finish("mend the roof")
        todo = await home.show()
        print(todo.title)
        for task in todo.tasks:
            print("[x]" if task.done else "[ ]", task.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "todo-data"))
