"""A turn has the user who sent its message, in hooks and tools, and after a crash."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from tests.conformance.chats import done, say, user
from tests.conformance.served import Served, served

from sapwood import App, ChatAgent, Turn, expose, tool
from sapwood.admin.admin import Admin
from sapwood.auth import ANY_CLIENT, User
from sapwood.errors import NoSuchMethod
from sapwood.testing import ScriptedModel, call, text

DESK = "/agents/user-desk/d"
ANN = {"who": "ann"}


class UserDesk(ChatAgent):
    """Records which users it works for."""

    model = ScriptedModel(call("look", id="l"), call("pay", id="p"), text("Done."), each=True)
    seen: ClassVar[list[tuple[str, str | None]]]

    async def before_turn(self, turn: Turn) -> None:
        self.seen.append(("before_turn", turn.user))

    async def after_turn(self, turn: Turn) -> None:
        self.seen.append(("after_turn", turn.user))

    @tool
    async def look(self) -> str:
        """Look."""
        return self._note("look")

    @tool(requires_approval=True, approvers=ANY_CLIENT)
    async def pay(self) -> str:
        """Pay."""
        return self._note("pay")

    def _note(self, where: str) -> str:
        turn = self.turns.current()
        self.seen.append((where, None if turn is None else turn.user))
        return "fine"

    async def current(self) -> str | None:
        turn = self.turns.current()
        return None if turn is None else turn.id

    @expose
    async def pass_on(self, message: str) -> None:
        await self.send(message)


@asynccontextmanager
async def desk() -> AsyncGenerator[Served, None]:
    UserDesk.seen = []

    def who(request: Any) -> User | None:
        return User(request.headers["who"]) if "who" in request.headers else None

    async with served(App(agents=[UserDesk], authenticate=who)) as one:
        yield one


async def answered(one: Served) -> list[tuple[str, str | None]]:
    """Approve the payment after a crash, and return what the desk has seen."""
    await one.world.crash()
    agent = await one.world.get_agent(UserDesk, "d")
    (question,) = await agent.questions.list()
    assert await agent.current() is None
    await agent.questions.approve(question)
    (turn,) = (await agent.conversation.export())["turns"]
    await agent.turns.wait(turn["id"])
    await one.world.until(lambda: len(UserDesk.seen) == 4)
    return UserDesk.seen


def seen_by(name: str | None) -> list[tuple[str, str | None]]:
    return [(where, name) for where in ("before_turn", "look", "pay", "after_turn")]


async def test_a_turn_of_a_socket_has_its_user_also_after_a_crash_and_an_approval_of_code() -> None:
    async with desk() as one:
        client = await one.join(DESK, additional_headers=ANN)
        await say(client, "r1", "Pay.")
        await done(client, "r1")

        assert await answered(one) == seen_by("ann")


async def test_a_turn_over_http_has_the_user_of_the_request() -> None:
    async with desk() as one:
        body = json.dumps({"messages": [user("Pay.")]}).encode()
        await one.site.http(f"{DESK}/chat", method="POST", body=body, headers=ANN)

        assert await answered(one) == seen_by("ann")


async def test_a_message_that_code_sends_for_a_client_has_the_user_of_the_client() -> None:
    async with desk() as one:
        await (await one.join(DESK, additional_headers=ANN)).call("pass_on", "Pay.")

        assert await answered(one) == seen_by("ann")


async def test_a_message_of_the_program_has_no_user_and_one_of_an_operator_says_so() -> None:
    async with desk() as one:
        agent = await one.world.get_agent(UserDesk, "d")
        assert (await agent.send("Pay.")).user is None
        operator = Admin(one.world.node)
        (told,) = [json.loads(line) async for line in operator.call("UserDesk:e", "send", ["Pay."])]

        assert told["user"] == "operator"


async def test_the_current_turn_is_private_to_the_agent() -> None:
    async with desk() as one:
        agent = await one.world.get_agent(UserDesk, "d")
        with pytest.raises(NoSuchMethod, match="cannot be called through a stub"):
            agent.turns.current()


class Stranger:
    """The user that another framework gives to a client that has not logged in."""


async def test_a_user_without_an_id_is_none() -> None:
    UserDesk.seen = []
    async with served(App(agents=[UserDesk], authenticate=lambda request: Stranger())) as one:
        client = await one.join(DESK)
        await say(client, "r1", "Pay.")
        await done(client, "r1")

        assert await answered(one) == seen_by(None)
