"""Approvals of the tools of MCP servers are seen and answered above the agent that asks, also while it sleeps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cases import slow
from tests.conformance.mcp_servers import RemoteServer, said, tool
from tests.conformance.served import Served, served

from sapwood import Agent, App, ChatAgent
from sapwood.auth import ANY_CLIENT, User
from sapwood.testing import ScriptedModel, call, text

LOCAL: dict[str, Any] = {"mcp_private_hosts": ("127.0.0.1",)}
WHERE = "/agents/approval-top/t/questions"


class ApprovalDesk(ChatAgent):
    """Books at a server, after somebody has allowed it."""

    model = ScriptedModel(call("hotel_book", city="Bonn", id="b1"), text("booked"), each=True)

    async def begin(self, url: str, for_all: bool) -> None:
        await self.mcp.add("hotel", url, approvers=ANY_CLIENT if for_all else "manager")
        await self.turns.start("book", id="m1")


class ApprovalTop(Agent):
    """Has a desk."""

    async def begin(self, url: str, for_all: bool) -> None:
        await (await self.sub_agent(ApprovalDesk, "d")).begin(url, for_all)

    async def said(self) -> Any:
        return (await (await self.sub_agent(ApprovalDesk, "d")).turns.wait("m1")).status


def authenticate(connection: Any) -> User | None:
    name = connection.headers.get("x-user")
    return None if name is None else User(name, claims={"roles": ["manager"] if name == "mia" else []})


async def asked(one: Served, user: str) -> list[Any]:
    return json.loads((await one.site.http(WHERE, headers={"x-user": user})).text)["questions"]


async def approve(one: Served, user: str, question: Any) -> int:
    body = json.dumps(
        {"id": question["id"], "path": question["path"], "digest": question["digest"], "approved": True}
    ).encode()
    return (await one.site.http(WHERE, method="POST", body=body, headers={"x-user": user})).status


@pytest.mark.parametrize("for_all", [False, *slow([True])])
async def test_an_approval_is_shown_and_given_above_an_agent_that_sleeps(for_all: bool) -> None:
    hotel = RemoteServer([tool("book")], {"tools/call": said("booked")})
    async with (
        served(App(agents=[ApprovalTop], authenticate=authenticate), **LOCAL) as one,
        hotel.serving() as url,
    ):
        await (await one.world.get_agent(ApprovalTop, "t")).begin(url, for_all)
        await one.world.settled()
        for _ in range(2):
            (question,) = await asked(one, "mia")
            assert len(await asked(one, "eve")) == for_all
            await one.world.restart()
        if not for_all:
            assert await approve(one, "eve", question) == 403
        assert hotel.asked("tools/call") == []
        assert await approve(one, "eve" if for_all else "mia", question) == 200
        assert await (await one.world.get_agent(ApprovalTop, "t")).said() == "completed"
        assert len(hotel.asked("tools/call")) == 1
