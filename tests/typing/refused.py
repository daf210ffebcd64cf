"""Check that both type checkers refuse programs that are wrong, at the very line that is.

Each program below is right but for the lines marked `# wrong`. A checker that says
nothing about such a line, or anything about another, fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

PRELUDE = """\
from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from sapwood import Agent, App, expose, with_options
from sapwood.client import connect


@dataclass(frozen=True)
class Stats:
    notes: int = 0


class Notebook(Agent[Stats]):
    initial_state = Stats()

    async def add(self, text: str, *, times: int = 1) -> int:
        return len(text) * times

    async def lines(self) -> AsyncIterator[str]:
        yield "line"


class Inbox(Agent):
    async def open(self) -> Notebook:
        return await self.sub_agent(Notebook, "n")


app = App(agents=[Inbox])


class Plain:
    async def add(self, text: str) -> int:
        return 1

"""

PROGRAMS = {
    "arguments": """
async def main(notebook: Notebook) -> None:
    await notebook.add("text", times=2)
    await notebook.add(3)  # wrong
    await notebook.add()  # wrong
    await notebook.add("text", 2)  # wrong
    await notebook.add("text", often=2)  # wrong
""",
    "results": """
async def main(notebook: Notebook) -> None:
    number: int = await notebook.add("text")
    text: str = await notebook.add("text")  # wrong
    forgotten: int = notebook.add("text")  # wrong
    async for line in notebook.lines():
        same: str = line
        other: int = line  # wrong
""",
    "options": """
async def main(notebook: Notebook) -> None:
    number: int = await with_options(notebook, timeout=3, idempotency_key="k").add("text")
    with_options(notebook, timeout="3")  # wrong
    with_options(notebook, retry=3)  # wrong
    with_options(notebook, idempotency_key=3)  # wrong
    with_options(notebook, 3)  # wrong
    await with_options(notebook, timeout=3).add(3)  # wrong
""",
    "methods": """
async def main(notebook: Notebook) -> None:
    await notebook.remove("text")  # wrong
    await notebook.state.missing()  # wrong
""",
    "children": """
class Parent(Agent):
    async def open(self) -> None:
        notebook: Notebook = await self.sub_agent(Notebook, "n")
        inbox: Inbox = await self.sub_agent(Notebook, "n")  # wrong
        await self.sub_agent(Plain, "n")  # wrong
        await self.sub_agent(Notebook, 3)  # wrong
        await self.children.delete(Plain, "n")  # wrong
        self.children.abort(Notebook)  # wrong
        parent: Inbox = await self.parent_agent(Inbox)
        wrong_parent: Notebook = await self.parent_agent(Inbox)  # wrong
""",
    "roots": """
async def main() -> None:
    inbox: Inbox = await app.get_agent(Inbox, "alice")
    notebook: Notebook = await app.get_agent(Inbox, "alice", sub=[(Notebook, "n")])
    wrong: Inbox = await app.get_agent(Inbox, "alice", sub=[(Notebook, "n")])  # wrong
    last: Notebook = await app.get_agent(Inbox, "alice", sub=((Inbox, "i"), (Notebook, "n")))
    not_last: Inbox = await app.get_agent(Inbox, "alice", sub=((Inbox, "i"), (Notebook, "n")))  # wrong
    unclear: Inbox = await app.get_agent(Inbox, "alice", sub=[(Inbox, "i"), (Notebook, "n")])  # wrong
    await app.get_agent(Inbox, "alice", sub=((Plain, "p"), (Notebook, "n")))  # wrong
    await app.get_agent(Inbox, "alice", sub=(Notebook, "n"))  # wrong
    await app.get_agent(Plain, "alice")  # wrong
    App(agents=[Plain])  # wrong
""",
    "state": """
class Board(Agent[Stats]):
    initial_state = Stats()

    async def change(self) -> None:
        self.set_state(Stats(1))
        self.set_state(1)  # wrong
        number: int = self.state.notes
        text: str = self.state.notes  # wrong
""",
    "exposed": """
class Open(Agent):
    @expose
    async def fine(self, text: str) -> int:
        return 1

    @expose
    async def stream(self, text: str) -> AsyncIterator[int]:
        yield 1

    @expose  # wrong
    def plain(self, text: str) -> int:
        return 1


async def main(open: Open) -> None:
    number: int = await open.fine("text")
    await open.fine(3)  # wrong
    async for item in open.stream("text"):
        text: str = item  # wrong
    open.stream()  # wrong
""",
    "remote": """
async def main() -> None:
    async with connect("http://127.0.0.1", Notebook, "n") as remote:
        number: int = await remote.stub.add("text")
        await remote.stub.add(3)  # wrong
        text: str = await remote.stub.add("text")  # wrong
        await remote.stub.remove("text")  # wrong
        notes: int = remote.state.notes
        wrong_notes: str = remote.state.notes  # wrong
        await remote.set_state(Stats(1))
        await remote.set_state(1)  # wrong
        async for line in remote.stub.lines():
            other: int = line  # wrong
    async with connect("http://127.0.0.1", Inbox, "i", sub=((Inbox, "j"), (Notebook, "n"))) as last:
        await last.stub.add("text")
        await last.stub.open()  # wrong
    connect("http://127.0.0.1", Notebook)  # wrong
""",
    "later": """
class Counting(Agent):
    async def heavy(self) -> None:
        number: int = await self.in_thread(len, "text")
        text: str = await self.in_thread(len, "text")  # wrong
        await self.in_thread(len)  # wrong
""",
}


def wrong_lines(program: str) -> set[int]:
    return {number for number, line in enumerate(program.splitlines(), start=1) if line.endswith("# wrong")}


def refused_by_pyright(folder: Path) -> dict[str, set[int]]:
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT / "src")], "pythonVersion": "3.11", "typeCheckingMode": "strict"})
    )
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(folder)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: dict[str, set[int]] = {}
    for problem in json.loads(output)["generalDiagnostics"]:
        if problem["severity"] == "error" and problem.get("rule") not in ("reportUnusedVariable", "reportUnusedImport"):
            line = problem["range"]["start"]["line"] + 1
            found.setdefault(Path(problem["file"]).stem, set()).add(line)
    return found


def refused_by_mypy(folder: Path) -> dict[str, set[int]]:
    files = sorted(str(path) for path in folder.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--show-error-codes"]
    command += ["--python-version", "3.11", "--cache-dir", str(ROOT / ".mypy_cache/refused"), *files]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    output = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout
    found: dict[str, set[int]] = {}
    for name, line in re.findall(r"([a-z]+)\.py:(\d+): error:", output):
        found.setdefault(name, set()).add(int(line))
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wrong: dict[str, set[int]] = {}
        for title, program in PROGRAMS.items():
            text = PRELUDE + program
            (folder / f"{title}.py").write_text(text)
            wrong[title] = wrong_lines(text)
        problems: list[str] = []
        for checker, refused in (("pyright", refused_by_pyright(folder)), ("mypy", refused_by_mypy(folder))):
            for title, expected in wrong.items():
                lines = (folder / f"{title}.py").read_text().splitlines()
                found = refused.get(title, set())
                problems += [f"{checker} accepts: {lines[n - 1].strip()}" for n in sorted(expected - found)]
                problems += [f"{checker} refuses: {lines[n - 1].strip()}" for n in sorted(found - expected)]
        print(*(problems or ["Both checkers refuse what is wrong."]), sep="\n")
        return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
