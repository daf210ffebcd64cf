"""Each migration guide has a program of another framework and one of ours: they print the same.

The other framework is installed with pinned versions into an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.command import said_by, serving, until
from tests.machine import patience
from tests.temporal.cluster import Temporal

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGES = ROOT / "docs/how-to"
PINS = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Guide:
    page: str
    program: str
    packages: tuple[str, ...]
    """Import names of the packages whose names the page uses."""


GUIDES = {
    "langgraph": Guide("coming-from-langgraph.md", "essays.py", ("langgraph", "langchain_core")),
    "openai-agents": Guide("coming-from-openai-agents.md", "complaints.py", ("agents",)),
    "pydantic-ai-dbos": Guide("coming-from-dbos.md", "digest.py", ("pydantic_ai", "dbos")),
    "pydantic-ai-temporal": Guide("coming-from-temporal.md", "booking.py", ("pydantic_ai", "temporalio")),
}


@pytest.fixture(params=GUIDES)
def framework(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.fixture
def theirs(framework: str, environments: Path) -> Path:
    """The Python of an environment that has the framework, and not sapwood."""
    uv = Path(sys.executable).with_name("uv")
    python = environments / framework / "bin/python"
    if not python.exists():
        pins = EXAMPLES / "migration" / framework / "requirements.txt"
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environments / framework], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "-r", pins], check=True)
    return python


@pytest.fixture
def temporal(tmp_path: Path) -> Iterator[Temporal]:
    server = Temporal(tmp_path, tmp_path / "temporal")
    asyncio.run(server.client())  # it may listen before it is ready
    yield server
    server.end(signal.SIGKILL)


@pytest.fixture
def commands(framework: str, theirs: Path, request: pytest.FixtureRequest) -> list[list[str]]:
    """Run the program of the framework, and ours."""
    name = GUIDES[framework].program
    needs_server = framework == "pydantic-ai-temporal"
    server = [request.getfixturevalue("temporal").host] if needs_server else []
    return [
        [str(theirs), "-u", str(EXAMPLES / "migration" / framework / name), *server],
        [sys.executable, "-u", str(EXAMPLES / name)],
    ]


KILLED_AT = """
import builtins, os, runpy, signal, sys

line, sys.argv = sys.argv[1], sys.argv[2:]
write = print

def print_and_die(text):
    write(text, flush=True)
    if text == line:
        os.kill(os.getpid(), signal.SIGKILL)

builtins.print = print_and_die
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A program that is killed when it has printed a line, and not a moment later."""


ABORTED = "Python runtime state: finalizing"
"""Native threads of Temporal's SDK can abort an interpreter that ends, after the last line of the program.

See https://github.com/temporalio/sdk-python/issues/300.
"""


def run(command: list[str], cwd: Path, *, ended: int = 0) -> str:
    """Return what a program prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_"))}
    done = subprocess.run(
        command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=patience(120), check=False
    )
    aborted = done.returncode == -signal.SIGABRT and ABORTED in done.stderr
    assert done.returncode == ended or aborted, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.nightly
def test_both_programs_of_a_guide_print_the_same(commands: list[list[str]], tmp_path: Path) -> None:
    theirs, ours = (run(command, tmp_path) for command in commands)

    assert theirs == ours
    assert theirs.count("\n") >= 3


KILLED = {
    "pydantic-ai-dbos": ("fetch Elms", "fetch Oaks", "sent: Oaks grow. Elms grow."),
    "pydantic-ai-temporal": ("pay 90", "look up Oslo", "90 euros are paid."),
}
"""The line at which a program is killed, the line of a step that is not repeated, and the result."""


@pytest.mark.nightly
@pytest.mark.parametrize("framework", KILLED, indirect=True)
def test_both_programs_continue_after_a_kill(framework: str, commands: list[list[str]], tmp_path: Path) -> None:
    last, done, result = KILLED[framework]
    for python, unbuffered, *program in commands:
        before = run(
            [python, unbuffered, "-c", KILLED_AT, last, *program], tmp_path, ended=-signal.SIGKILL
        ).splitlines()
        after = run([python, unbuffered, *program], tmp_path).splitlines()

        assert done in before
        assert result not in before
        assert done not in after
        assert result in after


WAITS = """
import os, signal, sys
from essays import Command, SqliteSaver, graph

with SqliteSaver.from_conn_string("essays.db") as saver:
    app = graph.compile(checkpointer=saver)
    thread = {"configurable": {"thread_id": "oaks"}}
    if sys.argv[1] == "before":
        app.invoke({"topic": "oaks"}, thread)
        os.kill(os.getpid(), signal.SIGKILL)
    print(app.get_state(thread).values["draft"])
    print(app.invoke(Command(resume="good"), thread)["draft"])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("framework", ["langgraph"], indirect=True)
def test_a_graph_that_waits_for_a_review_is_there_after_a_kill(framework: str, theirs: Path, tmp_path: Path) -> None:
    folder = EXAMPLES / "migration" / framework
    program = [str(theirs), "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{WAITS}"]
    run([*program, "before"], tmp_path, ended=-signal.SIGKILL)
    printed = run([*program, "after"], tmp_path)

    assert printed.splitlines() == ["All about oaks.", "All about oaks."]


@pytest.mark.nightly
def test_an_essay_that_waits_for_a_review_is_finished_after_a_kill(tmp_path: Path) -> None:
    program = ("serve", str(EXAMPLES / "essays.py"))
    with serving(tmp_path, *program):
        said_by(tmp_path, "call", "Essays:ann", "write", "oaks")
        until(lambda: open_questions(tmp_path, "Essays:ann"))

    with serving(tmp_path, *program):
        for draft, verdict in (("All about oaks.", "Shorter."), ("All about oaks. Shorter.", "good")):
            (question,) = until(lambda: open_questions(tmp_path, "Essays:ann"))
            assert question["prompt"] == draft
            said_by(tmp_path, "call", "Essays:ann", "questions.answer", question["id"], verdict)
        result = said_by(tmp_path, "call", "Essays:ann", "result", "oaks")

    assert json.loads(result) == "All about oaks. Shorter."


@pytest.mark.nightly
def test_a_refund_that_waits_for_an_approval_is_made_after_a_kill(tmp_path: Path) -> None:
    program = ("serve", str(EXAMPLES / "complaints.py"))
    with serving(tmp_path, *program):
        turn = json.loads(said_by(tmp_path, "call", "Desk:ann", "send", "The vase of order 17 is broken."))

    with serving(tmp_path, *program):
        (question,) = open_questions(tmp_path, "Desk:ann")
        said_by(tmp_path, "call", "Desk:ann", "questions.approve", question["id"])
        turn = json.loads(said_by(tmp_path, "call", "Desk:ann", "turns.wait", turn["id"]))

    assert (question["tool"], turn["text"]) == ("refund", "You get 25 euros for the vase.")


@pytest.mark.nightly
@pytest.mark.parametrize("framework", ["openai-agents"], indirect=True)
def test_a_session_is_exported_and_imported(framework: str, theirs: Path, tmp_path: Path) -> None:
    folder = EXAMPLES / "migration" / framework
    run([str(theirs), str(folder / "complaints.py"), "ann.db"], tmp_path)
    exported = run([str(theirs), str(folder / "export.py"), "ann.db"], tmp_path)
    (tmp_path / "ann.json").write_text(exported)

    printed = run([sys.executable, str(EXAMPLES / "continued.py"), "data", "ann.json"], tmp_path)

    assert [message["role"] for message in json.loads(exported)] == ["user", "assistant"] * 2
    assert printed == "It was order 17.\n"


def open_questions(folder: Path, address: str) -> list[dict[str, str]]:
    return json.loads(said_by(folder, "questions", address, "--json"))["questions"]


def test_a_guide_names_the_versions_that_its_program_runs_with(framework: str) -> None:
    page = (PAGES / GUIDES[framework].page).read_text()
    folder = EXAMPLES / "migration" / framework
    direct = PINS.findall((folder / "requirements.in").read_text())
    installed = PINS.findall((folder / "requirements.txt").read_text())

    assert [pin for pin in direct if pin not in installed] == []
    assert [pin for pin in direct if "{} {}".format(*pin) not in page.replace("`", "")] == []


@pytest.mark.nightly
def test_every_name_in_the_column_of_a_framework_is_there(framework: str, theirs: Path) -> None:
    guide = GUIDES[framework]
    used = {name for row in rows(guide.page) for name in names(row[0])}

    (site,) = theirs.parents[1].glob("lib/python*/site-packages")
    sources = [file.read_text() for package in guide.packages for file in (site / package).rglob("*.py")]
    unknown = used - set(re.findall(r"\w+", "\n".join(sources)))

    assert len(used) > 20
    assert not unknown, " ".join(sorted(unknown))


PLACEHOLDERS = {"Cls", "Essays", "fn", "key_or_id", "companion__spawnAgent"}
"""What the reader has, and a name that is composed at runtime."""


def test_every_name_in_the_column_of_sapwood_is_ours() -> None:
    pages = [page.name for page in PAGES.glob("coming-from-*.md")]
    used = {name for page in pages for row in rows(page) for name in names(row[1])}

    sources = [file.read_text() for file in (ROOT / "src/sapwood").rglob("*.py")]
    unknown = used - PLACEHOLDERS - set(re.findall(r"\w+", "\n".join(sources)))

    assert len(used) > 100
    assert not unknown, " ".join(sorted(unknown))


def rows(page: str) -> list[list[str]]:
    """Return the rows of the tables that compare names with those of sapwood."""
    tables = re.findall(r"^\| [^|]+ \| sapwood \|.*\n\|---.*\n((?:\|.*\n)+)", (PAGES / page).read_text(), re.MULTILINE)
    return [line.removeprefix("| ").split(" | ") for table in tables for line in table.splitlines()]


def names(cell: str) -> list[str]:
    """Return the identifiers in the code of a cell, without those in strings."""
    code = " ".join(re.findall(r"`([^`]+)`", cell))
    return re.findall(r"[A-Za-z_]\w*", re.sub(r'"[^"]*"', "", code))
