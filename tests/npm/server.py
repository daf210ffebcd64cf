"""The agents the npm clients talk to, on a real server. `worker.js` has the same ones.

    sapwood serve server.py:site --data DATA

What is in the folder `NPM_TEST_PAGES` is served as `/pages`, for the browser.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from sapwood import Agent, App, Connection, Refused, expose
from sapwood.types import PathSegment

START = {"count": 0}
REFUSED = {"forbidden": 403, "missing": 404, "broken": 500, "busy": 429, "down": 503}
"""Children whose parent does not let clients through, and with what status."""


class Common(Agent[Any]):
    """What all agents here have."""

    initial_state = START
    create_from_url = True

    def validate_state(self, state: Any, source: Connection | None) -> None:
        if isinstance(state, dict) and state.get("count") == -1:
            raise ValueError("count may not be negative")

    def is_readonly(self, connection: Connection) -> bool:
        return connection.query.get("mode") == "readonly"

    def send_protocol_frames(self, connection: Connection) -> bool:
        return connection.query.get("mode") != "plain"

    async def on_connect(self, connection: Connection) -> None:
        if connection.query.get("mode") == "fails":
            raise ValueError("not you")
        if connection.query.get("mode") == "closed":
            connection.send({"announced": "not you"})
            connection.close(4002, "not you")

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        if message == "fail":
            raise ValueError("not this")
        connection.send({"heard": message if isinstance(message, str) else {"bytes": list(message)}})

    async def on_request(self, request: Request) -> Response:
        body = (await request.body()).decode()
        path = request.scope["raw_path"].decode()
        return JSONResponse({"method": request.method, "path": path, "body": body, "name": self.name})

    async def on_before_connect(self, request: HTTPConnection) -> Response | None:
        return PlainTextResponse("closed", 403) if self.name == "closed" else None

    async def on_before_sub_agent(self, request: HTTPConnection, child: PathSegment) -> Response | None:
        status = REFUSED.get(child.name)
        return PlainTextResponse("no", status) if status else None

    @expose
    async def add(self, a: float, b: float) -> float:
        return a + b

    @expose
    async def nothing(self) -> None:
        pass

    @expose
    async def echo(self, *values: Any) -> list[Any]:
        return list(values)

    @expose
    async def boom(self) -> None:
        raise Refused("boom!")

    @expose
    async def unserializable(self) -> Any:
        return Common.hidden

    async def hidden(self) -> str:
        return "not for clients"

    @expose
    async def numbers(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    @expose
    async def broken_numbers(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number
        raise Refused("out of numbers")

    @expose
    async def bump(self) -> int:
        self.set_state({"count": self.state["count"] + 1})
        return self.state["count"]

    @expose
    async def announce(self, what: Any) -> None:
        self.broadcast({"announced": what})

    @expose
    async def kick(self, code: int, reason: str) -> None:
        for connection in self.connections.list():
            connection.close(code, reason)

    @expose
    async def path(self) -> list[str]:
        return [step.name for step in self.address.segments]

    @expose
    async def end(self) -> str:
        await self.destroy()
        return "destroyed"

    @expose
    async def drop(self, name: str) -> None:
        await self.children.delete(Desk, name)


class Room(Common):
    pass


class Desk(Common):
    pass


class Reporter(Common):
    pass


class Source(Common):
    pass


class Plain(Agent):
    """Has no state."""

    @expose
    async def add(self, a: float, b: float) -> float:
        return a + b


class Silent(Agent[Any]):
    """Does not say who it is."""

    initial_state = START
    send_identity = False


app = App(agents=[Room, Plain, Silent])
pages = StaticFiles(directory=os.environ.get("NPM_TEST_PAGES", "."), check_dir=False)
site = Starlette(routes=[Mount("/pages", pages), Mount("/", app)], lifespan=app.lifespan)
