"""`sapwood replay` asks the requests of a turn again: of each provider, and of a running server and a folder."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from tests.e2e.command import PATIENCE, Process, said_by, sapwood, serving
from tests.e2e.provider import DIALECTS, Dialect, Reply, providing, torn
from tests.unit.admin_requests import ask

from sapwood import App, ChatAgent, tool
from sapwood.kernel.node.data_folder import roots_in
from sapwood.testing import ScriptedModel, call, running, text

EXAMPLES = Path(__file__).parents[2] / "examples"


class Desk(ChatAgent):
    """Answers questions."""

    instructions = "Be short."

    @tool
    async def look(self, about: str) -> str:
        """Look something up."""
        return f"{about} found"


@pytest.mark.realtime("the provider is a real server")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_turn_of_each_provider_is_replayed_by_another_model(dialect: Dialect) -> None:
    asks = Reply(torn(b"".join(dialect.events(["Well. "], [("look", {"about": "ü🌲"}, "c1")]))), stays=True)
    answers = Reply(torn(b"".join(dialect.events(["Grüße 🌲"]))), stays=True)
    other = ScriptedModel(call("look", about="ü🌲"), text("Hallo"), each=True)
    async with providing(asks, answers, asks, answers) as provider:
        model = dialect.model(provider.port)
        cls = type("Desk", (Desk,), {"model": model})
        async with running(App(agents=[cls], models={"other": other}), slow_slices="allow") as world:
            turn = await (await world.get_agent(cls, "main")).send("Hello!")
            found = await ask(world, "replay", address="Desk:main", turn=turn.id, model="other")
            assert [(one["text"], one["same"]) for one in found["replay"]["steps"]] == [("", False), ("Hallo", False)]
            again = await ask(world, "replay", address="Desk:main", turn=turn.id)
    assert again["replay"]["ended"] == "completed", again["replay"]["problem"]
    assert [one["same"] for one in again["replay"]["steps"]] == [True, True]
    assert [one.raw for one in provider.requests[2:]] == [one.raw for one in provider.requests[:2]]


@pytest.mark.slow
def test_a_conversation_of_a_server_is_replayed_by_two_models(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "rivers.py", tmp_path)
    with serving(tmp_path, "serve", "rivers:app") as server:
        turn = json.loads(said_by(tmp_path, "call", "Desk:main", "send", '"How long is the Nile?"'))["id"]
        table = said_by(tmp_path, "replay", "Desk:main", turn, "--model", "careful", "--model", "hasty", "--times", "2")
        told = json.loads(said_by(tmp_path, "replay", "Desk:main", turn, "--step", "2", "--json"))
        unknown = sapwood(tmp_path, "replay", "Desk:main", turn, "--model", "nothing")
        runs = json.loads(said_by(tmp_path, "runs", "Desk:main", "--json"))["runs"]
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE)

    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in table.splitlines() if "│" in line]
    assert [row[:4] for row in rows] == [
        ["original", "", "1", 'scout(message="Nile")'],
        ["original", "", "2", "The Nile is 6650 km long."],
        ["careful", "1", "1", "the same"],
        ["careful", "1", "2", "the same"],
        ["careful", "2", "1", "the same"],
        ["careful", "2", "2", "the same"],
        ["hasty", "1", "1", "The Nile is about 1000 km long."],
        ["hasty", "2", "1", "The Nile is about 1000 km long."],
    ]
    assert table.splitlines()[-1].startswith("6 requests: ")
    assert [one["steps"][0]["same"] for one in told["replays"]] == [True]
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "error: The model 'nothing' cannot be used: Unknown model: nothing. Names of App(models=…): careful, hasty.\n",
    )
    assert len(runs) == 1  # the scout was asked once: when it happened
    offline = sapwood(tmp_path, "replay", "Desk:main", turn, "--model", "test", "--step", "2")
    assert offline.returncode == 0, offline.stderr


ENDLESS = """
import asyncio
import sys

from pydantic_ai.models.function import FunctionModel

from sapwood import App, ChatAgent


async def short(messages, info):
    yield "short"


async def endless(messages, info):
    print("asked", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
    yield ""


class ReplayedEndlessly(ChatAgent):
    model = FunctionModel(stream_function=short)


app = App(agents=[ReplayedEndlessly], models={"endless": FunctionModel(stream_function=endless)})
"""


@pytest.mark.slow
def test_a_replay_that_is_interrupted_ends_at_the_server(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ENDLESS)
    with serving(tmp_path, "serve", "app:app") as server:
        turn = json.loads(said_by(tmp_path, "call", "ReplayedEndlessly:main", "send", '"Hello!"'))["id"]
        replay = Process(tmp_path, "replay", "ReplayedEndlessly:main", turn, "--model", "endless")
        server.wait_for(re.compile("asked"))

        replay.process.send_signal(signal.SIGINT)

        server.wait_for(re.compile("turn replayed .* model=endless .* requests=0"))
        assert replay.process.wait(PATIENCE) != 0
        server.stop()


@pytest.mark.slow
def test_evals_with_a_model_that_fails_the_gate(tmp_path: Path) -> None:
    for name in ("rivers.py", "river_evals.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    done = sapwood(tmp_path, "eval", "river_evals.py", "--model", "hasty", "--junit", "report.xml")
    assert done.returncode == 1
    assert "rivers (hasty), nile: TellsLength: the answer is 'The Nile is about 1000 km long.'\n" in done.stderr
    assert "✔" not in done.stdout
    assert done.stdout.splitlines()[-2].replace("│", " ").split()[:5] == ["rivers", "(hasty)", "✗", "0", "of"]
    (suite,) = ET.parse(tmp_path / "report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("20", "20", "0")
    wrong = sapwood(tmp_path, "eval", "rivers.py")
    assert (wrong.returncode, wrong.stderr) == (
        1,
        (
            "error: 'rivers.py' must define one task and at least one Dataset, but it defines 0 tasks and 0 datasets. "
            "Write task = turn_task(app, Desk) and dataset = Dataset(…).\n"
        ),
    )


FORKING = """
import asyncio
import sys

from pydantic_ai.models.function import FunctionModel
from pydantic_evals import Case, Dataset

from sapwood import App, ChatAgent
from sapwood.evals import turn_task


async def endless(messages, info):
    if len(messages) == 1:
        yield "short"
        return
    print("asked", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


class EvaluatedEndlessly(ChatAgent):
    model = FunctionModel(stream_function=endless)


app = App(agents=[EvaluatedEndlessly])
dataset = Dataset(name="endless", cases=[Case(inputs="Hello?") for _ in range(2)])
task = turn_task(app, EvaluatedEndlessly, "main")
"""


@pytest.mark.slow
def test_an_interrupted_eval_leaves_no_forks(tmp_path: Path) -> None:
    (tmp_path / "evals.py").write_text(FORKING)
    with serving(tmp_path, "serve", "evals:app") as server:
        said_by(tmp_path, "call", "EvaluatedEndlessly:main", "send", '"Hello!"')
        server.stop()

    def interrupted(number: int) -> tuple[int, list[str]]:
        """Return the exit code of evals that receive a signal, and the roots that are left."""
        process = Process(tmp_path, "eval", "evals.py")
        process.wait_for(re.compile("asked"))
        process.process.send_signal(number)
        code = process.process.wait(PATIENCE)
        return code, [one.name for one in roots_in(tmp_path / "sapwood-data")]

    assert interrupted(signal.SIGINT) == (130, ["main"])
    assert interrupted(signal.SIGTERM) == (143, ["main"])
    _, left = interrupted(signal.SIGKILL)
    assert any("~eval-" in one for one in left)
    assert interrupted(signal.SIGTERM) == (143, ["main"])
