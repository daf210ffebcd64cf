"""The other server of a move, over its admin API."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.address import Address
from sapwood.errors import NotFound, Refused, SapwoodError, StoredDataError, Unavailable, UsageError
from sapwood.kernel.ports.destination import FileStates, Part, Ticket

if TYPE_CHECKING:
    import httpx2

ADMIN = "/_sapwood/"
CONNECT = 10.0
CHECK, SEAL, OTHER = 600.0, 120.0, 60.0
"""Seconds that requests may take: to check all databases, to make them durable while the agents stand still, others."""
KINDS: dict[str, type[SapwoodError]] = {
    kind.code: kind for kind in (NotFound, Refused, StoredDataError, Unavailable, UsageError)
}


class Unauthorized(Refused):
    """The other server does not know the token or the key."""


class HttpDestinations:
    """The way to other servers."""

    async def offer(self, url: str, token: str, root: Address) -> HttpDestination:
        client = connected(url)
        try:
            told = await _asked(client, "receive", token, {"address": str(root)}, OTHER)
            ticket = Ticket(url, str(told["id"]), str(told["key"]), str(told["path"]))
        except KeyError as error:
            await client.aclose()
            raise UsageError(f"{url} answers without {error}: it is another release of sapwood.") from None
        except BaseException:
            await client.aclose()
            raise
        return HttpDestination(client, ticket, root)

    def known(self, ticket: Ticket, root: Address) -> HttpDestination:
        return HttpDestination(connected(ticket.url), ticket, root)


class HttpDestination:
    """One move, at the other server."""

    def __init__(self, client: httpx2.AsyncClient, ticket: Ticket, root: Address) -> None:
        self.ticket = ticket
        self._client = client
        self._about = {"address": str(root), "id": ticket.id}

    async def write(self, parts: Sequence[Part]) -> None:
        sent = [(name, start, base64.b64encode(content).decode()) for name, start, content in parts]
        await self._ask("arrival-parts", OTHER, parts=sent)

    async def check(self, files: FileStates) -> None:
        await self._ask("arrival", CHECK, do="check", files=msgspec.to_builtins(files))

    async def seal(self, files: FileStates) -> None:
        await self._ask("arrival", SEAL, do="seal", files=msgspec.to_builtins(files))

    async def commit(self) -> None:
        await self._ask("arrival", OTHER, do="commit")

    async def discard(self) -> None:
        with suppress(Unauthorized, NotFound):  # the key ends with the move
            await self._ask("arrival", OTHER, do="discard")

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, what: str, timeout: float, **params: Any) -> None:
        await _asked(self._client, what, self.ticket.key, self._about | params, timeout)


def connected(url: str) -> httpx2.AsyncClient:
    """Return a client of a server."""
    try:
        import httpx2
    except ImportError:
        raise UsageError("A move to another server needs the extra: pip install 'sapwood[remote]'.") from None
    return httpx2.AsyncClient(base_url=url)


async def _asked(
    client: httpx2.AsyncClient, what: str, token: str, params: dict[str, Any], timeout: float
) -> dict[str, Any]:
    import httpx2

    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    content, limits = msgspec.json.encode(params), httpx2.Timeout(timeout, connect=CONNECT)
    try:
        response = await client.post(f"{ADMIN}{what}", content=content, headers=headers, timeout=limits)
    except httpx2.HTTPError as error:
        why = str(error) or type(error).__name__
        raise Unavailable(f"The server {client.base_url} cannot be reached: {why}.") from None
    try:
        answer = msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        answer = {}
    if response.status_code == HTTPStatus.OK:
        return answer
    told = f"The server {client.base_url} answered: {answer.get('error') or f'status {response.status_code}'}"
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        raise Unauthorized(told)
    # What is no answer of sapwood comes from a proxy, or from a server that is about to start.
    raise KINDS.get(str(answer.get("code")), Unavailable)(told)
