"""A tree's folder goes and another comes under the same name: nothing that was known of the first holds for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.faults.machine import Machine
from tests.machine import patience

from sapwood import Agent, App, Unavailable
from sapwood.kernel.trees.quota import Ledger
from sapwood.storage import database


class Tally(Agent):
    migrations = ("CREATE TABLE marks (number INTEGER NOT NULL) STRICT",)

    async def mark(self, number: int) -> int:
        self.sql("INSERT INTO marks VALUES (?)", number)
        return self.sql("SELECT count(*) FROM marks").scalar(int)

    async def count(self) -> int:
        return self.sql("SELECT count(*) FROM marks").scalar(int)

    async def end(self) -> None:
        await self.destroy()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "machine").mkdir()
    return Machine(tmp_path / "machine", Tally)


async def settled(app: App) -> None:
    async with asyncio.timeout(patience()):
        while app.node.background.tasks:  # pyright: ignore[reportPrivateUsage]  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


async def test_a_tree_made_after_a_destroy_that_failed_survives_a_power_cut(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.run(then="power cut") as (app, _):
        tally = await app.get_agent(Tally, "t")
        await tally.mark(1)
        settle = Ledger.settle

        def refuse(self: Ledger) -> None:
            monkeypatch.setattr(Ledger, "settle", settle)
            raise Unavailable("The disk is full.")

        monkeypatch.setattr(Ledger, "settle", refuse)
        await tally.end()
        tally = await app.get_agent(Tally, "t")
        await settled(app)
        assert await tally.mark(1) == 1

    async with machine.run(then="killed") as (app, _):
        assert await (await app.get_agent(Tally, "t")).count() == 1


async def test_a_file_whose_first_opening_failed_survives_a_power_cut_under_a_name_that_was_used_before(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.run(then="power cut") as (app, _):
        await (await app.get_agent(Tally, "t")).mark(1)
        app.node.sleep()
        await (await app.get_agent(Tally, "t")).end()
        await settled(app)

        def refuse(*_: Any, **__: Any) -> apsw.Connection:
            raise apsw.CantOpenError("unable to open database file")

        with monkeypatch.context() as full:
            full.setattr(database.apsw, "Connection", refuse)
            with pytest.raises(Exception, match="unable to open"):
                await (await app.get_agent(Tally, "t")).mark(1)
        app.node.sleep()
        app.node.sleep()
        assert await (await app.get_agent(Tally, "t")).mark(1) == 1

    async with machine.run(then="killed") as (app, _):
        assert await (await app.get_agent(Tally, "t")).count() == 1
