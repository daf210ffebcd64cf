"""Turns of a conversation whose client is cut off again and again, and whose server may be killed.

The client sends the same request at every connection. A second client watches the whole turn. At the end there is one
user message and one whole answer for each turn, and what was replayed equals what was sent live.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import websockets
from tests.blackbox.chat_app import ANSWER
from tests.blackbox.events import wait_until
from tests.blackbox.rounds import Outcome, Play
from tests.blackbox.server import HERE, Server
from tests.machine import patience
from websockets.asyncio.client import ClientConnection

TURNS_PER_CONVERSATION = 5
LONGEST_CONNECTION = 0.6
"""Seconds after which the client is cut off, at most."""
RECONNECT_DELAY = 0.1
KILL_CHANCE = 0.3
"""The chance of a kill after each cut, until one has happened in the turn."""
MESSAGES = "cf_agent_chat_messages"
REQUEST, RESPONSE = "cf_agent_use_chat_request", "cf_agent_use_chat_response"
RESUME, RESUMING, RESUME_ACK = (f"cf_agent_stream_{word}" for word in ("resume_request", "resuming", "resume_ack"))
LOST = (OSError, websockets.WebSocketException)


class Turn:
    """One request, and the chunks of its response that each client has received, by their number."""

    def __init__(self, server: Server, name: str, chance: Random) -> None:
        self.faults = Counter[str]()
        self.violations: list[str] = []
        self.message_id = uuid.uuid4().hex
        self.watched: dict[int, str] = {}
        self.is_over = asyncio.Event()
        self._is_watched = asyncio.Event()
        self._id = uuid.uuid4().hex
        self._received: dict[int, str] = {}
        self._server = server
        self._url = f"ws://127.0.0.1:{server.port}/agents/talk/{name}"
        self._chance = chance

    def _request(self) -> str:
        message = {"id": self.message_id, "role": "user", "parts": [{"type": "text", "text": "Tell me a story."}]}
        body = json.dumps({"messages": [message], "trigger": "submit-message"})
        return json.dumps({"type": REQUEST, "id": self._id, "init": {"method": "POST", "body": body}})

    async def play(self, *, kills: bool) -> None:
        """Send the request at connections that are cut off, until the turn has ended."""
        watching = asyncio.create_task(self._watch())
        await self._is_watched.wait()
        try:
            is_killed = False
            async with asyncio.timeout(patience(60.0)):
                while not self.is_over.is_set():
                    await self._connect_and_cut()
                    if kills and not is_killed and self._chance.random() < KILL_CHANCE:
                        self._server.kill()
                        is_killed, self.faults["kill"] = True, 1
                        await self._server.start_beside()
                await watching
        except TimeoutError:
            self.violations.append("the turn did not end")
        finally:
            watching.cancel()
        if not self.faults["kill"]:  # a new process asks the model again, and may cut its answer elsewhere
            for number, chunk in self._received.items():
                if self.watched.get(number) != chunk:
                    self.violations.append(
                        f"chunk {number} was replayed as {chunk}, and sent as {self.watched.get(number)}"
                    )

    async def _watch(self) -> None:
        while not self.is_over.is_set():
            try:
                async with websockets.connect(self._url, max_size=None) as socket:
                    self._is_watched.set()
                    async for frame in _frames(socket):
                        is_own = frame["type"] == RESPONSE and frame["id"] == self._id
                        if (is_own and self._note(frame, self.watched)) or (
                            self.faults["kill"] and self._is_answered(frame)
                        ):
                            self.is_over.set()
                            return
            except LOST:
                await asyncio.sleep(RECONNECT_DELAY)

    def _is_answered(self, frame: dict[str, Any]) -> bool:
        """Return whether a frame has the conversation with the whole answer: it may come before the client is back."""
        if frame["type"] != MESSAGES:
            return False
        ids = [message["id"] for message in frame["messages"]]
        answers = frame["messages"][ids.index(self.message_id) + 1 :] if self.message_id in ids else []
        return any(text_of(answer) == ANSWER for answer in answers)

    async def _connect_and_cut(self) -> None:
        received: dict[int, str] = {}
        try:
            async with websockets.connect(self._url, max_size=None) as socket:
                await socket.send(self._request())  # the same id again changes nothing
                if self.faults["cut"]:
                    await socket.send(json.dumps({"type": RESUME, "probeId": uuid.uuid4().hex}))
                try:
                    async with asyncio.timeout(self._chance.random() * LONGEST_CONNECTION):
                        async for frame in _frames(socket):
                            if frame["type"] == RESPONSE and frame["id"] == self._id:
                                self._note(frame, received)
                except TimeoutError:
                    socket.transport.abort()
                    self.faults["cut"] += 1
        except LOST:
            await asyncio.sleep(RECONNECT_DELAY)
        self._received |= received

    def _note(self, frame: dict[str, Any], chunks: dict[int, str]) -> bool:
        """Add a chunk; return whether the response has ended."""
        if "seq" not in frame and frame.get("replay"):
            return frame["done"]  # the turn ended after the offer to resume it: nothing is replayed
        if frame["done"]:
            if frame["outcome"] not in ("completed", "recovering"):
                self.violations.append(f"the turn ended as {frame['outcome']}")
            return frame["outcome"] != "recovering"
        if frame.get("body"):
            chunks[frame["seq"]] = frame["body"]
        return False


async def _frames(socket: ClientConnection) -> AsyncIterator[dict[str, Any]]:
    """Yield the frames of a socket, and accept every stream that the server offers to resume."""
    async for text in socket:
        frame: dict[str, Any] = json.loads(text)
        if frame.get("type") == RESUMING:
            await socket.send(json.dumps({"type": RESUME_ACK, "id": frame["id"]}))
        yield frame


async def play(kills: bool, folder: Path, seed: int, count: int) -> Outcome:
    """Play this many turns, and compare each conversation with what was sent and watched."""
    chance, faults, violations = Random(seed), Counter[str](), list[str]()
    server = Server(folder, app=HERE / "chat_app.py")
    try:
        await server.start_beside()
        for first in range(0, count, TURNS_PER_CONVERSATION):
            name, turns = f"conversation-{first}", list[Turn]()
            for _ in range(min(TURNS_PER_CONVERSATION, count - first)):
                turns.append(Turn(server, name, chance))
                await turns[-1].play(kills=kills)
                faults += turns[-1].faults
            found = [violation for turn in turns for violation in turn.violations]
            found += await _compare(server, name, turns)
            violations += [f"{name}: {violation}" for violation in found]
        server.stop()
    finally:
        server.kill()
    return Outcome(dict(faults), count, violations)


async def _compare(server: Server, name: str, turns: list[Turn]) -> list[str]:
    """Return what is wrong with the stored conversation."""

    def stored() -> list[dict[str, Any]]:
        return json.loads(server.get(f"/agents/talk/{name}/get-messages")[1])

    await wait_until(lambda: len(stored()) >= 2 * len(turns), f"{name} has stored {len(turns)} turns")
    messages = stored()
    if [message["role"] for message in messages] != ["user", "assistant"] * len(turns):
        return [f"the roles are {[message['role'] for message in messages]}"]
    if [message["id"] for message in messages[::2]] != [turn.message_id for turn in turns]:
        return ["the user messages are not those that were sent"]
    found = list[str]()
    for turn, answer in zip(turns, messages[1::2], strict=True):
        if text_of(answer) != ANSWER:
            found.append(f"an answer is stored as {text_of(answer)!r}")
        if not turn.faults["kill"] and _text_of(turn.watched) != ANSWER:
            found.append(f"an answer was watched as {_text_of(turn.watched)!r}")
    return found


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message."""
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def _text_of(chunks: dict[int, str]) -> str:
    parsed = [json.loads(chunk) for _, chunk in sorted(chunks.items())]
    return "".join(chunk["delta"] for chunk in parsed if chunk["type"] == "text-delta")


def chat_cuts(*, kills: bool) -> Play:
    """Return the program, with or without kills of the server."""
    return partial(play, kills)
