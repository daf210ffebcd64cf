"""The `websockets` library behind the few words that the link needs. The only module that imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sapwood.errors import UsageError

NO_CODE = 1006

try:
    from websockets.asyncio.client import ClientConnection
    from websockets.asyncio.client import connect as dial
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
    from websockets.protocol import State
except ImportError as error:  # pragma: no cover
    raise UsageError("The client requires websockets. Run: pip install 'sapwood[server]'.") from error


class WebSocket:
    """One open WebSocket."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @property
    def is_open(self) -> bool:
        return self._connection.state is State.OPEN

    async def send(self, message: str | bytes) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise ConnectionError(str(error)) from error

    async def receive(self) -> str | bytes | None:
        try:
            return await self._connection.recv()
        except ConnectionClosed:
            return None

    @property
    def closed(self) -> tuple[int, str]:
        return self._connection.close_code or NO_CODE, self._connection.close_reason or ""

    async def close(self) -> None:
        await self._connection.close()


async def open_socket(uri: str, headers: Mapping[str, str], options: Mapping[str, Any]) -> WebSocket:
    """Open a WebSocket; raises OSError or TimeoutError if that does not succeed now."""
    # How large an answer may be is up to the server, and so is whether it packs them.
    settled: dict[str, Any] = {"max_size": None, "compression": None, **options}
    try:
        return WebSocket(await dial(uri, additional_headers=dict(headers), **settled))
    except InvalidURI as error:
        raise UsageError(f"{uri!r} is not a valid URL of a server: {error}") from None
    except InvalidHandshake as error:
        raise ConnectionError(str(error)) from error
