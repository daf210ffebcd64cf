from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from sapwood import App
from sapwood.testing import running
from what_if import (
    HeldTrip,
    Traveller,
    Trip,
    app,
    give_ann_a_trip_of_her_own,
    move_to,
    try_another_way,
)

pytestmark = pytest.mark.anyio


async def test_the_original_does_not_see_what_happens_in_the_fork() -> None:
    async with running(app) as world:
        trip = await world.get_agent(Trip, "main")
        await trip.plan("ann", "Rome")

        fork = await try_another_way(world.app)

        assert (fork.agents, fork.held.calls) == (2, 1)
        copy = await world.get_agent(Trip, fork.name)
        assert await copy.seen_by("ann") == ["Rome", "Oslo"]
        assert await trip.seen_by("ann") == ["Rome"]
        assert await give_ann_a_trip_of_her_own(world.app) == ["Rome"]


async def test_held_schedules_are_released_by_replaying_them() -> None:
    async with running(app) as world:
        trip = await world.get_agent(HeldTrip, "main")
        await trip.plan("ann", "Rome")
        await world.app.fork(HeldTrip, "main", to="copy")
        copy = await world.get_agent(HeldTrip, "copy")

        assert await copy.release_all() == 1

        await world.clock.advance(timedelta(days=8))
        assert await copy.release_all() == 0


async def test_an_export_is_imported_by_another_app(tmp_path: Path) -> None:
    async with running(app) as here, running(App(agents=[Trip, Traveller])) as there:
        trip = await here.get_agent(Trip, "main")
        await trip.plan("ann", "Rome")

        fork = await move_to(here.app, there.app, tmp_path / "main.sapwood")

        assert str(fork.address) == "Trip:main"
        copy = await there.get_agent(Trip, "main")
        assert await copy.seen_by("ann") == ["Rome"]
