"""Exchanges with a provider of models, kept in a file and played again without a network."""

from __future__ import annotations

import codecs
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

log = logging.getLogger(__name__)


class Recorder(httpx2.AsyncBaseTransport):
    """Sends requests to the provider, and records each request and its response, chunk by chunk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._network = httpx2.AsyncHTTPTransport()
        self._exchanges: list[dict[str, Any]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"  # what is written down is to be read by people
        asked = _asked(request, await request.aread())
        response = await self._network.handle_async_request(request)
        pieces: list[str] = []
        kept = {
            name: response.headers[name]
            for name in ("content-type", "retry-after", "retry-after-ms")
            if name in response.headers
        }
        exchange = {"request": asked, "status": response.status_code, "headers": kept, "pieces": pieces, "cut": True}
        self._exchanges.append(exchange)
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        response.stream = _Heard(stream, exchange, self.save)
        return response

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._exchanges, indent=1) + "\n")

    async def aclose(self) -> None:
        await self._network.aclose()


class _Heard(httpx2.AsyncByteStream):
    """An answer that is written down while it is read."""

    def __init__(self, stream: httpx2.AsyncByteStream, exchange: dict[str, Any], save: Any) -> None:
        self._stream = stream
        self._exchange = exchange
        self._save = save

    async def __aiter__(self) -> AsyncIterator[bytes]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async for piece in self._stream:
            # A character may be torn in two; it is kept with its second half.
            self._exchange["pieces"].append(decoder.decode(piece))
            yield piece
        self._exchange["cut"] = False

    async def aclose(self) -> None:
        self._save()
        await self._stream.aclose()


class Player(httpx2.AsyncBaseTransport):
    """Replays the recorded responses in the same order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._left: list[dict[str, Any]] = json.loads(path.read_text())

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        asked = _asked(request, await request.aread())
        if not self._left or self._left[0]["request"] != asked:
            expected = self._left[0]["request"] if self._left else "no further request"
            problem = f"{self._path}: expected {expected}, got {asked}. Record it again."
            log.error("%s", problem)
            # An answer, and no error: SDKs take every error for a broken connection, and ask again.
            return httpx2.Response(400, json={"type": "error", "error": {"type": "not recorded", "message": problem}})
        exchange = self._left.pop(0)
        return httpx2.Response(exchange["status"], headers=exchange["headers"], stream=_Played(exchange))


class _Played(httpx2.AsyncByteStream):
    """An answer that is read as it was written down."""

    def __init__(self, exchange: dict[str, Any]) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._exchange["pieces"]:
            yield piece.encode()
        if self._exchange["cut"]:
            raise httpx2.ReadError("The connection was cut off here in the recording.")


def _asked(request: httpx2.Request, body: bytes) -> dict[str, Any]:
    """Return what makes a request the same one; its headers have a key in them, and are not written down."""
    return {"method": request.method, "path": request.url.path, "body": json.loads(body) if body else None}
