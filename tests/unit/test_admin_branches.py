"""An operator sees the branches of a conversation, and makes another one active."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.admin_requests import LOOK, ask

from sapwood import App, ChatAgent, NotFound, Refused, tool
from sapwood.testing import ScriptedModel, call, running, text

ABOUT: dict[str, Any] = {"address": "AdminForked:main"}


class AdminForked(ChatAgent):
    model = ScriptedModel(text("a"), text("b"), text("c"), call("pay"))

    @tool(requires_approval=True)
    async def pay(self) -> str:
        """Pay a bill."""
        return "paid"


def said(words: str, id: str) -> list[dict[str, Any]]:
    return [{"id": id, "role": "user", "parts": [{"type": "text", "text": words}]}]


async def test_branches_are_listed_while_the_agent_sleeps_and_one_is_made_active() -> None:
    AdminForked.model = ScriptedModel(text("a"), text("b"), text("c"), call("pay"))
    async with running(App(agents=[AdminForked])) as world:
        desk = await world.get_agent(AdminForked, "main")
        assert (await ask(world, "branches", **ABOUT))["rows"] == []
        await desk.send(said("one", "u1"))
        await desk.send(said("two", "u2"))
        await desk.send(said("other", "u1"))
        world.sleep()

        rows = (await ask(world, "branches", **ABOUT))["rows"]
        assert [(row["text"], row["messages"], row["is_active"], row["after"]) for row in rows] == [
            ("one", 4, False, None),
            ("other", 2, True, None),
        ]
        assert (await ask(world, "branches", LOOK, **ABOUT))["rows"][0]["text"] == {"hidden": "string", "length": 3}
        preview = await ask(world, "switch-branch", **ABOUT, id=rows[0]["id"], preview=True)
        assert preview["done"] == 0
        assert preview["effect"].startswith("Makes the branch with 4 messages active. Clients and the model see it")
        assert (await ask(world, "branches", **ABOUT))["rows"] == rows

        assert (await ask(world, "switch-branch", **ABOUT, id=rows[0]["id"]))["done"] == 1
        again = await ask(world, "switch-branch", **ABOUT, id=rows[0]["id"])
        assert again == {"done": 0, "effect": "The branch is active already."}
        shown = (await ask(world, "transcript", **ABOUT))["rows"]
        assert [row["message"]["parts"][-1]["text"] for row in reversed(shown)] == ["one", "a", "two", "b"]
        assert (await ask(world, "transcript", **ABOUT))["total"] == 4

        with pytest.raises(NotFound, match="no branch that begins with the message 'none'"):
            await ask(world, "switch-branch", **ABOUT, id="none")
        assert (await desk.send("pay")).status == "waiting"
        with pytest.raises(Refused, match="has a waiting turn"):
            await ask(world, "switch-branch", **ABOUT, id="u1")
