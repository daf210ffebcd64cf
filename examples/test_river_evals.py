"""Run the evals of the desk as a test, in one process."""

from river_evals import dataset
from rivers import Desk, app
from sapwood.evals import turn_task
from sapwood.testing import running


async def test_the_desk_knows_all_rivers() -> None:
    async with running(app) as world:
        report = await dataset.evaluate(turn_task(world.app, Desk), progress=False)

    assert len(report.cases) == 20
    assert [
        one.name
        for one in report.cases
        if not all(two.value for two in one.assertions.values())
    ] == []
    assert report.failures == []


async def test_a_hasty_model_does_not() -> None:
    async with running(app, models={Desk: app.models["hasty"]}) as world:
        report = await dataset.evaluate(turn_task(world.app, Desk), progress=False)

    (rhine,) = [one for one in report.cases if one.name == "rhine"]
    assert {name: one.value for name, one in rhine.assertions.items()} == {
        "TellsLength": False,
        "AsksScout": False,
    }
