"""What operators see in Temporal is what happens, and what they do there is done."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from tests.temporal.cluster import TOKEN, Temporal
from tests.temporal.scenes import SCENES, SceneDesk, Stage, worked

from sapwood import App, Settings
from sapwood.drivers.temporal import TemporalDriver


@asynccontextmanager
async def played(temporal: Temporal, folder: Path, scene: str) -> AsyncGenerator[Stage, None]:
    """Play a scene, with a worker in this process."""
    driver = TemporalDriver(temporal.host, token=TOKEN, queue=f"operators {scene}", look=0.5, patience=2.0)
    app = App(agents=[SceneDesk], driver=driver, settings=Settings(data=folder))
    async with worked(app):
        stage = Stage(app, await driver.connect(), scene)
        await SCENES[scene][0](stage)
        yield stage


async def ended(workflow: WorkflowHandle[Any, str]) -> str:
    """Return how a workflow has ended, as Temporal shows it."""
    found = await workflow.describe()
    assert found.status is not None
    if found.close_time is None:
        return found.status.name
    try:
        return f"{found.status.name} {await workflow.result()}"
    except WorkflowFailureError as error:
        cause = error.cause
        assert isinstance(cause, ApplicationError | CancelledError), cause
        return f"{found.status.name} {cause.type}" if isinstance(cause, ApplicationError) else found.status.name


@pytest.mark.parametrize(
    ("scene", "status", "workflow"),
    [
        ("one-step", "completed", "COMPLETED completed"),
        ("failed", "failed", "FAILED failed"),
        ("waiting", "waiting", "RUNNING"),
        ("stopped", "cancelled", "COMPLETED cancelled"),
        ("interrupted", "cancelled", "COMPLETED cancelled"),
        ("interrupted-waiting", "cancelled", "COMPLETED cancelled"),
        ("cancelled", "cancelled", "CANCELED"),
        ("cancelled-waiting", "cancelled", "CANCELED"),
    ],
)
async def test_a_workflow_stands_and_ends_as_its_turn_does(
    temporal: Temporal, tmp_path: Path, scene: str, status: str, workflow: str
) -> None:
    async with played(temporal, tmp_path, scene) as stage:
        assert (await (await stage.desk()).turns.wait(stage.turn)).status == status
        assert await ended(stage.workflow) == workflow


async def test_the_workflow_of_an_agent_that_is_no_more_ends(temporal: Temporal, tmp_path: Path) -> None:
    async with played(temporal, tmp_path, "destroyed") as stage:
        assert await ended(stage.workflow) == "COMPLETED gone"
