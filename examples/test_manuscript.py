from __future__ import annotations

import pytest

from manuscript import (
    Manuscript,
    another_ending,
    app,
    as_of_yesterday,
    discard_second_draft,
    drafts,
)
from sapwood.errors import NotFound
from sapwood.testing import running

pytestmark = pytest.mark.anyio


async def test_a_draft_is_tried_another_way_and_gone_back_to() -> None:
    async with running(app) as world:
        novel = await world.get_agent(Manuscript, "novel")
        await novel.write("They met.")
        await novel.finish_draft("first draft")
        await novel.write("They married.")
        await novel.finish_draft("second draft")

        assert await drafts(world.app) == ["first draft", "second draft"]
        assert await another_ending(world.app) == ["They met.", "They never met again."]
        assert await novel.lines() == ["They met.", "They married."]

        await discard_second_draft(world.app)

        novel = await world.get_agent(Manuscript, "novel")
        kept = await world.get_agent(Manuscript, "novel~second-draft")
        assert await novel.lines() == ["They met."]
        assert await kept.lines() == ["They met.", "They married."]


async def test_a_time_before_the_history_is_refused() -> None:
    async with running(app) as world:
        novel = await world.get_agent(Manuscript, "novel")
        await novel.write("They met.")
        with pytest.raises(NotFound, match="The history does not have the time"):
            await as_of_yesterday(world.app)
