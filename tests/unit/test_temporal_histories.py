"""Workflows that older versions have begun go on under this one: their histories are replayed.

The histories in `tests/temporal/histories` are Temporal's own, recorded by `scripts/record_histories.py`.
One that fails here is a workflow that would be stuck after a deploy. Put the change behind
`workflow.patched`; do not record the history anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from sapwood.drivers.temporal.messages import LOOK, NAME, Driven, StepAnswer
from sapwood.drivers.temporal.workflow import WorkWorkflow

FOLDER = Path(__file__).parents[1] / "temporal/histories"
STORED = sorted(FOLDER.glob("*.json"))
SCENES = {"one-step", "tools", "children", "approved", "interrupted", "cancelled", "continued", "failed", "waiting"}


@workflow.defn(name=NAME)
class LooksFirst(WorkWorkflow):
    """Looks how it stands before each step: other commands than those stored."""

    @workflow.init
    def __init__(self, driven: Driven) -> None:
        super().__init__(driven)

    @workflow.run
    async def run(self, driven: Driven) -> str:
        return await super().run(driven)

    async def _step(self, number: int) -> StepAnswer:
        await self._ask(LOOK, self._asked)
        return await super()._step(number)


@workflow.defn(name=NAME)
class LooksFirstIfNew(WorkWorkflow):
    """Does the same, and leaves alone what has begun without."""

    @workflow.init
    def __init__(self, driven: Driven) -> None:
        super().__init__(driven)

    @workflow.run
    async def run(self, driven: Driven) -> str:
        return await super().run(driven)

    async def _step(self, number: int) -> StepAnswer:
        if workflow.patched("look-first"):
            await self._ask(LOOK, self._asked)
        return await super()._step(number)


async def refused(version: type, paths: Sequence[Path]) -> dict[str, str]:
    """Replay histories against a version of the workflow; return which do not fit, and why."""
    histories = [WorkflowHistory.from_json(path.stem, path.read_text()) for path in paths]
    replayer = Replayer(workflows=[version], workflow_runner=UnsandboxedWorkflowRunner())
    found: dict[str, str] = {}
    async with replayer.workflow_replay_iterator(in_order(histories)) as results:
        async for result in results:
            if result.replay_failure is not None:
                assert isinstance(result.replay_failure, NondeterminismError), result.replay_failure
                found[result.history.workflow_id] = str(result.replay_failure)
    return found


async def in_order(histories: Sequence[WorkflowHistory]) -> AsyncIterator[WorkflowHistory]:
    for history in histories:
        yield history


@pytest.mark.slow
async def test_every_stored_history_is_gone_on_with_by_this_version() -> None:
    assert {path.stem for path in STORED} >= SCENES

    assert await refused(WorkWorkflow, STORED) == {}


@pytest.mark.slow
async def test_a_version_that_orders_its_commands_otherwise_is_found_out() -> None:
    found = await refused(LooksFirst, STORED)

    assert set(found) == {path.stem for path in STORED}


@pytest.mark.slow
async def test_a_change_behind_a_patch_is_none_for_what_has_begun() -> None:
    assert await refused(LooksFirstIfNew, STORED) == {}


def test_the_stored_histories_name_no_machine() -> None:
    for path in STORED:
        text = path.read_text()
        assert "stackTrace" not in text, path.name
        assert "@" not in text, path.name
