"""The questions that a client is shown, while its agent moves from node to node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.moving import Client, Cluster, cluster
from tests.cluster.servers import Nats
from tests.machine import patience

from sapwood import ChatAgent, agent_tool, tool
from sapwood.address import Address
from sapwood.testing import ScriptedModel, call, text

QUESTIONS = "sapwood_questions"


class MovingPayer(ChatAgent):
    """Asks before it pays."""

    model = ScriptedModel(call("pay", id="k"), text("paid"), each=True)

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay."""
        return "paid"


class MovingBuyer(ChatAgent):
    """Lets a payer pay."""

    model = ScriptedModel(call("moving_payer", id="c1", message="pay"), text("bought"), each=True)
    tools = (agent_tool(MovingPayer),)


class MovingShop(ChatAgent):
    """Lets a buyer buy."""

    model = ScriptedModel(call("moving_buyer", id="c1", message="buy"), text("done"), each=True)
    tools = (agent_tool(MovingBuyer),)

    async def begin(self) -> None:
        await self.turns.start("go", id="t")


ROOT = Address.root_of("MovingShop", "s")
NOT_OPEN = "This question is not open, or has changed since it was shown. Reload it."
BELOW = [{"type": "MovingBuyer", "name": "agent-tool:c1"}, {"type": "MovingPayer", "name": "agent-tool:c1"}]


@pytest.fixture
async def three(one_nats: Nats, tmp_path: Path) -> AsyncGenerator[Cluster, None]:
    async with cluster(one_nats.urls, tmp_path, ["a", "b", "c"], [MovingShop]) as made:
        yield made


async def questions(client: Client) -> dict[str, Any]:
    """Return the next frame of questions."""
    while True:
        message = await asyncio.wait_for(client.down.get(), patience())
        assert message["type"] != "websocket.close", message
        if QUESTIONS in message.get("text", ""):
            return json.loads(message["text"])


@pytest.mark.parametrize("at", ["a", "b", "c"])
async def test_a_socket_that_moved_is_told_that_a_question_was_answered(three: Cluster, at: str) -> None:
    shop = await three.apps[at].get_agent(MovingShop, "s")
    client = Client(three.apps[at], "/agents/moving-shop/s", "me")
    await shop.begin()
    shown = await questions(client)
    assert (shown["path"], [one["id"] for one in shown["questions"]]) == (BELOW, ["k"])

    await three.move(ROOT, "b")
    await three.until_followed("b", 1)
    (question,) = await shop.questions.list()
    assert await shop.questions.approve(question)
    assert await questions(client) == {"type": QUESTIONS, "path": BELOW, "questions": []}

    await three.move(ROOT, "c")
    await three.until_followed("c", 1)
    late = {"type": "cf_agent_tool_approval", "toolCallId": "k", "approved": False, "path": BELOW}
    client.say(json.dumps(late))
    refused = await questions(client)
    assert (refused["questions"], refused["refused"]["reason"]) == ([], NOT_OPEN)
    assert (await shop.turns.wait("t")).text == "done"
    await client.leave()


async def test_a_question_that_is_answered_while_the_socket_is_on_its_way_is_not_open_for_it(three: Cluster) -> None:
    shop = await three.apps["b"].get_agent(MovingShop, "s")
    client = Client(three.apps["a"], "/agents/moving-shop/s", "me")
    await shop.begin()
    assert (await questions(client))["questions"]
    (question,) = await shop.questions.list()

    moving = asyncio.create_task(three.move(ROOT, "b"))
    assert await shop.questions.approve(question)
    await moving
    await three.until_followed("b", 1)

    assert await questions(client) == {"type": QUESTIONS, "path": BELOW, "questions": []}
    assert (await shop.turns.wait("t")).text == "done"
    await client.leave()
