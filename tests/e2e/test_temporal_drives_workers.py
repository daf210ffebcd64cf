"""Temporal drives the turns of `sapwood serve --workers`, whichever of the processes its worker happens to ask."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from tests.e2e.command import PATIENCE, Server, going_on, serving
from tests.temporal.cluster import Temporal

from sapwood.runtimes.workers.placement import ShardPlan, WorkerPart
from sapwood.types import Address

APP = """
import asyncio
import os
from pathlib import Path

from pydantic_ai.models.function import FunctionModel
from sapwood import App, ChatAgent, agent_tool
from sapwood.drivers.temporal import TemporalDriver
from sapwood.testing import ScriptedModel, call, text
from starlette.responses import JSONResponse


class Reporter(ChatAgent):
    \"\"\"Looks something up, and takes as long as the test wants.\"\"\"

    def get_model(self):
        return FunctionModel(stream_function=self._look, model_name="slow")

    async def _look(self, messages, info):
        Path("asked", f"{self.address.root.name} {os.getpid()}").touch()
        yield "I have "
        while not Path("enough").exists():
            await asyncio.sleep(0.01)
        yield "looked"


class Desk(ChatAgent):
    model = ScriptedModel(call("reporter", id="r1", message="Look."), text("It is printed."), each=True)
    tools = (agent_tool(Reporter),)

    async def on_request(self, request):
        turn = await self.turns.wait("t1")
        return JSONResponse([turn.status, turn.text])


driver = TemporalDriver(os.environ["TEMPORAL"], token="only-for-tests", patience=2.0)
app = App(agents=[Desk], driver=driver)
"""
GRACE = 3600
NAMES = [f"d{number}" for number in range(20)]
HERE = next(name for name in NAMES if WorkerPart(0, ShardPlan(2)).is_here(Address.root_of("Desk", name)))
THERE = next(name for name in NAMES if WorkerPart(1, ShardPlan(2)).is_here(Address.root_of("Desk", name)))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "asked").mkdir()
    return tmp_path


@pytest.fixture
def temporal(tmp_path: Path) -> Iterator[Temporal]:
    server = Temporal(tmp_path, tmp_path / "temporal")
    yield server
    server.end(signal.SIGKILL)


@pytest.fixture
def two(project: Path, temporal: Temporal) -> Iterator[Server]:
    """Two processes that share the agents, and one that works for Temporal."""
    told = {"TEMPORAL": temporal.host}
    with (
        serving(project, "serve", "app:app", "--workers", "2", "--grace", str(GRACE), **told) as server,
        going_on(project, "temporal", "worker", "app:app", **told),
    ):
        yield server


def say(server: Server, name: str) -> None:
    """Begin a turn, and leave."""
    message = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "A bulletin, please."}]}
    body = json.dumps({"messages": [message], "trigger": "submit-message"})
    asked = {"id": "t1", "init": {"method": "POST", "body": body}, "type": "cf_agent_use_chat_request"}
    with server.connect(f"/agents/desk/{name}") as client:
        client.send(json.dumps(asked))
        while json.loads(client.recv(PATIENCE)).get("type") != "cf_agent_chat_messages":
            pass


def asked(project: Path, name: str) -> list[int]:
    """Return the processes in which the reporter of this desk was asked."""
    return sorted(int(found.name.split()[1]) for found in (project / "asked").glob(f"{name} *"))


def until(look: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.02)
    return found


def turn(server: Server, name: str) -> list[str] | None:
    status, text = server.get(f"/agents/desk/{name}")
    return json.loads(text) if status == 200 else None


async def workflows(temporal: Temporal) -> dict[str, tuple[str, str | None]]:
    """Return how each workflow stands, and which one began it."""
    client = await temporal.client()
    found: dict[str, tuple[str, str | None]] = {}
    async for one in client.list_workflows():
        description = await client.get_workflow_handle(one.id).describe()
        status = description.status or WorkflowExecutionStatus.RUNNING
        found[one.id] = status.name, description.parent_id
    return found


@pytest.mark.nightly
def test_turns_of_all_workers_are_driven_and_go_on_when_one_of_them_is_killed_amid_a_step(
    two: Server, temporal: Temporal, project: Path
) -> None:
    for name in (HERE, THERE):
        say(two, name)
    (here,), (there,) = (until(lambda name=name: asked(project, name)) for name in (HERE, THERE))
    assert here != there

    os.kill(there, signal.SIGKILL)
    until(lambda: len(asked(project, THERE)) == 2)
    (project / "enough").touch()

    for name in (HERE, THERE):
        until(lambda name=name: turn(two, name) == ["completed", "It is printed."])
    assert asked(project, HERE) == [here]
    below = "Reporter:agent-tool%3Ar1 agent-tool:r1"
    expected = {f"Desk:{name} t1": ("COMPLETED", None) for name in (HERE, THERE)}
    expected |= {f"Desk:{name}/{below}": ("COMPLETED", f"Desk:{name} t1") for name in (HERE, THERE)}
    until(lambda: asyncio.run(workflows(temporal)) == expected)


@pytest.mark.nightly
def test_temporal_stops_a_turn_in_any_worker(two: Server, temporal: Temporal, project: Path) -> None:
    for name in (HERE, THERE):
        say(two, name)
    for name in (HERE, THERE):
        until(lambda name=name: asked(project, name))

    async def stop() -> None:
        client = await temporal.client()
        await client.get_workflow_handle(f"Desk:{THERE} t1").cancel()
        await client.get_workflow_handle(f"Desk:{HERE} t1").signal("interrupt")

    asyncio.run(stop())

    for name in (HERE, THERE):
        until(lambda name=name: (turn(two, name) or [None])[0] == "cancelled")
    ends = {f"Desk:{HERE} t1": "COMPLETED", f"Desk:{THERE} t1": "CANCELED"}
    until(lambda: {id: how for id, (how, above) in asyncio.run(workflows(temporal)).items() if above is None} == ends)


@pytest.mark.nightly
def test_a_server_that_stops_does_not_wait_for_steps_and_they_go_on_with_another_number_of_workers(
    two: Server, temporal: Temporal, project: Path
) -> None:
    for name in (HERE, THERE):
        say(two, name)
    for name in (HERE, THERE):
        until(lambda name=name: asked(project, name))

    assert two.stop() == 0

    (project / "enough").touch()
    with serving(project, "serve", "app:app", "--workers", "3", TEMPORAL=temporal.host) as three:
        for name in (HERE, THERE):
            until(lambda name=name: turn(three, name) == ["completed", "It is printed."])
