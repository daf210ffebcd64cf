"""A test of long work: a crash at every commit, and no line is imported twice."""

import contextlib
from pathlib import Path

import pytest

from importing import BATCH, Archive, make_file
from sapwood import App, Unavailable
from sapwood.testing import running


# --8<-- [start:crash-at]
@pytest.mark.parametrize("nth", range(1, 12))
async def test_every_line_is_imported_once_after_a_crash_at_any_commit(
    nth: int, tmp_path: Path
) -> None:
    file = tmp_path / "measured.csv"
    make_file(file, lines=3 * BATCH)
    async with running(App(agents=[Archive])) as world:
        archive = await world.get_agent(Archive, "sensors")
        world.crash_at("committed", nth)
        with contextlib.suppress(Unavailable):
            await archive.add_file(str(file))
            await archive.result(str(file))
        await world.crash()

        archive = await world.get_agent(Archive, "sensors")
        await archive.add_file(str(file))  # in case the first call was lost
        assert await archive.result(str(file)) == (3 * BATCH, 3 * BATCH)


# --8<-- [end:crash-at]
