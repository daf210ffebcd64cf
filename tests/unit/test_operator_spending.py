"""An operator sees what agents have used of models, with and without a server. No agent is woken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import loops

from sapwood import App, ChatAgent, Settings, agent_tool
from sapwood.admin.admin import Admin
from sapwood.admin.spending import most_expensive
from sapwood.cli.commands import cli
from sapwood.errors import Unavailable
from sapwood.kernel.node.data_folder import tree_folder
from sapwood.testing import ScriptedModel, call, running, text
from sapwood.types import Address

PRICES = {"scripted": (1.0, 1.0)}


class Scout(ChatAgent):
    """Answers at the bottom."""

    model = ScriptedModel(text("far away and a lot of words"), each=True)


class Guide(ChatAgent):
    """Delegates."""

    model = ScriptedModel(call("scout", message="where?"), text("there"), each=True)
    tools = (agent_tool(Scout),)


class Expedition(ChatAgent):
    model = ScriptedModel(call("guide", message="where?"), text("found"), each=True)
    tools = (agent_tool(Guide),)

    async def forget_guides(self) -> None:
        await self.runs.clear()


async def test_the_usage_of_a_tree_is_shown_by_model_and_class_and_no_agent_is_woken() -> None:
    async with running(App(agents=[Expedition]), prices=PRICES) as world:
        root = await world.get_agent(Expedition, "north")
        await root.send("go")
        total = (await root.spending.total())["scripted"]
        await world.restart()
        operator = Admin(world.node)

        by_model = await operator.spending.list("Expedition:north")
        by_class = await operator.spending.list("Expedition:north", by_class=True)

        (row,) = by_model["rows"]
        assert (row["model"], row["requests"], row["input_tokens"]) == ("scripted", 5, total["input_tokens"])
        assert row["nanodollars"] == round(total["cost"] * 10**9)
        assert {one["class"]: one["requests"] for one in by_class["rows"]} == {"Expedition": 2, "Guide": 2, "Scout": 1}
        assert not any(tree.actors for tree in world.node.trees.values())


async def test_what_deleted_agents_have_used_is_still_counted() -> None:
    async with running(App(agents=[Expedition]), prices=PRICES) as world:
        root = await world.get_agent(Expedition, "north")
        await root.send("go")
        await root.forget_guides()
        operator = Admin(world.node)

        rows = (await operator.spending.list("Expedition:north", by_class=True))["rows"]

        assert {one["class"]: one["requests"] for one in rows} == {"Expedition": 2, "": 3}


async def test_the_usage_below_an_agent_is_its_own_part() -> None:
    async with running(App(agents=[Expedition]), prices=PRICES) as world:
        root = await world.get_agent(Expedition, "north")
        await root.send("go")
        guide = next(row.agent for row in await root.spending.list() if row.agent[-1].type == "Guide")
        address = "/".join(f"{step.type}:{step.name}" for step in guide)

        found = await Admin(world.node).spending.list(address, by_class=True)

        assert {one["class"]: one["requests"] for one in found["rows"]} == {"Guide": 2, "Scout": 1}


async def test_of_all_trees_the_most_expensive_come_first_and_the_count_says_if_there_are_more() -> None:
    async with running(App(agents=[Expedition]), prices=PRICES) as world:
        for name, turns in (("a", 1), ("b", 3), ("c", 2), ("d", 0)):
            root = await world.get_agent(Expedition, name)
            for _ in range(turns):
                await root.send("go")

        found = await Admin(world.node).spending.list(limit=2)

        assert [one["address"] for one in found["trees"]] == ["Expedition:b", "Expedition:c"]
        assert found["count"] == 3
        assert sum(row["requests"] for row in found["rows"]) == 5 + 7 + 6


def test_trees_without_a_known_price_are_ordered_by_their_tokens() -> None:
    trees: list[dict[str, Any]] = [
        {"address": address, "nanodollars": dollars, "input_tokens": tokens, "output_tokens": 1}
        for address, dollars, tokens in (("a", 0, 1), ("b", 0, 9), ("c", 5, 1), ("d", 0, 9))
    ]

    assert [one["address"] for one in most_expensive(trees, 10)] == ["c", "b", "d", "a"]


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*words: str) -> Any:
        cli(["spending", *words, "--data", str(tmp_path / "data")])
        return capsys.readouterr()

    return run


def use(folder: Path, *names: str, prices: dict[str, tuple[float, float]]) -> None:
    async def work() -> None:
        async with App(agents=[Expedition], settings=Settings(data=folder / "data", prices=prices)) as app:
            for name in names:
                await (await app.get_agent(Expedition, name)).send("go")

    loops.play(work())


def test_the_command_prints_the_trees_and_says_how_many_are_not_shown(
    tmp_path: Path, printed: Callable[..., Any]
) -> None:
    use(tmp_path, "north", "south", prices={"scripted": (1000.0, 1000.0)})

    said = printed("--limit", "1")

    assert "Expedition:north" in said.out
    assert "Expedition:south" not in said.out
    assert "Total of 2 trees: 10 requests" in said.out
    assert "unknown" not in said.out
    assert said.err == "1 tree not shown. Show more with --limit 2.\n"


def test_the_command_says_that_a_price_is_unknown_and_never_shows_zero(
    tmp_path: Path, printed: Callable[..., Any]
) -> None:
    use(tmp_path, "north", prices={})

    said = printed("Expedition:north")
    (row,) = json.loads(printed("Expedition:north", "--json").out)["by_model"]

    assert "$" not in said.out
    assert "unknown" in said.out
    assert "5 requests without a known price" in said.err
    assert (row["cost"], row["known_cost"], row["unpriced_requests"]) == (None, 0.0, 5)


def test_a_small_cost_is_not_shown_as_zero(tmp_path: Path, printed: Callable[..., Any]) -> None:
    use(tmp_path, "north", prices={"scripted": (0.001, 0.0)})

    assert "<$0.0001" in printed().out
    assert "$0.0000" not in printed().out


def test_the_command_adds_up_by_class(tmp_path: Path, printed: Callable[..., Any]) -> None:
    use(tmp_path, "north", "south", prices=PRICES)

    told = json.loads(printed("--by", "class", "--json").out)

    assert {row["class"]: row["requests"] for row in told["by_class"]} == {"Expedition": 4, "Guide": 4, "Scout": 2}


def test_a_damaged_tree_does_not_hide_the_others(tmp_path: Path, printed: Callable[..., Any]) -> None:
    use(tmp_path, "north", "south", prices=PRICES)
    for file in tree_folder(tmp_path / "data", Address.root_of("Expedition", "north")).glob("root.db*"):
        file.write_bytes(b"damaged" * 1000)

    said = printed()

    assert "Expedition:south" in said.out
    assert "Expedition:north could not be read" in said.err


def test_without_any_usage_the_command_says_so(tmp_path: Path, printed: Callable[..., Any]) -> None:
    use(tmp_path, prices=PRICES)
    (tmp_path / "data" / "trees").mkdir(exist_ok=True)

    assert "has used a model yet" in printed().out


async def test_a_tree_that_is_destroyed_or_not_available_while_others_are_read_hides_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(App(agents=[Expedition]), prices=PRICES) as world:
        for name in ("east", "north", "west"):
            await (await world.get_agent(Expedition, name)).send("go")
        exists = world.node.loader.exists
        asked: list[Address] = []

        async def fail(root: Address) -> bool:
            asked.append(root)
            if root.name == "north":
                raise Unavailable("Its log cannot be read now.")
            return await exists(root) and (root.name != "west" or asked.count(root) == 1)

        monkeypatch.setattr(world.node.loader, "exists", fail)
        await world.node.loader.exists(Address.root_of("Expedition", "west"))  # there at first, and then destroyed
        told = await Admin(world.node).spending.list()

        assert [one["address"] for one in told["trees"]] == ["Expedition:east"]
        assert told["unread"] == [{"address": "Expedition:north", "error": "Its log cannot be read now."}]
