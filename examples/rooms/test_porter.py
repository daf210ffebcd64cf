"""Tests of access control: users try to open the inboxes and rooms of others."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jwt
import pytest
import uvicorn
from sapwood import App
from sapwood.testing import World, running
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from house import Inbox, Room
from porter import COOKIE, Porter, owns_inbox
from small_talk import SmallTalk

Result = tuple[int, Any]


class House:
    """The app behind a real server, and an HTTP client for it."""

    def __init__(self, world: World, porter: Porter, port: int) -> None:
        self.world, self.porter, self.port = world, porter, port

    async def ask(self, path: str, cookie: str = "", **request: Any) -> Result:
        """Send a request. Return the status and the body of the response."""
        return (await asyncio.to_thread(self._ask, path, cookie, **request))[:2]

    async def sign_in(self, name: str) -> str:
        """Sign in with this name, and return the cookie."""
        status, _, headers = await asyncio.to_thread(
            self._ask, "/session", "", data={"name": name}
        )
        assert status == 200
        return headers["set-cookie"].partition(";")[0]

    def _ask(
        self,
        path: str,
        cookie: str,
        *,
        data: Any = None,
        method: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any, dict[str, str]]:
        all_headers = {"cookie": cookie, "content-type": "application/json"}
        body = None if data is None else json.dumps(data).encode()
        request = Request(
            f"http://127.0.0.1:{self.port}{path}",
            body,
            all_headers | (headers or {}),
            method=method,
        )
        try:
            with urlopen(request, timeout=10) as response:
                text, status = response.read().decode(), response.status
                received = response.headers
        except HTTPError as error:
            with error:
                text, status = error.read().decode(), error.code
                received = error.headers
        is_json = "json" in (received["content-type"] or "")
        return status, json.loads(text) if is_json else text, dict(received.items())

    def open(self, path: str, cookie: str = "", **headers: str) -> connect:
        """Return a socket; open it with `async with`."""
        return connect(
            f"ws://127.0.0.1:{self.port}{path}",
            additional_headers={"cookie": cookie} | headers,
            proxy=None,
        )

    async def close_code(self, path: str, cookie: str = "", **headers: str) -> int:
        """Connect, and return the code with which the server rejects the socket."""
        async with self.open(path, cookie, **headers) as client:
            frames, code = await until_closed(client)
            assert frames == []
            return code


async def until_closed(client: ClientConnection) -> tuple[list[Any], int]:
    """Read a socket to its end. Return the frames and the close code."""
    frames: list[Any] = []
    async with asyncio.timeout(60):
        try:
            while True:
                frames.append(json.loads(await client.recv()))
        except ConnectionClosed:
            return frames, client.close_code or 0


@pytest.fixture
async def house() -> AsyncGenerator[House, None]:
    models = {Room: SmallTalk(pause=0)}
    porter = Porter()
    app = App(agents=[Inbox], authenticate=porter, authorize=owns_inbox)
    async with (
        running(app, models=models, slow_slices="allow") as world,
        serving(porter.wrap(world.app)) as port,
    ):
        yield House(world, porter, port)


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[int, None]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    server.should_exit = True
    await task
    listening.close()


async def test_the_cookie_is_hidden_from_scripts_and_other_sites(
    house: House,
) -> None:
    assert await house.ask("/session") == (200, {"user": None})
    status, body, headers = await asyncio.to_thread(
        house._ask, "/session", "", data={"name": " Ann "}
    )

    assert (status, body) == (200, {"user": "ann"})
    cookie = headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    mine = headers["set-cookie"].partition(";")[0]
    assert await house.ask("/session", mine) == (200, {"user": "ann"})


async def test_an_invalid_name_is_rejected(house: House) -> None:
    names = ("", "-", "ann/bob", "ann bob", "é", "a" * 33, None, 7, [], "%61nn")
    long = {"name": "ann", "more": "x" * 1000}
    for data in (*({"name": name} for name in names), [], "ann", {}, long):
        status, body = await house.ask("/session", data=data)
        assert (status, "1 to 32 letters" in body["error"]) == (400, True)


async def test_a_form_of_another_site_cannot_sign_in(house: House) -> None:
    plain = {"content-type": "text/plain"}
    assert (await house.ask("/session", data={"name": "eve"}, headers=plain))[0] == 400


async def test_cookies_are_valid_after_a_restart(house: House) -> None:
    cookie = await house.sign_in("ann")
    secret = house.world.data / "session-secret"
    assert secret.stat().st_mode & 0o077 == 0

    another = Porter()
    async with serving(another.wrap(house.world.app)) as port:
        again = House(house.world, another, port)
        assert await again.ask("/session", cookie) == (200, {"user": "ann"})


def signed(key: str, **claims: object) -> str:
    return f"{COOKIE}={jwt.encode(claims, key, algorithm='HS256')}"


async def test_forged_expired_and_missing_cookies_are_rejected(
    house: House,
) -> None:
    room = await room_of(house, "ann")
    good = await house.sign_in("ann")
    head, claims, signature = good.partition("=")[2].split(".")
    secret = (house.world.data / "session-secret").read_text()
    later = time.time() + 600
    for cookie in (
        "",
        f"{COOKIE}=",
        f"{COOKIE}=ann",
        f"{COOKIE}={head}.{claims}.",
        f"{COOKIE}={head}.{claims}.{signature[::-1]}",
        f"{COOKIE}={jwt.encode({'sub': 'ann', 'exp': later}, '', algorithm='none')}",
        signed("another secret, of the same length or more", sub="ann", exp=later),
        signed(secret, sub="ann", exp=time.time() - 1),
        signed(secret, sub="ann"),
        signed(secret, sub="", exp=later),
        signed(secret, exp=later),
    ):
        for path in urls("ann", room):
            assert (await house.ask(path, cookie))[0] == 401
        for path in sockets("ann", room):
            assert await house.close_code(path, cookie) == 4401
        assert await house.ask("/session", cookie) == (200, {"user": None})
    token = good.partition("=")[2]
    assert (await house.ask(f"/agents/inbox/ann/events?token={token}"))[0] == 401


async def test_users_cannot_open_the_inbox_or_the_rooms_of_others(
    house: House,
) -> None:
    mine, theirs = await room_of(house, "ann"), await room_of(house, "bob")
    ann = await house.sign_in("ann")
    for path in urls("bob", theirs):
        assert await house.ask(path, ann) == (403, "Forbidden")
    say = {"messages": [{"id": "m", "role": "user", "parts": []}]}
    there = f"/agents/inbox/bob/sub/room/{theirs}"
    assert await house.ask(f"{there}/chat", ann, data=say) == (403, "Forbidden")
    for path in sockets("bob", theirs):
        assert await house.close_code(path, ann) == 4403

    # Not through one's own inbox either, in any spelling of the URL.
    for url in (
        f"/agents/inbox/ann/sub/room/{theirs}",
        f"/agents/inbox/ann/sub/room/{mine}/sub/room/{theirs}",
        f"/agents/inbox/ann/sub/inbox/bob/sub/room/{theirs}",
        f"/agents/inbox/ann/sub/room/..%2F..%2F..%2Fbob%2Fsub%2Froom%2F{theirs}",
    ):
        assert (await house.ask(f"{url}/get-messages", ann))[0] == 404
        assert await house.close_code(url, ann) == 4404
    for url in (f"/agents/inbox/ann/../bob/sub/room/{theirs}",):
        assert (await house.ask(f"{url}/get-messages", ann))[0] == 404
    for name in ("%62ob", "Bob", "BOB", "bob%20", "bob%00", "..%2Fbob", "bob%2F"):
        url = f"/agents/inbox/{name}/sub/room/{theirs}/get-messages"
        assert (await house.ask(url, ann))[0] in (400, 403)
        assert await house.close_code(f"/agents/inbox/{name}", ann) in (4400, 4403)
    assert (await house.ask(f"/agents/room/{theirs}/get-messages", ann))[0] == 400
    assert await house.close_code(f"/agents/room/{theirs}", ann) == 4400

    bob = await house.world.get_agent(Inbox, "bob")
    assert [room.title for room in await bob.rooms()] == ["bob was here"]


async def test_a_room_that_the_inbox_did_not_create_does_not_exist(
    house: House,
) -> None:
    ann = await house.sign_in("ann")
    for name in ("x", "0" * 12, "%2E%2E", "a%2Fb", "r%00"):
        url = f"/agents/inbox/ann/sub/room/{name}"
        assert (await house.ask(f"{url}/get-messages", ann))[0] in (400, 404)
        assert (await house.ask(f"{url}/chat", ann, data={"messages": []}))[0] in (
            400,
            404,
        )
        assert await house.close_code(url, ann) in (4400, 4404)
    inbox = await house.world.get_agent(Inbox, "ann")
    assert not await inbox.rooms()


async def test_users_can_open_their_own_inbox_and_rooms(house: House) -> None:
    room, ann = await room_of(house, "ann"), await house.sign_in("ann")
    here = f"/agents/inbox/ann/sub/room/{room}"

    status, messages = await house.ask(f"{here}/get-messages", ann)

    assert (status, len(messages)) == (200, 2)
    async with house.open("/agents/inbox/ann", ann) as client:
        state = json.loads(await receive(client, "cf_agent_state"))["state"]
        assert [one["title"] for one in state["rooms"]] == ["ann was here"]
        await client.send('{"type":"cf_agent_state","state":{"rooms":[]}}')
        assert "readonly" in await receive(client, "cf_agent_state_error")
        for method in ("update", "rooms", "destroy", "sql"):
            call = {"type": "rpc", "id": method, "method": method, "args": []}
            await client.send(json.dumps(call))
            assert json.loads(await receive(client, "rpc"))["success"] is False


async def test_a_page_of_another_site_cannot_use_the_cookie(house: House) -> None:
    room, ann = await room_of(house, "ann"), await house.sign_in("ann")
    evil = {"origin": "https://evil.example"}
    here = f"/agents/inbox/ann/sub/room/{room}"

    assert await house.close_code(here, ann, **evil) == 4403
    say = {"messages": [{"id": "m", "role": "user", "parts": []}]}
    assert (await house.ask(f"{here}/chat", ann, data=say, headers=evil))[0] == 403


async def test_signing_out_disconnects_all_tabs(house: House) -> None:
    room = await room_of(house, "ann")
    ann, bob = await house.sign_in("ann"), await house.sign_in("bob")
    async with (
        house.open("/agents/inbox/ann", ann) as inbox,
        house.open(f"/agents/inbox/ann/sub/room/{room}", ann) as talk,
        house.open("/agents/inbox/bob", bob) as other,
    ):
        for client in (inbox, talk, other):
            await receive(client, "cf_agent_identity")

        answer = await house.ask("/session", ann, method="DELETE")

        assert answer == (200, {"user": None})
        assert [(await until_closed(one))[1] for one in (inbox, talk)] == [4401, 4401]
        await other.send('{"type":"rpc","id":"1","method":"create","args":[]}')
        assert json.loads(await receive(other, "rpc"))["success"]
    assert await house.ask("/session", method="DELETE") == (200, {"user": None})


async def test_signing_in_as_another_user_disconnects_the_old_one(
    house: House,
) -> None:
    ann = await house.sign_in("ann")
    async with house.open("/agents/inbox/ann", ann) as inbox:
        await receive(inbox, "cf_agent_identity")

        status, _ = await house.ask("/session", ann, data={"name": "bob"})

        assert (status, (await until_closed(inbox))[1]) == (200, 4401)


async def test_deleting_a_room_closes_its_sockets(house: House) -> None:
    room, ann = await room_of(house, "ann"), await house.sign_in("ann")
    here = f"/agents/inbox/ann/sub/room/{room}"
    async with house.open(here, ann) as client:
        await receive(client, "cf_agent_identity")

        await (await house.world.get_agent(Inbox, "ann")).delete(room)

        assert (await until_closed(client))[1] == 1001
    assert (await house.ask(f"{here}/get-messages", ann))[0] == 404
    assert await house.close_code(here, ann) == 4404


async def room_of(house: House, who: str) -> str:
    """Create a room, send a message to it, and return its name."""
    inbox = await house.world.get_agent(Inbox, who)
    name = await inbox.create()
    room = await house.world.get_agent(Inbox, who, sub=[(Room, name)])
    await room.send(f"{who} was here")
    return name


def urls(who: str, room: str) -> list[str]:
    """Return all HTTP URLs of an inbox and of a room in it."""
    inbox = f"/agents/inbox/{who}"
    here = f"{inbox}/sub/room/{room}"
    return [
        *(inbox, f"{inbox}/", f"{inbox}/events", f"{inbox}/events?depth=self"),
        *(here, f"{here}/get-messages", f"{here}/events", f"{here}/anything"),
        *(f"{here}/sub/room/x", f"{inbox}/sub/room/none", f"{inbox}/sub/unknown/x"),
    ]


def sockets(who: str, room: str) -> list[str]:
    inbox = f"/agents/inbox/{who}"
    return [inbox, f"{inbox}/sub/room/{room}", f"{inbox}/sub/room/none"]


async def receive(client: ClientConnection, type: str) -> str:
    """Read a socket up to the first frame of this type."""
    async with asyncio.timeout(60):
        while True:
            frame = str(await client.recv())
            if json.loads(frame)["type"] == type:
                return frame
