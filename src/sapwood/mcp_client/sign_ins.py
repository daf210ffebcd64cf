"""Sign-ins of users at MCP servers, exact through crashes.

What ends a sign-in is stored before the user is sent away, and nothing changes before the `state` of the user who comes
back is known. The code is stored before it is exchanged. If a crash loses the answer, another sign-in begins.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from sapwood.capabilities.mcp_servers import MCP_SERVERS, McpServers, ServerRow
from sapwood.capabilities.queue import Queue
from sapwood.errors import InvalidArguments, Refused, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.mcp_client.http import Endpoint, in_words
from sapwood.mcp_client.oauth import (
    AuthorizationServer,
    Client,
    GrantRefused,
    OAuth,
    Tokens,
    field_of,
    origin_of,
    sign_in_url,
)
from sapwood.mcp_client.outcomes import Unauthorized
from sapwood.mcp_client.sealing import Seal, UnreadableSecrets
from sapwood.mcp_client.text import line_of
from sapwood.randomness import new_id
from sapwood.wire.routing import path_to

CALLBACK = "/mcp/callback"
"""The path of an agent to which users come back."""
END_SIGN_IN = "_sapwood_end_mcp_sign_in"
QUEUE = "sapwood mcp"
TIMEOUT = 20.0
"""Seconds for all requests to an authorization server together."""
EARLY = 30.0
"""Seconds before its end at which a token is refreshed."""
NEEDS = "It wants a user to sign in, which needs Settings(public_url=…) and Settings(secret_keys=…)."


T = TypeVar("T")


class SignIn(msgspec.Struct):
    """A sign-in that was begun."""

    server: AuthorizationServer
    client: Client
    redirect_url: str
    verifier: str
    code: str | None = None


class EndedSignIn(msgspec.Struct):
    """A user has come back to a server of this number."""

    server: int


class Secrets(msgspec.Struct):
    """What is stored encrypted of a server."""

    headers: dict[str, str] = {}
    client: Client | None = None
    server: AuthorizationServer | None = None
    """Who gave the tokens."""
    tokens: Tokens | None = None
    redirect_url: str | None = None
    """Where code wants users to come back. `None` means to the agent."""


class SignIns:
    """The tokens of one agent, and the sign-ins that lead to them."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._servers = actor.of(McpServers)
        self._seal = actor.of(Seal)
        self._locks: dict[int, asyncio.Lock] = {}
        """By server: held while its authorization server is asked."""

    def configure(self, row: ServerRow, given: Secrets) -> None:
        """Store what code says of a server. Its tokens are kept unless they depend on something that has changed."""
        try:
            before = self.secrets(row)
        except UnreadableSecrets:
            before = Secrets()
        named = None if before.client is None or before.client.issuer is not None else before.client
        is_same = (given.client, given.redirect_url) == (named, before.redirect_url)
        if is_same and not _has_authorization(given.headers):
            given = Secrets(given.headers, before.client, before.server, before.tokens, before.redirect_url)
        else:
            self._forget(row.number)
        if given != before:
            self.store(row.number, given, status="connecting")

    def secrets(self, row: ServerRow) -> Secrets:
        """Return the secrets of a server. Raises `UnreadableSecrets` if no key opens them."""
        if row.secrets is None:
            return Secrets()
        return msgspec.convert(self._seal.open(row.secrets, secrets_of(row.number)), Secrets)

    def store(self, number: int, secrets: Secrets, **columns: Any) -> None:
        """Store the secrets of a server, with what else changes."""
        self._servers.set(number, secrets=self._seal.seal(secrets, secrets_of(number)), **columns)

    async def headers(self, row: ServerRow, endpoint: Endpoint) -> dict[str, str]:
        """Return the headers for a server, with a token that is valid as far as is known."""
        secrets = self.secrets(row)
        tokens = secrets.tokens
        if tokens is None:
            return secrets.headers
        if tokens.expires_at is not None and tokens.expires_at - EARLY <= self._actor.host.clock.now():
            tokens = await self._refreshed(row, tokens, endpoint) or tokens
        return {**secrets.headers, "authorization": f"Bearer {tokens.access}"}

    async def challenged(
        self, row: ServerRow, error: Unauthorized, used: str | None, endpoint: Endpoint, *, may_refresh: bool
    ) -> bool:
        """Take that a server refused a request. Return whether it may be repeated with another token by now.

        Otherwise a sign-in has begun. Raises `Refused` if there can be none.
        """
        secrets = self.secrets(row)
        if _has_authorization(secrets.headers):
            raise Refused("It does not accept the token that it was added with.")
        tokens = secrets.tokens
        is_step_up = field_of(error.challenge, "error") == "insufficient_scope"
        if tokens is not None and may_refresh and not is_step_up:
            if used != f"Bearer {tokens.access}":
                return True  # it was refreshed meanwhile
            if await self._refreshed(row, tokens, endpoint) is not None:
                return True
        return await self._begin(row.number, error.challenge, endpoint) and may_refresh

    async def _refreshed(self, row: ServerRow, old: Tokens, endpoint: Endpoint) -> Tokens | None:
        """Return new tokens for old ones; `None` if only a user can get new ones."""
        return await self._to_its_end(self._refresh, row, old, endpoint)

    async def _refresh(self, row: ServerRow, old: Tokens, endpoint: Endpoint) -> Tokens | None:
        async with self._lock(row.number):
            now = self._servers.numbered(row.number)
            if now is None:
                return None
            secrets = self.secrets(now)
            if secrets.tokens != old:
                return secrets.tokens
            if old.refresh is None or secrets.client is None or secrets.server is None:
                return None
            form = {"grant_type": "refresh_token", "refresh_token": old.refresh}
            try:
                async with in_words(origin_of(secrets.server.issuer), TIMEOUT):
                    time = self._actor.host.clock.now()
                    tokens = await OAuth(endpoint).exchanged(secrets.server, secrets.client, form, time)
            except GrantRefused:
                self._actor.check_live()
                secrets.tokens = None
                self.store(row.number, secrets)
                return None
            self._actor.check_live()
            secrets.tokens = msgspec.structs.replace(tokens, scopes=tokens.scopes or old.scopes)
            self.store(row.number, secrets)
            await self._actor.leave()  # a refresh token is often valid once: the new one must not be lost
            return secrets.tokens

    async def _begin(self, number: int, challenge: str, endpoint: Endpoint) -> bool:
        """Begin a sign-in, unless one waits for its user. Return whether the server has other secrets by now."""
        async with self._lock(number):
            row, pending = self._servers.numbered(number), self._open(number)
            if row is None or (pending is not None and (row.status == "signing_in" or pending.code is not None)):
                return False
            settings = self._actor.host.settings
            secrets = self.secrets(row)
            if not settings.secret_keys or not (settings.public_url or secrets.redirect_url):
                raise Refused(NEEDS)
            redirect_url = secrets.redirect_url or self._callback()
            granted = None if secrets.tokens is None else secrets.tokens.scopes
            async with in_words("The sign-in", TIMEOUT):
                oauth = OAuth(endpoint)
                server = await oauth.discovered(challenge, granted)
                client = secrets.client
                _check_issuer(secrets, server)
                if client is None or client.issuer not in (None, server.issuer):
                    client = await oauth.registered(server, redirect_url, str(self._actor.address))
            self._actor.check_live()
            now = self._servers.numbered(number)
            if now is None or now.secrets != row.secrets:
                return now is not None  # code has removed it, or added it with others
            secrets.client, secrets.server, secrets.tokens = client, server, None
            state, verifier = new_id(self._actor.host.random, 32), new_id(self._actor.host.random, 48)
            sign_in = SignIn(server, client, redirect_url, verifier)
            self._forget(number)
            self._actor.database.execute(
                "INSERT INTO sapwood_mcp_sign_ins VALUES (?, ?, ?, ?)",
                _hash(state),
                number,
                self._seal.seal(sign_in, _sign_in_of(number)),
                self._actor.host.clock.now(),
            )
            url = sign_in_url(server, client, redirect_url, state, verifier)
            self.store(number, secrets, status="signing_in", sign_in_url=url, error=None, next_try_at=None)
        await self._actor.leave()
        return False

    def _callback(self) -> str:
        settings = self._actor.host.settings
        try:
            return settings.public_url + path_to(self._actor.address, prefix=settings.prefix, rest=CALLBACK)
        except UsageError as error:
            raise Refused(f"No user can sign in for this agent: {error}") from None

    def take(self, query: dict[str, str]) -> str | None:
        """Take how a user came back, and return the name of the server; `None` if the state is not known.

        Raises `InvalidArguments` if the answer is of another authorization server, and changes nothing.
        """
        found = self._by_state(query.get("state", ""))
        if found is None:
            return None
        row, sign_in = found
        issuer = query.get("iss")
        if issuer is None and sign_in.server.says_issuer:
            raise InvalidArguments("The answer does not say which authorization server it is of.")
        if issuer is not None and issuer != sign_in.server.issuer:
            raise InvalidArguments("The answer is of another authorization server.")
        if sign_in.code is not None:
            return row.name
        code = query.get("code")
        if not code:
            why = line_of(query.get("error_description") or query.get("error"), 300) or "no code came back"
            self._forget(row.number)
            self._servers.set(row.number, status="failed", error=f"The sign-in was refused: {why}", sign_in_url=None)
            return row.name
        sign_in.code = code
        self._actor.database.execute(
            "UPDATE sapwood_mcp_sign_ins SET secrets = ? WHERE server = ?",
            self._seal.seal(sign_in, _sign_in_of(row.number)),
            row.number,
        )
        self._servers.set(row.number, status="connecting", sign_in_url=None)
        self._actor.of(Queue).call_back(QUEUE, END_SIGN_IN, "sign_in", EndedSignIn(row.number))
        return row.name

    async def end(self, number: int, endpoint: Endpoint) -> None:
        """Exchange the code of a sign-in for tokens. A code that is no longer valid is forgotten."""
        if self.is_ending(number):
            await self._actor.leave()
            await self._to_its_end(self._end, number, endpoint)

    async def _end(self, number: int, endpoint: Endpoint) -> None:
        async with self._lock(number):
            sign_in = self._open(number)
            if sign_in is None or sign_in.code is None:
                return  # another caller has exchanged it
            form = {
                "grant_type": "authorization_code",
                "code": sign_in.code,
                "redirect_uri": sign_in.redirect_url,
                "code_verifier": sign_in.verifier,
            }
            try:
                async with in_words(origin_of(sign_in.server.issuer), TIMEOUT):
                    now = self._actor.host.clock.now()
                    tokens = await OAuth(endpoint).exchanged(sign_in.server, sign_in.client, form, now)
            except GrantRefused:
                self._actor.check_live()
                self._forget(number)
                return
            self._actor.check_live()
            row = self._servers.numbered(number)
            if row is not None and self.is_ending(number):
                secrets = self.secrets(row)
                secrets.client, secrets.server = sign_in.client, sign_in.server
                secrets.tokens = msgspec.structs.replace(tokens, scopes=tokens.scopes or sign_in.server.scopes)
                self._forget(number)
                self.store(number, secrets)

    def _lock(self, number: int) -> asyncio.Lock:
        return self._locks.setdefault(number, asyncio.Lock())

    async def _to_its_end(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a function to its end, though its caller may be cancelled: its answer comes only once."""
        _, reply = self._actor.handle("mcp", functools.partial(function, *arguments))
        return await asyncio.shield(reply)

    def is_begun(self, number: int) -> bool:
        """Return whether a user can come back from a sign-in. If no key opens what is stored of it, another begins."""
        return self._open(number) is not None

    def is_ending(self, number: int) -> bool:
        """Return whether a user has come back, and the code was not exchanged yet."""
        sign_in = self._open(number)
        return sign_in is not None and sign_in.code is not None

    def _open(self, number: int) -> SignIn | None:
        if not self._actor.database.has(MCP_SERVERS):
            return None
        rows = self._actor.database.execute("SELECT secrets FROM sapwood_mcp_sign_ins WHERE server = ?", number)
        return self._read(rows[0][0], number) if rows else None

    def _by_state(self, state: str) -> tuple[ServerRow, SignIn] | None:
        if not state or not self._actor.database.has(MCP_SERVERS):
            return None
        query = "SELECT server, secrets FROM sapwood_mcp_sign_ins WHERE state = ?"
        rows = self._actor.database.execute(query, _hash(state))
        row = self._servers.numbered(rows[0][0]) if rows else None
        sign_in = None if row is None else self._read(rows[0][1], row.number)
        return None if row is None or sign_in is None else (row, sign_in)

    def _read(self, sealed: bytes, number: int) -> SignIn | None:
        try:
            return msgspec.convert(self._seal.open(sealed, _sign_in_of(number)), SignIn)
        except UnreadableSecrets:
            return None  # as if it had not begun: another one begins

    def _forget(self, number: int) -> None:
        self._actor.database.execute("DELETE FROM sapwood_mcp_sign_ins WHERE server = ?", number)


def _check_issuer(secrets: Secrets, server: AuthorizationServer) -> None:
    """Raise `Refused` if a client that code has named would be sent to another authorization server than before."""
    is_named = secrets.client is not None and secrets.client.issuer is None
    if is_named and secrets.server is not None and secrets.server.issuer != server.issuer:
        raise Refused(
            f"It names {line_of(server.issuer, 300)!r} as its authorization server, and named "
            f"{secrets.server.issuer!r} before: the client_id=… that it was added with is not sent there. If that is "
            "right, remove the server and add it again."
        )


def _has_authorization(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "authorization" for name in headers)


def secrets_of(number: int) -> str:
    """Return what the secrets of a server are sealed for."""
    return f"mcp server {number}"


def _sign_in_of(number: int) -> str:
    return f"mcp sign-in {number}"


def _hash(state: str) -> str:
    return hashlib.sha256(state.encode("utf-8", "surrogatepass")).hexdigest()
