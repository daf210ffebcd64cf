"""`sapwood explain` prints what the provider got, byte for byte."""

from __future__ import annotations

import pytest
from tests.conformance.chats import Talking, talker, talking
from tests.e2e.provider import DIALECTS, Dialect, Reply, providing, torn

from sapwood import tool
from sapwood.web.admin import Admin


class Adding(Talking):
    """Has a tool, and compacts its conversation."""

    words = "Be short."

    @tool
    async def add(self, a: int, b: str) -> str:
        """Add."""
        return f"{a}{b}"

    def get_instructions(self) -> str:
        return self.words

    async def compact(self, messages: list[object]) -> str:
        return f"{len(messages)} messages were here."


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_a_past_step_is_explained_byte_for_byte(dialect: Dialect) -> None:
    """Also after compaction, a restart, and with instructions that have changed since."""
    asks = Reply(torn(b"".join(dialect.events(["Well. "], [("add", {"a": 1, "b": "ü🌲"}, "c1")]))))
    answers = Reply(torn(b"".join(dialect.events(["Grüße 🌲"]))))
    async with providing(asks, answers) as provider:
        cls = talker(dialect.model(provider.port), base=Adding)
        async with talking(cls) as one:
            agent = await one.world.get_agent(cls, "t")
            turns = [await agent.send("first: 🌲")]
            cls.words = "Be long, and say why."
            turns += [await agent.send(f"message {number}") for number in range(3)]
            cls.compact_above = 1
            turns += [await agent.send("and after compaction?")]
            await one.world.restart()

            steps = [(turn.id, step) for turn in turns for step in range(1, turn.steps + 1)]
            operator = Admin(one.world.node)
            found = [(await operator.explain("Talker:t", turn, step))["requests"] for turn, step in steps]

        assert [[request["body"].encode() for request in requests] for requests in found] == [
            [request.raw] for request in provider.requests
        ]
        assert all(request["url"].startswith("http://") and "?" not in request["url"] for (request,) in found)
