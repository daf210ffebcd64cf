"""What sleeps or has ended is not in memory: a tree, the database of a run that was read, what a run was made of."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.conformance.worlds import Probe, Run, asleep

from sapwood import Agent
from sapwood.capabilities.exposed_methods import MethodCodec
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.database import Database
from sapwood.testing import World


class Employee(Agent):
    async def on_run(self, input: str) -> str:
        return input


class Employer(Agent):
    deps: Probe

    async def employ(self, run_id: str) -> str:
        return (await self.run_agent(Employee, "work", run_id=run_id)).status

    async def forget_runs(self) -> int:
        return await self.runs.clear()

    async def look_at(self, run_id: str) -> str:
        run = self.runs.get(run_id)
        return "unknown" if run is None else run.status

    async def wait(self) -> None:
        self.deps.log.append("waiting")
        await self.deps.go.wait()


def trees_in_memory(world: World) -> list[Tree]:
    gc.collect()
    return [found for found in gc.get_objects() if isinstance(found, Tree) and found.host is world.node]


def of_type(kind: type) -> int:
    """Return the number of objects of a type in this process."""
    gc.collect()
    return sum(isinstance(found, kind) for found in gc.get_objects())


def open_databases(world: World) -> int:
    return sum(database.is_open for tree in world.node.trees.values() for database in tree.databases.values())


@pytest.mark.slow  # it looks at every object of the process
async def test_a_tree_that_sleeps_is_not_in_memory(run: Run, probe: Probe) -> None:
    async with run(Employer, deps=probe) as world:
        for number in range(3):
            assert await (await world.get_agent(Employer, "acme")).employ(f"run-{number}") == "completed"
            await asleep(world)

        assert len(trees_in_memory(world)) <= 1  # at level `disk`, a flusher may still hold the last commit


@pytest.mark.slow  # it looks at every object of the process
async def test_a_deleted_sub_agent_is_not_in_memory(run: Run, probe: Probe) -> None:
    async with run(Employer, deps=probe) as world:
        employer = await world.get_agent(Employer, "acme")
        await employer.employ("first")
        await employer.forget_runs()
        before = of_type(Database)
        for number in range(5):
            await employer.employ(f"run-{number}")
        assert await employer.forget_runs() == 5

        assert of_type(Database) <= before + 1  # the tree may still know which one it wrote last


@pytest.mark.slow  # it looks at every object of the process
async def test_a_run_that_has_ended_leaves_no_object(run: Run, probe: Probe) -> None:
    async with run(Employer, deps=probe) as world:
        employer = await world.get_agent(Employer, "acme")
        await employer.employ("first")
        before = of_type(MethodCodec)
        for number in range(5):
            await employer.employ(f"run-{number}")

        assert of_type(MethodCodec) == before


async def test_a_database_that_was_only_read_is_closed_while_its_tree_stays(run: Run, probe: Probe) -> None:
    async with run(Employer, deps=probe) as world:
        employer = await world.get_agent(Employer, "acme")
        for number in range(3):
            await employer.employ(f"run-{number}")
        waiting = asyncio.create_task(employer.wait())
        await probe.seen("waiting")
        world.sleep()
        assert [await employer.look_at(f"run-{number}") for number in range(3)] == ["completed"] * 3
        assert open_databases(world) == 4

        world.sleep()

        assert open_databases(world) == 1
        assert await employer.look_at("run-0") == "completed"
        probe.go.set()
        await waiting
