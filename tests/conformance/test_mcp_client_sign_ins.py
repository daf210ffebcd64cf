"""Users sign in at MCP servers: with PKCE, through crashes, and only those who were sent."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from tests.cases import slow
from tests.conformance.mcp_servers import Asked, RemoteServer, respond, said, tool
from tests.conformance.served import Served, served
from tests.conformance.worlds import until

from sapwood import Agent, App, Connection
from sapwood.errors import InvalidArguments, NotFound, Refused, Unavailable
from sapwood.types import McpServer

KEY = "a key for the secrets of a test, long enough"
LOCAL: dict[str, Any] = {
    "mcp_private_hosts": ("127.0.0.1",),
    "secret_keys": (KEY,),
    "public_url": "https://agents.example.com",
}
CALLBACK = "https://agents.example.com/agents/signing/ann/mcp/callback"
PATH = "/agents/signing/ann/mcp/callback"


class Signing(Agent):
    """Uses a server at which a user has to sign in."""

    async def add(self, url: str, options: dict[str, Any] | None = None) -> McpServer:
        return await self.mcp.add("bank", url, **(options or {}))

    async def server(self) -> McpServer:
        return self.mcp.get("bank")

    async def refresh(self) -> McpServer:
        await self.mcp.refresh("bank")
        return self.mcp.get("bank")

    async def use(self) -> Any:
        return await self.mcp.call("bank", "pay", {})

    async def drop(self) -> bool:
        return await self.mcp.remove("bank")

    async def complete(self, url: str) -> McpServer:
        return await self.mcp.complete_sign_in(url)

    def is_watch_only(self, connection: Connection) -> bool:
        return connection.query.get("watch") == "1"


class Bank(RemoteServer):
    """A server with its own authorization server: every access token is valid until `revoke`."""

    def __init__(self) -> None:
        super().__init__([tool("pay")], {"tools/call": said("paid")})
        self.codes: dict[str, dict[str, str]] = {}
        self.exchanged: list[dict[str, str]] = []
        self.valid: set[str] = set()
        self.refreshable: set[str] = set()
        self.lasts = 3600
        self.says_issuer = False
        for method in ("server/discover", "tools/list", "tools/call"):
            self.raw[method] = self._guarded
        self.raw["/.well-known/oauth-protected-resource/mcp"] = self._resource
        self.raw["/.well-known/oauth-authorization-server"] = self._metadata
        self.raw["/register"] = self._register
        self.raw["/token"] = self._token

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _guarded(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.headers.get("authorization", "").removeprefix("Bearer ") in self.valid:
            await self._respond(asked, writer)
        else:
            metadata = f"{self.origin}/.well-known/oauth-protected-resource/mcp"
            respond(writer, 401, {}, www_authenticate=f'Bearer resource_metadata="{metadata}", scope="pay"')

    async def _resource(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 200, {"resource": self.url, "authorization_servers": [self.origin]})

    async def _metadata(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 200, self.metadata())

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": ["pay", "offline_access"],
            "authorization_response_iss_parameter_supported": self.says_issuer,
        }

    async def _register(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 201, {**json.loads(asked.body), "client_id": "client-1"})

    def allow(self, url: str) -> str:
        """Do what a user does who signs in; return the URL to which the user comes back."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.origin}/authorize?")
        code = f"code-{len(self.codes) + 1}"
        self.codes[code] = query
        back = {"code": code, "state": query["state"], **({"iss": self.origin} if self.says_issuer else {})}
        return f"{query['redirect_uri']}?{urlencode(back)}"

    async def _token(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        form = {name: values[0] for name, values in parse_qs(asked.body.decode()).items()}
        self.exchanged.append(form)
        if not self._grants(form):
            return respond(writer, 400, {"error": "invalid_grant"})
        number = len(self.exchanged)
        self.valid.add(f"access-{number}")
        self.refreshable.add(f"refresh-{number}")
        tokens = {"access_token": f"access-{number}", "refresh_token": f"refresh-{number}"}
        return respond(writer, 200, {**tokens, "token_type": "Bearer", "expires_in": self.lasts})

    def _grants(self, form: dict[str, str]) -> bool:
        if form["grant_type"] == "refresh_token":
            known = form["refresh_token"] in self.refreshable
            self.refreshable.discard(form["refresh_token"])
            return known
        asked = self.codes.pop(form["code"], None)
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
        return (
            asked is not None
            and asked["code_challenge_method"] == "S256"
            and asked["code_challenge"] == digest.rstrip("=")
            and asked["redirect_uri"] == form["redirect_uri"]
            and asked["resource"] == form["resource"] == self.url
        )


def app(**options: Any) -> App:
    return App(agents=[Signing], **options)


async def signing(one: Served) -> Signing:
    return await one.world.get_agent(Signing, "ann")


async def ready(one: Served) -> McpServer:
    while (server := await (await signing(one)).server()).status == "connecting":  # noqa: ASYNC110 - its clients are told, and here is none
        await asyncio.sleep(0.01)
    return server


def path_of(url: str) -> str:
    assert url.startswith(CALLBACK)
    return f"{PATH}?{urlsplit(url).query}"


async def test_a_user_signs_in_and_the_agent_uses_the_server() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signing(one)
        server = await agent.add(url)
        assert server.status == "signing_in"
        assert server.sign_in_url is not None
        asked = parse_qs(urlsplit(server.sign_in_url).query)
        assert asked["scope"] == ["pay offline_access"]
        assert asked["resource"] == [url]
        with pytest.raises(Unavailable, match="signing_in"):
            await agent.use()
        answer = await one.site.http(path_of(bank.allow(server.sign_in_url)))
        assert answer.status == 200
        assert "You can close this page" in answer.text
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert (await ready(one)).status == "ready"
        assert await agent.use() == "paid"
        assert bank.exchanged[0]["code"] == "code-1"


async def test_pages_that_may_act_see_where_to_sign_in_and_others_do_not() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        acting, watching = await one.join("/agents/signing/ann"), await one.join("/agents/signing/ann?watch=1")
        shown = [client.of_type("cf_agent_mcp_servers")[0]["mcp"]["servers"]["bank"] for client in (acting, watching)]
        assert [one["state"] for one in shown] == ["authenticating"] * 2
        assert [one["auth_url"] for one in shown] == [server.sign_in_url, None]


async def test_a_sign_in_survives_a_restart_between_each_two_steps() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        await one.world.crash()
        assert await (await signing(one)).server() == server
        assert await (await signing(one)).refresh() == server  # not invalidated by another attempt
        assert server.sign_in_url is not None
        await one.site.http(path_of(bank.allow(server.sign_in_url)))
        await one.world.crash()
        assert (await ready(one)).status == "ready"
        await one.world.crash()
        assert await (await signing(one)).use() == "paid"


@pytest.mark.slow
async def test_at_every_commit_a_crash_leaves_a_sign_in_that_can_be_ended_or_begun_again() -> None:
    nth, passed = 0, True
    while passed:
        nth += 1
        bank = Bank()
        async with served(app(), **LOCAL) as one, bank.serving() as url:
            server = await (await signing(one)).add(url)
            assert server.sign_in_url is not None
            back = path_of(bank.allow(server.sign_in_url))
            before = one.world.points.passed["committed"]
            one.world.crash_at("committed", nth)
            with contextlib.suppress(Unavailable, NotFound, Refused):
                await one.site.http(back)
                await ready(one)
            passed = one.world.points.passed["committed"] >= before + nth
            await one.world.crash()
            server = await ready(one)
            if server.status == "signing_in":
                assert server.sign_in_url is not None
                if "code-1" in bank.codes:
                    await one.site.http(back)
                else:
                    await one.site.http(path_of(bank.allow(server.sign_in_url)))
                server = await ready(one)
            assert server.status == "ready"
            assert await (await signing(one)).use() == "paid"
    assert nth > 3


@pytest.mark.parametrize(
    "query", ["state=guessed&code=x", "code=x", *slow(["", "state=&code=x", "error=access_denied"])]
)
async def test_a_forged_callback_changes_nothing(query: str) -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        answer = await one.site.http(f"{PATH}?{query}")
        assert answer.status == 400
        assert await (await signing(one)).server() == server
        assert bank.exchanged == []
        assert server.sign_in_url is not None
        await one.site.http(path_of(bank.allow(server.sign_in_url)))
        assert (await ready(one)).status == "ready"


async def test_the_answer_of_another_authorization_server_is_refused() -> None:
    bank = Bank()
    bank.says_issuer = True
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        assert server.sign_in_url is not None
        back = path_of(bank.allow(server.sign_in_url))
        for wrong in (back.partition("&iss=")[0], back.replace("&iss=http", "&iss=https")):
            assert (await one.site.http(wrong)).status == 400
        assert bank.exchanged == []
        await one.site.http(back)
        assert (await ready(one)).status == "ready"


async def test_a_sign_in_of_one_agent_does_not_end_at_another() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        eve = await one.world.get_agent(Signing, "eve")
        await eve.add(url)
        assert server.sign_in_url is not None
        back = bank.allow(server.sign_in_url)
        answer = await one.site.http(path_of(back).replace("/ann/", "/eve/"))
        assert answer.status == 400
        with pytest.raises(InvalidArguments):
            await eve.complete(back)
        assert (await eve.server()).status == "signing_in"


async def test_only_users_of_an_agent_reach_its_callback() -> None:
    bank = Bank()

    def authenticate(connection: Any) -> str | None:
        return connection.headers.get("x-user")

    guarded = app(authenticate=authenticate, authorize=lambda user, address, action: user == address.name)
    async with served(guarded, **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url, {"approvers": "owner"})
        assert server.sign_in_url is not None
        back = path_of(bank.allow(server.sign_in_url))
        assert (await one.site.http(back)).status == 401
        assert (await one.site.http(back, headers={"x-user": "eve"})).status in (403, 404)
        assert bank.exchanged == []
        assert (await one.site.http(back, headers={"x-user": "ann"})).status == 200


async def test_a_user_who_refuses_is_the_reason_that_is_shown() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        assert server.sign_in_url is not None
        state = parse_qs(urlsplit(server.sign_in_url).query)["state"][0]
        await one.site.http(f"{PATH}?state={state}&error=access_denied")
        server = await (await signing(one)).server()
        assert (server.status, server.error) == ("failed", "The sign-in was refused: access_denied")
        assert (await (await signing(one)).refresh()).status == "signing_in"


async def signed_in(one: Served, bank: Bank, url: str) -> Signing:
    agent = await signing(one)
    server = await agent.add(url)
    assert server.sign_in_url is not None
    await one.site.http(path_of(bank.allow(server.sign_in_url)))
    assert (await ready(one)).status == "ready"
    return agent


async def test_a_token_is_refreshed_before_its_end_and_when_it_is_refused() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signed_in(one, bank, url)
        await one.world.clock.advance(3590)
        assert await agent.use() == "paid"
        assert bank.exchanged[-1]["refresh_token"] == "refresh-1"
        bank.valid.clear()
        assert await asyncio.gather(*(agent.use() for _ in range(5))) == ["paid"] * 5
        assert [form["grant_type"] for form in bank.exchanged[2:]] == ["refresh_token"]


async def test_when_no_token_can_be_refreshed_the_user_signs_in_again() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signed_in(one, bank, url)
        bank.valid.clear()
        bank.refreshable.clear()
        with pytest.raises(Refused, match="needs a user to sign in"):
            await agent.use()
        server = await agent.server()
        assert server.status == "signing_in"
        assert server.sign_in_url is not None
        await one.site.http(path_of(bank.allow(server.sign_in_url)))
        await until(lambda: len(bank.exchanged) == 3)
        assert (await ready(one)).status == "ready"
        assert await agent.use() == "paid"


async def test_code_can_take_the_answer_at_a_page_of_its_own() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signing(one)
        server = await agent.add(url, {"redirect_url": "https://my.example.com/back", "client_id": "known"})
        assert server.sign_in_url is not None
        back = bank.allow(server.sign_in_url)
        assert back.startswith("https://my.example.com/back?")
        assert (await agent.complete(back)).status == "ready"
        assert bank.exchanged[0]["client_id"] == "known"
        with pytest.raises(InvalidArguments):
            await agent.complete(back)


async def test_a_client_that_code_has_named_is_not_sent_to_another_authorization_server() -> None:
    bank, thief = Bank(), Bank()
    known = {"client_id": "known", "client_secret": "very secret"}

    async def stolen(asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 200, {"resource": bank.url, "authorization_servers": [thief.origin]})

    async with served(app(), **LOCAL) as one, bank.serving() as url, thief.serving():
        agent = await signing(one)
        server = await agent.add(url, known)
        assert server.sign_in_url is not None
        await one.site.http(path_of(bank.allow(server.sign_in_url)))
        assert (await ready(one)).status == "ready"
        bank.valid.clear()
        bank.refreshable.clear()
        bank.raw["/.well-known/oauth-protected-resource/mcp"] = stolen
        server = await agent.refresh()
        assert (server.status, server.sign_in_url) == ("failed", None)
        assert "is not sent there" in (server.error or "")
        assert "very secret" not in repr(server)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"issuer": "https://other.example.com"}, "of another server"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "is not a URL"),
        ({"token_endpoint": 5}, "is not a URL"),
        ({"token_endpoint": "http://["}, "as expected"),
    ],
)
async def test_an_authorization_server_that_is_not_safe_is_not_used(wrong: dict[str, Any], why: str) -> None:
    bank = Bank()
    metadata = bank.metadata
    bank.metadata = lambda: {**metadata(), **wrong}
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        assert server.status == "failed"
        assert why in (server.error or "")


async def test_a_token_that_lasts_for_ever_counts_as_valid_for_years() -> None:
    bank = Bank()
    bank.lasts = 10**400  # no float can hold it
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        agent = await signed_in(one, bank, url)
        assert await agent.use() == "paid"


@pytest.mark.parametrize("missing", ["secret_keys", "public_url"])
async def test_without_its_settings_no_sign_in_begins(missing: str) -> None:
    bank = Bank()
    settings = {name: value for name, value in LOCAL.items() if name != missing}
    async with served(app(), **settings) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        assert server.status == "failed"
        assert "Settings(public_url=…)" in (server.error or "")


async def test_nothing_secret_of_a_sign_in_is_stored_as_it_is() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        await signed_in(one, bank, url)
        stored = b"".join(file.read_bytes() for file in one.world.data.rglob("*") if file.is_file())
        for secret in ("access-1", "refresh-1", "code-1", bank.exchanged[0]["code_verifier"]):
            assert secret.encode() not in stored


async def test_a_new_key_opens_what_an_older_one_has_sealed_and_no_other_does() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        await signed_in(one, bank, url)
        other = "another key for the secrets of a test, long"
        one.world.settings = replace(one.world.settings, secret_keys=(other, KEY))
        await one.world.restart()
        assert await (await signing(one)).use() == "paid"
        one.world.settings = replace(one.world.settings, secret_keys=(other,))
        await one.world.restart()
        with pytest.raises(Refused, match="secret_keys"):
            await (await signing(one)).use()


async def test_a_sign_in_that_no_key_opens_any_more_begins_again() -> None:
    bank = Bank()
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        before = await (await signing(one)).add(url)
        one.world.settings = replace(one.world.settings, secret_keys=("another key for the secrets of a test, long",))
        await one.world.restart()
        with pytest.raises(Unavailable, match="Its stored secrets cannot be opened"):
            await (await signing(one)).use()
        await (await signing(one)).drop()
        server = await (await signing(one)).add(url)
        assert server.status == "signing_in"
        assert server.sign_in_url != before.sign_in_url


@pytest.mark.parametrize("where", ["private", "redirect", "script"])
async def test_a_code_is_sent_to_no_other_host_than_the_authorization_server_of_its_sign_in(where: str) -> None:
    bank, inner = Bank(), RemoteServer()
    async with served(app(), **LOCAL) as one, bank.serving() as url, inner.serving():
        other = f"http://127.0.0.1:{inner.port}/token"

        async def elsewhere(asked: Asked, writer: asyncio.StreamWriter) -> None:
            respond(writer, 307, {}, location=other if where == "redirect" else "file:///etc/passwd")

        known = bank.metadata()
        if where == "private":
            known["token_endpoint"] = "http://169.254.169.254/token"
            bank.metadata = lambda: known
        else:
            bank.raw["/token"] = elsewhere
        server = await (await signing(one)).add(url)
        assert server.sign_in_url is not None
        await one.site.http(path_of(bank.allow(server.sign_in_url)))
        server = await ready(one)
        assert server.status == ("failed" if where == "private" else "signing_in")
        if where == "private":
            assert "a host of a private network" in (server.error or "")
        assert inner.seen == []
        assert bank.valid == set()


@pytest.mark.parametrize("token", ["a" * 40_000, "a\r\nb: c", 7])
async def test_a_token_that_cannot_be_a_header_begins_another_sign_in(token: Any) -> None:
    bank = Bank()

    async def given(asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 200, {"token_type": "Bearer", "access_token": token})

    bank.raw["/token"] = given
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        before = await (await signing(one)).add(url)
        assert before.sign_in_url is not None
        await one.site.http(path_of(bank.allow(before.sign_in_url)))
        server = await ready(one)
        assert server.status == "signing_in"
        assert server.sign_in_url != before.sign_in_url


async def test_a_client_whose_id_is_too_long_is_not_used() -> None:
    bank = Bank()

    async def register(asked: Asked, writer: asyncio.StreamWriter) -> None:
        respond(writer, 201, {"client_id": "c" * 5000})

    bank.raw["/register"] = register
    async with served(app(), **LOCAL) as one, bank.serving() as url:
        server = await (await signing(one)).add(url)
        assert server.status == "failed"
        assert "did not register a client" in (server.error or "")
