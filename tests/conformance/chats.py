"""What the tests of chats share: an agent that talks, clients that see it, and what has to be true of every talk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic
from uuid import uuid4

from pydantic_ai.messages import ModelMessagesTypeAdapter
from tests.conformance.served import Client, Served, served, type_of
from tests.machine import patience
from typing_extensions import TypeVar

from sapwood import App, ChatAgent, Turn
from sapwood.testing import ScriptedModel

O = TypeVar("O", default=Any)  # noqa: E741 - what its turns put out

RESPONSE = "cf_agent_use_chat_response"
MESSAGES = "cf_agent_chat_messages"
RESUMING = "cf_agent_stream_resuming"
PENDING = "cf_agent_stream_pending"
NONE = "cf_agent_stream_resume_none"
UPDATED = "cf_agent_message_updated"
RECOVERING = "cf_agent_chat_recovering"
CLEAR = "cf_agent_chat_clear"

TALKER = "/agents/talker/t"


class Talking(ChatAgent[O], Generic[O]):
    """An agent that talks, shows what its model sees, and notes how its turns end."""

    migrations = ("CREATE TABLE ends (id TEXT NOT NULL, status TEXT NOT NULL) STRICT",)

    async def after_turn(self, turn: Turn) -> None:
        self.sql("INSERT INTO ends VALUES (?, ?)", turn.id, turn.status)

    async def ends(self) -> list[tuple[str, str]]:
        return [(str(row["id"]), str(row["status"])) for row in self.sql("SELECT id, status FROM ends ORDER BY rowid")]

    async def seen_by_model(self) -> str:
        return ModelMessagesTypeAdapter.dump_json(self.conversation.history()).decode()


def talker(model: Any = None, *, base: type[Talking] = Talking, **settings: Any) -> Any:
    """Make a class of agents that talk to this model."""
    return type("Talker", (base,), {"model": model or ScriptedModel(), **settings})


@asynccontextmanager
async def talking(cls: type[Talking], *, deps: Any = None, **settings: Any) -> AsyncGenerator[Served, None]:
    """Serve a talker; what it said is checked at the end."""
    async with served(App(agents=[cls], deps=deps), **settings) as one:
        yield one
        await check(one, cls)


async def check(one: Served, cls: type[Talking]) -> None:
    """Check what has to be true of every conversation at every time."""
    agent = await one.world.get_agent(cls, "t")
    transcript = await agent.conversation.messages()
    check_history(json.loads(await agent.seen_by_model()))
    check_transcript(transcript)


def check_history(history: Sequence[dict[str, Any]]) -> None:
    """Check the rules of providers: every tool call has exactly one return, before the model says anything more."""
    open_calls: set[str] = set()
    seen: set[str] = set()
    for message in history:
        if message["kind"] == "response":
            assert not open_calls, f"The model was asked while {open_calls} had not returned."
            calls = [part["tool_call_id"] for part in message["parts"] if part["part_kind"] == "tool-call"]
            assert len(set(calls)) == len(calls)
            assert not seen & set(calls), "The same tool call comes twice."
            open_calls = set(calls)
            seen |= open_calls
        for part in message["parts"] if message["kind"] == "request" else ():
            if part["part_kind"] == "tool-return" or (part["part_kind"] == "retry-prompt" and part.get("tool_name")):
                assert part["tool_call_id"] in open_calls, "Something returned that was not called, or twice."
                open_calls.discard(part["tool_call_id"])


def open_calls(history: Sequence[dict[str, Any]]) -> set[str]:
    """Return the tool calls that have not returned."""
    parts = [part for message in history for part in message["parts"]]
    calls = {part["tool_call_id"] for part in parts if part["part_kind"] == "tool-call"}
    return calls - {part["tool_call_id"] for part in parts if part["part_kind"] in ("tool-return", "retry-prompt")}


def check_transcript(transcript: Sequence[dict[str, Any]]) -> None:
    """Check what clients rely on: ids come once, and so do tool calls."""
    ids = [message["id"] for message in transcript]
    assert len(set(ids)) == len(ids)
    calls = [part["toolCallId"] for message in transcript for part in message["parts"] if "toolCallId" in part]
    assert len(set(calls)) == len(calls)
    assert all(message["parts"] for message in transcript)


def user(text: str, id: str | None = None) -> dict[str, Any]:
    """Return what a user says, as the AI SDK has it."""
    return {"id": id or f"u-{uuid4().hex[:8]}", "role": "user", "parts": [{"type": "text", "text": text}]}


async def say(
    client: Client, id: str, *messages: dict[str, Any] | str, trigger: str = "submit-message", **body: Any
) -> None:
    """Say something as `useAgentChat` does: with all messages there are."""
    all_messages = [user(one, f"u-{one}") if isinstance(one, str) else one for one in messages]
    body = {"messages": all_messages, "trigger": trigger, **body}
    await client.send(
        {"id": id, "init": {"method": "POST", "body": json.dumps(body)}, "type": "cf_agent_use_chat_request"}
    )


async def done(client: Client, id: str) -> Any:
    """Wait for the end of a stream; return the frame that says so."""
    return await client.until(lambda frame: is_done(frame, id))


def is_done(frame: Any, id: str) -> bool:
    return type_of(frame) == RESPONSE and frame["id"] == id and frame["done"]


def dones(client: Client, id: str | None = None) -> list[Any]:
    """Return the frames that end a stream."""
    return [frame for frame in client.of_type(RESPONSE) if frame["done"] and id in (None, frame["id"])]


def chunks(client: Client, id: str, *, replay: bool | None = None) -> list[dict[str, Any]]:
    """Return what a client was streamed; only what was replayed, or only what was not, if asked."""
    frames = [frame for frame in client.of_type(RESPONSE) if frame["id"] == id and frame["body"] and not frame["done"]]
    return [json.loads(frame["body"]) for frame in frames if replay in (None, frame.get("replay", False))]


def seqs(client: Client, id: str) -> list[int]:
    return [frame["seq"] for frame in client.of_type(RESPONSE) if frame["id"] == id and "seq" in frame]


def kinds(client: Client, id: str) -> list[str]:
    return [chunk["type"] for chunk in chunks(client, id)]


def said(stream: Iterable[dict[str, Any]]) -> str:
    """Return the text of a stream."""
    return "".join(chunk["delta"] for chunk in stream if chunk["type"] == "text-delta")


async def streamed(client: Client, id: str, text: str) -> None:
    """Wait until a client was streamed this text, and perhaps more."""
    await client.until(lambda _: said(chunks(client, id)).startswith(text))


def text_of(message: dict[str, Any]) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def parts_of(message: dict[str, Any], id: str) -> dict[str, Any]:
    """Return the part of a tool call."""
    (part,) = [part for part in message["parts"] if part.get("toolCallId") == id]
    return part


def built(stream: Iterable[dict[str, Any]], message: dict[str, Any] | None = None) -> dict[str, Any]:
    """Build a message of chunks as the AI SDK's client does."""
    parts: list[dict[str, Any]] = [dict(part) for part in message["parts"]] if message else []
    id = message["id"] if message else ""
    texts: dict[str, dict[str, Any]] = {}
    tools = {part["toolCallId"]: part for part in parts if "toolCallId" in part}
    for chunk in stream:
        kind = chunk["type"]
        if kind == "start":
            id = chunk.get("messageId", id)
        elif kind == "start-step":
            parts.append({"type": "step-start"})
        elif kind in ("text-start", "reasoning-start"):
            texts[chunk["id"]] = {"type": kind.split("-")[0], "text": "", "state": "streaming"}
            parts.append(texts[chunk["id"]])
        elif kind in ("text-delta", "reasoning-delta"):
            texts[chunk["id"]]["text"] += chunk["delta"]
        elif kind in ("text-end", "reasoning-end"):
            texts[chunk["id"]]["state"] = "done"
        elif kind == "tool-input-start":
            if chunk["toolCallId"] not in tools:
                tools[chunk["toolCallId"]] = part = {
                    "type": f"tool-{chunk['toolName']}",
                    "toolCallId": chunk["toolCallId"],
                }
                parts.append(part)
            tools[chunk["toolCallId"]]["state"] = "input-streaming"
        elif kind == "tool-input-available":
            tools[chunk["toolCallId"]].update(state="input-available", input=chunk["input"])
        elif kind == "tool-output-available":
            tools[chunk["toolCallId"]].update(state="output-available", output=chunk["output"])
        elif kind == "tool-output-error":
            tools[chunk["toolCallId"]].update(state="output-error", errorText=chunk["errorText"])
        elif kind == "tool-output-denied":
            tools[chunk["toolCallId"]].update(state="output-denied")
        elif kind == "tool-approval-request":
            tools[chunk["toolCallId"]].update(state="approval-requested", approval={"id": chunk["approvalId"]})
    return {"id": id, "role": "assistant", "parts": parts}


async def resume(client: Client, probe: str = "p") -> Any:
    """Ask as a client does after it has connected; return the answer."""
    await client.send({"type": "cf_agent_stream_resume_request", "probeId": probe})
    return await client.until(
        lambda frame: type_of(frame) in (RESUMING, PENDING, NONE) and frame.get("probeId") == probe
    )


async def take(client: Client, id: str) -> None:
    """Take the offer of a replay."""
    await client.send({"type": "cf_agent_stream_resume_ack", "id": id})


async def caught_up(client: Client, id: str) -> None:
    """Wait until a replay is through."""
    await client.until(lambda frame: type_of(frame) == RESPONSE and frame["id"] == id and frame.get("replayComplete"))


async def tool_result(client: Client, id: str, output: Any, *, go_on: bool = True, **more: Any) -> None:
    frame = {"type": "cf_agent_tool_result", "toolCallId": id, "toolName": "x", "output": output, "autoContinue": go_on}
    await client.send({**frame, **more})


async def approval(client: Client, id: str, *, approved: bool, go_on: bool = True) -> None:
    await client.send({"type": "cf_agent_tool_approval", "toolCallId": id, "approved": approved, "autoContinue": go_on})


async def cancel(client: Client, id: str) -> None:
    await client.send({"type": "cf_agent_chat_request_cancel", "id": id})


async def over(agent: Talking, turns: int = 1) -> list[tuple[str, str]]:
    """Wait until this many turns are over; return how each ended."""
    async with asyncio.timeout(patience()):
        while len(ends := await agent.ends()) < turns:  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.01)
    return ends


async def idle(one: Served, path: str = TALKER) -> Client:
    """Wait until nothing streams and nothing is about to; return the client who was told so, and heard what came."""
    client = await one.join(path)
    async with asyncio.timeout(patience()):
        while (await resume(client, uuid4().hex)).get("reason") != "idle":
            await one.world.clock.advance(1)
            await asyncio.sleep(0.01)
    return client
