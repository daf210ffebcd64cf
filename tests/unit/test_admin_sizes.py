"""Very long timelines and very many children: all rows, each once, by pages. What they cost is in the benchmarks."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.admin_requests import ask, pages, stream

from sapwood import Agent, App, Limits
from sapwood.testing import running

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


class AdminCrowd(Agent):
    limits = Limits(children=1_000_000, descendants=1_000_000)

    async def begin(self) -> None:
        self.start_fiber("one", self.work)

    async def work(self) -> None:
        await self.sub_agent(AdminCrowd, "seed")

    async def copy_spans(self, count: int) -> None:
        self._actor.database.execute(
            "WITH RECURSIVE copies (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM copies WHERE n < ?)"
            " INSERT INTO sapwood_spans SELECT n, 1, 'fiber 1', 'tool', 'look', 1, 1, 1, 1e9 + n, NULL, 1e9 + n,"
            " 'completed', '{}' FROM copies",
            count,
        )

    async def copy_children(self, count: int) -> None:
        self._actor.database.execute(
            "WITH RECURSIVE copies (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < ?)"
            " INSERT INTO sapwood_children (type, name, created_at) SELECT 'AdminCrowd', printf('c-%06d', n), 1e9 + n"
            " FROM copies",
            count,
        )
        self._actor.database.execute("UPDATE sapwood_children_count SET alive = alive + ?", count)


async def numbers(world: Any, **params: Any) -> tuple[list[int], bool]:
    """Return the numbers of the spans that are told, and whether there are more."""
    found, more = list[int](), False
    async for name, data in stream(world, "spans", address="AdminCrowd:c", **params):
        if name == "end":
            more = data["more"]
        else:
            found += [span["number"] for span in data["spans"]]
    return found, more


async def test_a_timeline_that_is_longer_than_an_answer_is_read_on_from_where_it_ended() -> None:
    async with running(App(agents=[AdminCrowd]), slow_slices="allow") as world:
        crowd = await world.get_agent(AdminCrowd, "c")
        await crowd.begin()
        await world.settled()
        await crowd.copy_spans(30_000)

        first, more = await numbers(world, work="fiber 1")
        second, no_more = await numbers(world, work="fiber 1", after=max(first))

        assert (len(first), more, no_more) == (20_000, True, False)
        assert sorted(first) == [*range(1, 20_001)]
        assert second == [*range(20_001, 30_001)]


async def test_a_hundred_thousand_children_are_listed_and_searched_each_once() -> None:
    async with running(App(agents=[AdminCrowd]), slow_slices="allow") as world:
        crowd = await world.get_agent(AdminCrowd, "c")
        await crowd.begin()
        await world.settled()
        await crowd.copy_children(100_000)

        listed = [
            row["name"] for page in await pages(world, "agents", address="AdminCrowd:c", limit=500) for row in page
        ]
        events = [event async for event in stream(world, "find", text="c-0999", address="AdminCrowd:c", limit=500)]
        tree = (await ask(world, "tree", address="AdminCrowd:c"))["roots"][0]

        assert listed == ["seed", *(f"c-{number:06}" for number in range(1, 100_001))]
        found = [row["name"] for name, data in events if name == "rows" for row in data["rows"]]
        assert found == [f"c-0999{number:02}" for number in range(100)]
        assert events[-1][1]["searched"] == 100_002
        assert (tree["children"], len(tree["below"])) == (100_001, 50)
