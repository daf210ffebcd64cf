import asyncio
from datetime import timedelta

import pytest

from digest import Digest
from sapwood import App
from sapwood.testing import running


async def test_what_is_fetched_is_not_fetched_again_after_a_crash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running(App(agents=[Digest])) as world:
        trees = await world.get_agent(Digest, "trees")
        making = asyncio.ensure_future(trees.make("monday", ["Oaks", "Elms"]))
        await world.clock.advance(timedelta(seconds=0.5))
        making.cancel()

        await world.crash()
        await world.clock.advance(timedelta(seconds=1))

        trees = await world.get_agent(Digest, "trees")
        result = await trees.make("monday", ["Oaks", "Elms"])
        assert result == "sent: Oaks grow. Elms grow."
    assert capsys.readouterr().out.splitlines() == ["fetch Oaks", "fetch Elms"]
