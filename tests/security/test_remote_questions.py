"""A question of another server is answered only by users whom both servers allow, and no name that is claimed helps."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conformance.far import KEY, PROTOCOL, at, both
from tests.conformance.served import served
from tests.conformance.test_teams_remote_transport import MemoryTransport, Mill
from tests.conformance.worlds import until
from tests.machine import patience

from sapwood import Agent, App, ChatAgent, Question, RemoteSubAgent, Run, tool
from sapwood.auth import User
from sapwood.remote import OpenQuestions, Position, RemoteQuestion, RunTransport
from sapwood.testing import ScriptedModel, call, running, text
from sapwood.wire import remote as wire

pytestmark = pytest.mark.slow  # each starts a server

NEAR = "/agents/near-office/n"


async def only_ann(user: Any, question: Question) -> bool:
    """Allow the user ann, and no server that says it acts for her."""
    return getattr(user, "id", None) == "ann"


class FarVault(ChatAgent):
    """Asks before it opens."""

    expose_runs = True
    model = ScriptedModel(
        call("unlock", id="k", door="east"), call("unlock_all", id="l"), text("it is open"), each=True
    )
    opened: list[str]

    @tool(requires_approval=True, approvers=lambda user, question: user.id == "near")
    async def unlock(self, door: str) -> str:
        """Unlock."""
        FarVault.opened.append(door)
        return "done"

    @tool(requires_approval=True, approvers=only_ann)
    async def unlock_all(self) -> str:
        """Unlock all."""
        FarVault.opened.append("all")
        return "done"


async def by_name(request: Any) -> User | None:
    """Authenticate by a header: the role is the name."""
    name = request.headers.get("who")
    return None if name is None else User(name, {"roles": [name]})


@asynccontextmanager
async def offices(approvers: Any) -> AsyncGenerator[tuple[Any, Any, list[str], Any], None]:
    """Run an office with users, whose remote run asks."""
    FarVault.opened = []
    sessions: list[str] = []
    async with both(far=[FarVault]) as two:
        stand_in = at(f"http://127.0.0.1:{two.far.site.port}", FarVault)
        stand_in.approvers = approvers

        class NearOffice(Agent):
            async def give(self) -> Run:
                return await self.run_agent(stand_in, "go", run_id="r")

            async def asked(self) -> list[Question]:
                run = self.runs.get("r")
                if run is not None and run.remote is not None:
                    sessions[:] = [run.remote["session"]]
                return await self.questions.list()

        app = App(agents=[NearOffice], deps=two.bench, authenticate=by_name)
        async with served(app) as near:
            office: Any = await near.world.get_agent(NearOffice, "n")
            giving = asyncio.create_task(office.give())
            try:
                await _asked(office, "unlock")
                yield two, near, sessions, office
            finally:
                giving.cancel()
                await asyncio.gather(giving, return_exceptions=True)


async def _asked(office: Any, name: str) -> Question:
    async with asyncio.timeout(patience()):
        while not (found := [one for one in await office.asked() if one.tool == name]):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)
    return found[0]


async def _post(near: Any, question: Question, who: str) -> Any:
    path = [{"type": step.type, "name": step.name} for step in question.path]
    body = {"id": question.id, "path": path, "digest": question.digest, "approved": True}
    return await near.site.http(
        f"{NEAR}/questions", method="POST", headers={"who": who}, body=json.dumps(body).encode()
    )


@pytest.mark.promise("B-39")
async def test_without_approvers_here_no_user_answers_a_question_of_another_server() -> None:
    async with offices(None) as (_, near, _, office):
        (question,) = await office.asked()

        refused = await _post(near, question, "boss")

        shown = await near.site.http(f"{NEAR}/questions", headers={"who": "boss"})
        assert refused.status == 403
        assert shown.json() == {"questions": []}
        assert FarVault.opened == []


async def test_approvers_here_and_there_both_have_to_allow_and_a_claimed_name_does_not_help(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with offices("boss") as (two, near, sessions, office):
        (question,) = await office.asked()
        client = await near.join(NEAR, additional_headers={"who": "boss"})
        assert (await _post(near, question, "intern")).status == 403
        assert FarVault.opened == []
        assert (await _post(near, question, "boss")).status == 200
        await until(lambda: FarVault.opened == ["east"])

        second = await _asked(office, "unlock_all")
        refused = await _post(near, second, "boss")  # the other server wants ann

        (session,) = sessions
        claimed = {"id": second.id, "digest": second.digest, "approved": True, "on_behalf_of": "ann"}
        told = await two.far.site.http(
            f"/agents/far-vault/{session}/run/answer",
            method="POST",
            headers=PROTOCOL,
            body=json.dumps(claimed).encode(),
        )
        assert refused.status == 403
        assert (told.status, told.json()["answered"]) == (200, False)
        assert FarVault.opened == ["east"]
        assert await office.asked() == [second]
        logged = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("sapwood"))
        seen = json.dumps(client.frames) + refused.text + repr(second) + logged
        assert "answer refused" in logged
        assert KEY not in seen
        assert session.rpartition("-")[2] not in json.dumps(client.frames) + refused.text + repr(second)


class Shouting(MemoryTransport):
    """Tells more questions, and larger ones, than a caller takes."""

    async def stream(self, session: str, after: Position) -> AsyncGenerator[list[Any], None]:
        large = RemoteQuestion("large", "pay", {"text": "x" * wire.MAX_QUESTION_BYTES})
        yield [OpenQuestions([large, *(RemoteQuestion(str(n), "pay", {}) for n in range(5000))])]
        async for batch in super().stream(session, after):
            yield batch


class AtShouting(RemoteSubAgent):
    url = "shouting"
    deps: Mill

    def transport(self) -> RunTransport:
        return Shouting(self.deps)


class QuietOffice(Agent):
    async def give(self) -> Run:
        return await self.run_agent(AtShouting, 1, run_id="r")


async def test_the_questions_that_another_server_tells_are_bounded_in_number_and_size() -> None:
    mill = Mill()
    async with running(App(agents=[QuietOffice], deps=mill), slow_slices="allow") as world:
        office = await world.get_agent(QuietOffice, "q")
        giving = asyncio.create_task(office.give())
        await mill.started()
        found: list[Question] = []
        async with asyncio.timeout(patience()):
            while not (found := await office.questions.list()):  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)

        assert len(found) <= wire.MAX_QUESTIONS
        assert "large" not in {one.id for one in found}
        await mill.say()
        assert (await giving).status == "completed"
        assert await office.questions.list() == []
