"""A diary for each member, with authentication by signed tokens."""

import asyncio
import socket
import sys
import time
from contextlib import asynccontextmanager
from urllib.error import HTTPError
from urllib.request import Request as Ask
from urllib.request import urlopen

import jwt
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sapwood import Agent, App, Settings
from sapwood.auth import JwtAuth, User
from sapwood.types import Address

SECRET = "keep this out of your repository: in a vault"  # noqa: S105 - made up


# --8<-- [start:agent]
class Diary(Agent):
    """The diary of one member, with the name of the member."""

    migrations = ("CREATE TABLE lines (text TEXT NOT NULL) STRICT",)

    async def on_request(self, request: Request) -> Response:
        if request.method == "POST":
            self.sql("INSERT INTO lines VALUES (?)", (await request.body()).decode())
        count = self.sql("SELECT count(*) FROM lines").scalar(int)
        return PlainTextResponse(f"{request.user.id} finds lines: {count}")


# --8<-- [end:agent]


# --8<-- [start:app]
def may_access(user: User, address: Address, action: str) -> bool:
    """Allow members to open their own diary, and helpers to open all."""
    return address.name == user.id or "helper" in user.claims.get("roles", [])


def make_app(folder: str) -> App:
    authenticate = JwtAuth(SECRET, algorithms=["HS256"], audience="diaries")
    return App(
        agents=[Diary],
        authenticate=authenticate,
        authorize=may_access,
        settings=Settings(data=folder),
    )


# --8<-- [end:app]


# --8<-- [start:token]
def token_for(user: str, **claims: object) -> str:
    return jwt.encode(
        {"sub": user, "aud": "diaries", "exp": time.time() + 600, **claims},
        SECRET,
        algorithm="HS256",
    )


# --8<-- [end:token]


def ask(url: str, token: str | None = None, entry: str | None = None) -> str:
    """Send one request."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(
            Ask(url, headers=headers, data=entry.encode() if entry else None)
        ) as response:
            return response.read().decode()
    except HTTPError as error:
        with error:
            return f"{error.code} {error.read().decode()}"


@asynccontextmanager
async def serving(app: App):
    """Serve the app on a free port during the block."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    await task
    listening.close()


async def main(folder: str) -> None:
    app = make_app(folder)
    async with app, serving(app) as site:
        diary = f"{site}{app.path_to(Diary, 'ann')}"
        for who, token, entry in [
            ("no token", None, None),
            ("ann", token_for("ann"), "It rained."),
            ("eve", token_for("eve"), None),
            ("a helper", token_for("otto", roles=["helper"]), None),
            ("ann, expired token", token_for("ann", exp=time.time() - 1), None),
        ]:
            print(f"{who}: {await asyncio.to_thread(ask, diary, token, entry)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
