"""Progress and milestones of runs: told as they happen, merged where they come too fast, kept where it matters."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from tests.conformance.served import Client, served, type_of

from sapwood import Agent, App, ChatAgent, Run, agent_tool, tool
from sapwood.runs.execution.executor import RunExecutor
from sapwood.testing import ScriptedModel, call, text

ROOT = "/agents/progress-root/r"

gates: dict[str, asyncio.Event] = {}


def gate(name: str) -> asyncio.Event:
    return gates.setdefault(name, asyncio.Event())


@pytest.fixture(autouse=True)
def no_gates() -> None:
    gates.clear()


class ProgressLeaf(Agent):
    """Reports what it is told to report: fractions, milestones by name, and waits where it is told to."""

    async def on_run(self, input: list[Any]) -> str:
        for one in input:
            if isinstance(one, str) and one.startswith("gate:"):
                await gate(one).wait()
            elif isinstance(one, str):
                self.report_progress(milestone=one)
            else:
                self.report_progress(one, f"at {one:g}", phase="work", data={"secret": one})
        return "done"

    async def outside(self) -> bool:
        return self.report_progress(0.5)

    async def inspected(self, run: str) -> Any:
        state = self._actor.of(RunExecutor).inspect(run)
        return None if state is None else state.progress


class ProgressRoot(Agent):
    """Gives runs."""

    async def give(self, id: str, *input: Any) -> str:
        return (await self.run_agent(ProgressLeaf, list(input), run_id=id)).status

    async def begin(self, id: str, *input: Any) -> None:
        await self.start_run(ProgressLeaf, list(input), run_id=id)

    async def found(self, id: str) -> Run | None:
        return self.runs.get(id)

    async def listed(self) -> list[Run]:
        return self.runs.list()


def bodies(client: Client, run: str, kind: str) -> list[Any]:
    """Return what a client was told of one kind, with the numbers of the frames."""
    frames = [frame for frame in client.frames if type_of(frame) == "agent-tool-event"]
    return [
        (frame["sequence"], body)
        for frame in frames
        if frame["event"]["kind"] == "chunk" and frame["event"]["runId"] == run
        if (body := decoded(frame))["type"] == f"data-agent-{kind}"
    ]


def decoded(frame: Any) -> Any:
    return json.loads(frame["event"]["body"])


async def over(client: Client, run: str) -> Any:
    return await client.until(
        lambda frame: (
            type_of(frame) == "agent-tool-event"
            and frame["event"]["runId"] == run
            and frame["event"]["kind"] in ("finished", "error", "aborted")
        )
    )


@pytest.mark.promise("CF-128")
async def test_progress_passes_and_only_the_last_of_it_is_remembered() -> None:
    async with served(App(agents=[ProgressRoot])) as one:
        root = await one.world.get_agent(ProgressRoot, "r")
        client = await one.join(ROOT)
        await root.give("one", 0.5, 1.0)
        await over(client, "one")

        told = bodies(client, "one", "progress")
        assert [number for number, _ in told] == [1, 1]
        assert all(body["transient"] and body["id"] for _, body in told)
        assert told[0][1]["data"] == {"fraction": 0.5, "message": "at 0.5", "phase": "work", "data": {"secret": 0.5}}
        run = await root.found("one")
        assert run is not None
        assert run.progress == {"fraction": 1.0, "message": "at 1", "phase": "work"}
        late = await one.join(ROOT)
        await over(late, "one")
        assert not bodies(late, "one", "progress")
        assert (await over(late, "one"))["sequence"] == 1


@pytest.mark.promise("CF-128")
async def test_progress_can_be_read_while_the_run_goes_on_and_while_its_agent_sleeps() -> None:
    async with served(App(agents=[ProgressRoot])) as one:
        root = await one.world.get_agent(ProgressRoot, "r")
        client = await one.join(ROOT)
        await root.begin("one", 0.25, "found it", "gate:go")
        await client.until(lambda frame: bodies(client, "one", "milestone"))

        run = await root.found("one")
        leaf = await one.world.get_agent(ProgressRoot, "r", sub=((ProgressLeaf, "one"),))
        assert run is not None
        assert (run.progress["fraction"], [one["name"] for one in run.milestones]) == (0.25, ["found it"])
        assert '"fraction":0.25' in await leaf.inspected("one")
        assert (await root.listed())[0].progress is None
        gate("gate:go").set()
        await over(client, "one")
        await one.world.restart()
        root = await one.world.get_agent(ProgressRoot, "r")
        again = await root.found("one")
        assert again is not None
        assert again.progress == run.progress
        assert again.milestones == run.milestones


@pytest.mark.promise("CF-128")
async def test_of_many_reports_at_once_the_first_and_the_last_are_told() -> None:
    async with served(App(agents=[ProgressRoot])) as one:
        root = await one.world.get_agent(ProgressRoot, "r")
        client = await one.join(ROOT)
        began = asyncio.get_running_loop().time()
        await root.begin("one", *(number / 100 for number in range(50)), "gate:go")
        await client.until(lambda _: len(bodies(client, "one", "progress")) == 2)
        took = asyncio.get_running_loop().time() - began

        assert [body["data"]["fraction"] for _, body in bodies(client, "one", "progress")] == [0.0, 0.49]
        assert took >= 0.2
        run = await root.found("one")
        assert run is not None
        assert run.progress["fraction"] == 0.49
        gate("gate:go").set()
        await over(client, "one")
        assert len(bodies(client, "one", "progress")) == 2


@pytest.mark.promise("CF-128")
async def test_a_report_that_all_is_done_is_told_at_once_and_the_last_before_an_end_is_not_lost() -> None:
    async with served(App(agents=[ProgressRoot])) as one:
        root = await one.world.get_agent(ProgressRoot, "r")
        client = await one.join(ROOT)
        await root.give("full", 0.1, 0.2, 1.0, 0.3)
        await over(client, "full")

        assert [body["data"]["fraction"] for _, body in bodies(client, "full", "progress")] == [0.1, 1.0, 0.3]


@pytest.mark.promise("CF-129")
async def test_a_milestone_is_kept_never_merged_and_shown_once_to_everybody() -> None:
    async with served(App(agents=[ProgressRoot])) as one:
        root = await one.world.get_agent(ProgressRoot, "r")
        client = await one.join(ROOT)
        await root.begin("one", "a", "b", "gate:go", "c")
        await client.until(lambda _: len(bodies(client, "one", "milestone")) == 2)
        middle = await one.join(ROOT)
        gate("gate:go").set()
        await over(client, "one")
        await over(middle, "one")
        late = await one.join(ROOT)
        await over(late, "one")

        for seen in (client, middle, late):
            told = [body["data"] for _, body in bodies(seen, "one", "milestone")]
            assert [(one["name"], one["sequence"]) for one in told] == [("a", 1), ("b", 2), ("c", 3)]
            assert all(isinstance(one["at"], int) and "seq" not in one for one in told)
        await one.world.restart()
        again = await one.join(ROOT)
        await over(again, "one")
        assert bodies(again, "one", "milestone") == bodies(client, "one", "milestone")


@pytest.mark.promise("CF-89")
async def test_progress_and_milestones_pass_through_the_change_from_replay_to_live() -> None:
    async with served(App(agents=[ProgressRoot])) as one:
        root = await one.world.get_agent(ProgressRoot, "r")
        await root.begin("one", "before", "gate:go", 0.5, "after", 1.0)
        client = await one.connect(ROOT)
        gate("gate:go").set()
        await over(client, "one")

        assert [body["data"]["name"] for _, body in bodies(client, "one", "milestone")] == ["before", "after"]
        fractions = [body["data"]["fraction"] for _, body in bodies(client, "one", "progress")]
        assert fractions in ([0.5, 1.0], [1.0], [])  # what passed before it was there is not told


@pytest.mark.promise("CF-129")
async def test_outside_of_a_run_a_report_does_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with served(App(agents=[ProgressLeaf])) as one:
        leaf = await one.world.get_agent(ProgressLeaf, "alone")

        with caplog.at_level(logging.WARNING, logger="sapwood"):
            assert await leaf.outside() is False

        assert "ignored outside of a run" in caplog.text


class ProgressHelper(ChatAgent[str]):
    """Works, and says how far it is."""

    model = ScriptedModel(call("work", id="w1"), text("worked"), each=True)

    @tool
    async def work(self) -> str:
        """Work."""
        self.report_progress(0.5, "halfway")
        self.report_progress(milestone="drafted", data={"pages": 2})
        return "ok"


class ProgressChat(ChatAgent[str]):
    """Has a helper."""

    model = ScriptedModel(call("helper", id="c1", message="work"), text("done"), each=True)
    tools = (agent_tool(ProgressHelper, name="helper"),)

    async def found(self, id: str) -> Run | None:
        return self.runs.get(id)


async def test_a_chat_that_does_a_run_reports_from_its_tools() -> None:
    async with served(App(agents=[ProgressChat])) as one:
        chat = await one.world.get_agent(ProgressChat, "r")
        client = await one.join("/agents/progress-chat/r")
        await chat.send("go")
        await over(client, "agent-tool:c1")

        run = await chat.found("agent-tool:c1")
        assert run is not None
        assert run.progress == {"fraction": 0.5, "message": "halfway"}
        assert [(one["name"], one["data"]) for one in run.milestones] == [("drafted", {"pages": 2})]
        assert len(bodies(client, "agent-tool:c1", "milestone")) == 1
