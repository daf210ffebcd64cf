"""A provider of models on this machine: it speaks the streaming formats of real ones, as badly as a test wants it to.

Every answer is bytes, written piece by piece. Where the pieces end has nothing to do with
where characters, tokens or events end, as on a real network.

The SDKs of providers are imported where they are needed: every run of pytest would pay seconds for them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_ai.models import Model
from tests.machine import patience

Call = tuple[str, dict[str, Any], str]
"""A tool's name, its arguments, and the call's id."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, as it goes over the wire."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    delay: float = 0.0
    """Seconds before each piece."""
    silent: bool = False
    """Whether not even the headers come."""
    holds_after: int | None = None
    """After how many pieces nothing comes any more, though the connection stays."""
    cut_after: int | None = None
    """After how many pieces the connection is cut."""
    framed: bool = True
    """Whether the end of the answer is marked, so that a cut can be told from it."""
    stays: bool = False
    """Whether the connection can be used again after a whole answer."""


@dataclass(slots=True)
class Request:
    """One request that arrived, and what became of it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    raw: bytes
    """The same, as it came."""
    begun: float
    ended: float | None = None
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the other side has closed the connection."""
    left_at: float | None = None
    sent: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when everything was written that will be."""


class Provider:
    """A server with a list of answers; the last one again and again."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[Request] = []
        self.at_once = 0
        """The most requests there ever were at the same time."""
        self.connections = 0
        self._running = 0
        self._news = asyncio.Event()
        self.port = 0

    async def asked(self, times: int = 1) -> Request:
        """Wait until this many requests have arrived; return the last of them."""
        async with asyncio.timeout(patience()):
            while len(self.requests) < times:
                self._news.clear()
                await self._news.wait()
        return self.requests[times - 1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        raw = await reader.readexactly(int(headers["content-length"]))
        request = Request(head[0].split(" ")[1], headers, json.loads(raw), raw, time.monotonic())
        self.requests.append(request)
        reply = self.replies[min(len(self.requests), len(self.replies)) - 1]
        self._news.set()
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        writing = asyncio.create_task(self._write(reply, request, writer))
        # The next byte would be another request's, which nobody sends before this one is answered.
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                request.left_at = time.monotonic()
                request.left.set()
                return False
            return await writing
        finally:
            self._running -= 1
            request.ended = time.monotonic()
            writing.cancel()
            leaving.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, reply: Reply, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Write an answer; return whether the connection can be used again."""
        if reply.silent:
            request.sent.set()
            await asyncio.Event().wait()
        kind = "text/event-stream" if reply.status == 200 else "application/json"
        headers = {"content-type": kind, **reply.headers}
        headers |= {"transfer-encoding": "chunked"} if reply.framed else {"connection": "close"}
        lines = [f"HTTP/1.1 {reply.status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for at, piece in enumerate(reply.pieces):
            if at == reply.holds_after:
                await writer.drain()
                request.sent.set()
                await asyncio.Event().wait()
            if at == reply.cut_after:
                break
            await asyncio.sleep(reply.delay)
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if reply.framed else piece)
            await writer.drain()
        else:
            if reply.framed:
                writer.write(b"0\r\n\r\n")
        await writer.drain()
        request.sent.set()
        return reply.stays


@asynccontextmanager
async def providing(*replies: Reply) -> AsyncGenerator[Provider, None]:
    """Run a provider for a test."""
    provider = Provider()
    provider.replies = list(replies)
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()


def torn(data: bytes, *, size: int = 7) -> list[bytes]:
    """Tear bytes into pieces of this size, whatever is inside."""
    return [data[at : at + size] for at in range(0, len(data), size)]


def refused(status: int, message: str = "not now", **headers: str) -> Reply:
    """Return an answer that is none."""
    error = {"type": "error", "error": {"type": "some_error", "message": message}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([json.dumps(error).encode()], status, named)


class Dialect(Protocol):
    """How one provider speaks."""

    name: str
    known: str
    """A model whose price is known."""

    def model(self, port: int, name: str | None = None, *, key: str = "k", client: Any = None) -> Model: ...

    def events(self, texts: Iterable[str], calls: Sequence[Call] = (), *, model: str | None = None) -> list[bytes]:
        """Return an answer as its events; tool calls come in pieces."""
        ...


def _event(data: dict[str, Any], *, named: bool = False) -> bytes:
    name = f"event: {data['type']}\n" if named else ""
    return f"{name}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _halves(arguments: dict[str, Any]) -> list[str]:
    """Return arguments as JSON, in pieces that end in the middle of things."""
    text = json.dumps(arguments, ensure_ascii=False)
    return [text[at : at + 3] for at in range(0, len(text), 3)]


class OpenAIChat:
    name = "openai-chat"
    known = "gpt-4o"

    def model(self, port: int, name: str | None = None, *, key: str = "k", client: Any = None) -> Model:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, http_client=client)
        return OpenAIChatModel(name or self.known, provider=provider)

    def events(self, texts: Iterable[str], calls: Sequence[Call] = (), *, model: str | None = None) -> list[bytes]:
        def chunk(delta: dict[str, Any], end: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            return _event({**base, "choices": [choice]})

        base = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": model or self.known}
        found = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": text}) for text in texts)]
        for at, (tool, _, id) in enumerate(calls):
            function = {"name": tool, "arguments": ""}
            found.append(chunk({"tool_calls": [{"index": at, "id": id, "type": "function", "function": function}]}))
        pieces = [(at, piece) for at, call in enumerate(calls) for piece in _halves(call[1])]
        for at, piece in _interleaved(pieces):
            found.append(chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}))
        found.append(chunk({}, "tool_calls" if calls else "stop"))
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return [*found, _event({**base, "choices": [], "usage": usage}), b"data: [DONE]\n\n"]


def _interleaved(pieces: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Mix the pieces of several calls, as calls made in parallel may come."""
    by_call: dict[int, list[tuple[int, str]]] = {}
    for piece in pieces:
        by_call.setdefault(piece[0], []).append(piece)
    mixed: list[tuple[int, str]] = []
    while any(by_call.values()):
        mixed += [rest.pop(0) for rest in by_call.values() if rest]
    return mixed


class OpenAIResponses:
    name = "openai-responses"
    known = "gpt-4o"

    def model(self, port: int, name: str | None = None, *, key: str = "k", client: Any = None) -> Model:
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, http_client=client)
        return OpenAIResponsesModel(name or self.known, provider=provider)

    def events(self, texts: Iterable[str], calls: Sequence[Call] = (), *, model: str | None = None) -> list[bytes]:
        found: list[bytes] = []

        def add(kind: str, **data: Any) -> None:
            found.append(_event({"type": kind, "sequence_number": len(found), **data}, named=True))

        response: dict[str, Any] = {
            "id": "r-1",
            "object": "response",
            "created_at": 1,
            "model": model or self.known,
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        add("response.created", response={**response, "status": "in_progress"})
        at, texts = 0, list(texts)
        if texts:
            part = {"type": "output_text", "text": "", "annotations": []}
            item = {"id": "m-1", "type": "message", "role": "assistant", "content": []}
            where = {"item_id": "m-1", "output_index": 0, "content_index": 0}
            add("response.output_item.added", output_index=0, item={**item, "status": "in_progress"})
            add("response.content_part.added", **where, part=part)
            for text in texts:
                add("response.output_text.delta", **where, delta=text, logprobs=[])
            whole = {**part, "text": "".join(texts)}
            add("response.output_text.done", **where, text=whole["text"], logprobs=[])
            add("response.content_part.done", **where, part=whole)
            add("response.output_item.done", output_index=0, item={**item, "status": "completed", "content": [whole]})
            at = 1
        items = [
            {"id": f"f-{id}", "type": "function_call", "call_id": id, "name": tool, "arguments": ""}
            for tool, _, id in calls
        ]
        for n, item in enumerate(items):
            add("response.output_item.added", output_index=at + n, item={**item, "status": "in_progress"})
        pieces = [(n, piece) for n, call in enumerate(calls) for piece in _halves(call[1])]
        for n, piece in _interleaved(pieces):
            where = {"item_id": items[n]["id"], "output_index": at + n}
            add("response.function_call_arguments.delta", **where, delta=piece)
        for n, (item, call) in enumerate(zip(items, calls, strict=True)):
            text = json.dumps(call[1], ensure_ascii=False)
            where = {"item_id": item["id"], "output_index": at + n}
            add("response.function_call_arguments.done", **where, arguments=text, name=call[0])
            whole = {**item, "status": "completed", "arguments": text}
            add("response.output_item.done", output_index=at + n, item=whole)
        usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        add("response.completed", response={**response, "status": "completed", "usage": usage})
        return found


class Anthropic:
    name = "anthropic"
    known = "claude-3-5-sonnet-latest"

    def model(self, port: int, name: str | None = None, *, key: str = "k", client: Any = None) -> Model:
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        provider = AnthropicProvider(base_url=f"http://127.0.0.1:{port}", api_key=key, http_client=client)
        return AnthropicModel(name or self.known, provider=provider)

    def events(self, texts: Iterable[str], calls: Sequence[Call] = (), *, model: str | None = None) -> list[bytes]:
        found: list[bytes] = []

        def add(kind: str, **data: Any) -> None:
            found.append(_event({"type": kind, **data}, named=True))

        message: dict[str, Any] = {"id": "m-1", "type": "message", "role": "assistant", "content": []}
        message |= {"model": model or self.known, "stop_reason": None, "stop_sequence": None}
        add("message_start", message={**message, "usage": {"input_tokens": 100, "output_tokens": 1}})
        add("ping")
        at, texts = 0, list(texts)
        if texts:
            add("content_block_start", index=0, content_block={"type": "text", "text": ""})
            for text in texts:
                add("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
            add("content_block_stop", index=0)
            at = 1
        for n, (tool, arguments, id) in enumerate(calls, at):
            block = {"type": "tool_use", "id": id, "name": tool, "input": {}}
            add("content_block_start", index=n, content_block=block)
            for piece in ["", *_halves(arguments)]:
                add("content_block_delta", index=n, delta={"type": "input_json_delta", "partial_json": piece})
            add("content_block_stop", index=n)
        end = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        add("message_delta", delta=end, usage={"output_tokens": 10})
        add("message_stop")
        return found


DIALECTS: tuple[Dialect, ...] = (OpenAIChat(), OpenAIResponses(), Anthropic())
