"""Clients that provoke errors to learn of the server's files, hosts and code."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conformance.chats import TALKER, Talking, done, say, talker, talking, user
from tests.conformance.served import served, type_of

from sapwood import Agent, App, ChatAgent, Turn, agent_tool, expose, tool
from sapwood.errors import (
    NotFound,
    Refused,
    RemoteRefused,
    SapwoodError,
    StoredDataError,
    Unavailable,
    UsageError,
)
from sapwood.kernel.marshal.disclosure import AS_WRITTEN, BY_KIND
from sapwood.testing import ScriptedModel, call, calls, running, text

SECRET = "/srv/secret/path.key"
INTERNAL = re.compile(r"(?:Internal error|Stored data cannot be read) \(reference ([0-9a-f]{8})\)\.")

ERRORS: dict[str, Any] = {
    "file": lambda: FileNotFoundError(2, "No such file or directory", SECRET),
    "files": lambda: OSError(24, "Too many open files", SECRET),
    "key": lambda: KeyError(SECRET),
    "usage": lambda: UsageError(SECRET),
    "stored": lambda: StoredDataError(f"{SECRET} is damaged."),
    "group": lambda: ExceptionGroup(SECRET, [ValueError(SECRET)]),
    "unavailable": lambda: Unavailable(f"disk full: {SECRET}"),
    "remote": lambda: RemoteRefused(f"{SECRET} answers 404"),
    "not found": lambda: NotFound(f"There is no x. It has {SECRET}."),
}


def fail(kind: str) -> None:
    error: Exception = ERRORS[kind]()
    raise error


class Leaky(Agent):
    async def on_request(self, request: Any) -> Any:
        fail(request.query_params["kind"])

    async def on_connect(self, connection: Any) -> None:
        if kind := connection.query.get("kind"):
            fail(kind)

    @expose
    async def boom(self, kind: str) -> None:
        fail(kind)

    @expose
    async def stream(self, kind: str) -> AsyncIterator[int]:
        yield 1
        fail(kind)

    @expose
    async def reads_sql(self) -> None:
        self.sql("SELECT secret_column FROM nothing")

    @expose
    async def ask_child(self, kind: str) -> None:
        child = await self.sub_agent(Child, "c")
        await child.boom(kind)

    @expose
    async def no(self) -> None:
        raise Refused("You have three tasks already. Finish one first.")


class Child(Agent):
    async def boom(self, kind: str) -> None:
        fail(kind)


def logged(caplog: pytest.LogCaptureFixture, told: str) -> logging.LogRecord:
    """Return the line of the log that a client's reference leads to; it has the traceback.

    A damaged file has none: it is no mistake in code.
    """
    found = INTERNAL.search(told)
    assert found is not None, told
    (record,) = [one for one in caplog.records if found[1] in one.getMessage()]
    assert (record.exc_info is None) == ("StoredDataError" in record.getMessage())
    return record


@pytest.mark.parametrize("kind", ERRORS)
async def test_clients_are_told_no_internals_by_call_stream_request_or_close(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(App(agents=[Leaky])) as one:
        client = await one.join("/agents/leaky/a")
        told: list[tuple[str, str]] = []
        for method in ("boom", "stream", "ask_child"):
            answer = await client.call(method, kind)
            assert answer["success"] is False
            told.append((answer["error"], method))
        answer = await one.site.http(f"/agents/leaky/a?kind={kind.replace(' ', '%20')}")
        assert answer.status >= 400
        told.append((answer.text, "request to /agents/leaky/a"))
        refused = await one.connect(f"/agents/leaky/a?kind={kind.replace(' ', '%20')}")
        _, reason = await refused.ended()
        told.append((reason, "connection"))

        for what, where in told:
            assert SECRET not in what
            assert len(what) < 100
            if not isinstance(ERRORS[kind](), tuple(kind for kind, _ in BY_KIND)):
                record = logged(caplog, what)
                assert SECRET in caplog.text
                assert where in record.getMessage()
        assert not any(SECRET in json.dumps(frame) for frame in client.frames)


async def test_a_call_of_another_agent_still_raises_the_true_error() -> None:
    async with running(App(agents=[Leaky])) as world:
        agent = await world.get_agent(Leaky, "a")

        with pytest.raises(FileNotFoundError) as raised:
            await agent.ask_child("file")
        assert raised.value.filename == SECRET


async def test_an_error_that_is_meant_for_clients_keeps_its_text() -> None:
    async with served(App(agents=[Leaky])) as one:
        client = await one.join("/agents/leaky/a")

        assert (await client.call("no"))["error"] == "You have three tasks already. Finish one first."
        assert "expected" in (await client.call("boom", 1))["error"].lower()
        assert (await client.call("none"))["error"] == "Method none does not exist"


async def test_a_statement_that_fails_tells_no_schema(caplog: pytest.LogCaptureFixture) -> None:
    async with served(App(agents=[Leaky])) as one:
        client = await one.join("/agents/leaky/a")

        told = (await client.call("reads_sql"))["error"]

        assert "reads_sql" in logged(caplog, told).getMessage()


@pytest.mark.parametrize("kind", ["file", "usage", "stored"])
async def test_a_turn_that_fails_tells_no_internals(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Talking):
        async def before_turn(self, turn: Turn) -> None:
            fail(kind)

    cls = talker(ScriptedModel(text("no")), base=Failing)
    async with talking(cls) as one:
        client, agent = await one.join(TALKER), await one.world.get_agent(cls, "t")
        await say(client, "r1", user("hi"))
        ended = await done(client, "r1")
        posted = await one.site.http(
            f"{TALKER}/chat", method="POST", body=json.dumps({"messages": [user("again")]}).encode()
        )
        late = await one.join(TALKER)
        await late.send({"type": "cf_agent_stream_resume_request"})

        assert "Talker:t" in logged(caplog, ended["body"]).getMessage()
        assert INTERNAL.search(posted.text)
        seen = json.dumps([client.frames, late.frames]) + posted.text
        assert SECRET not in seen
        turn = await agent.turns.wait("r1")
        assert turn.error is not None
        assert SECRET in turn.error  # code is told


class Fetcher(Agent):
    async def on_run(self, input: Any) -> Any:
        fail("file")


class Chatter(ChatAgent):
    async def before_turn(self, turn: Turn) -> None:
        fail("file")

    model = ScriptedModel(text("no"))


class Boss(Talking):
    tools = (
        agent_tool(Fetcher, description="Fetch.", name="fetch"),
        agent_tool(Chatter, description="Chat.", name="chat"),
    )

    @tool
    async def look(self) -> str:
        """Look."""
        fail("file")
        return ""

    @tool
    async def refuse(self) -> str:
        """Refuse."""
        raise Refused("Not on Sundays.")


async def test_a_tool_or_a_child_that_fails_tells_its_model_and_not_the_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = (call("look"), call("fetch", message="x"), call("chat", message="x"), call("refuse"))
    model = ScriptedModel(calls(*asked), text("done"))
    cls = talker(model, base=Boss)
    async with talking(cls) as one:
        client = await one.join(TALKER)
        await say(client, "r1", user("hi"))
        await done(client, "r1")
        agent = await one.world.get_agent(cls, "t")
        seen_by_model, transcript = await agent.seen_by_model(), await agent.conversation.messages()
        late = await one.join(TALKER)

        assert seen_by_model.count(SECRET) == 3
        (answer,) = [message for message in transcript if message["role"] == "assistant"]
        errors = [part["errorText"] for part in answer["parts"] if part.get("state") == "output-error"]
        assert len(errors) == len(asked)
        assert errors.count("Refused: Not on Sundays.") == 1
        for told in errors:
            if "Sundays" not in told:
                logged(caplog, told)
        assert SECRET not in json.dumps([client.frames, late.frames, transcript])
        runs = [frame for frame in client.frames if type_of(frame) == "agent-tool-event"]
        assert sum(frame["event"]["kind"] == "error" for frame in runs) == 2


def test_every_error_is_decided_on() -> None:
    """A new kind of error is internal unless it is one of those whose text is meant for clients."""

    def kinds(of: type[SapwoodError]) -> set[type[SapwoodError]]:
        return {of}.union(*(kinds(one) for one in of.__subclasses__() if one.__module__ == "sapwood.errors"))

    told = {kind.__name__ for kind in kinds(SapwoodError) if issubclass(kind, AS_WRITTEN)}
    by_kind = {kind.__name__ for kind in kinds(SapwoodError) if issubclass(kind, tuple(one for one, _ in BY_KIND))}

    assert told - by_kind == {
        "Refused",
        "InvalidName",
        "InvalidArguments",
        "NoSuchMethod",
        "CallTooDeep",
        "OverLimit",
        "TimedOut",
        "Aborted",
        "GaveUp",
    }
