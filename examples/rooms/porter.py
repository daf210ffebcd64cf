"""The porter: knows everybody who lives here by a signed cookie.

Whoever asks at `/session` is told who they are (GET), signs in (POST) or out (DELETE).

This is a demo: the porter believes every name. In place of `sign_in`, have your
identity provider say who somebody is, and give them the same cookie; README.md tells
how.
"""

import os
import re
import secrets
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import jwt
from sapwood import App
from sapwood.auth import JwtAuth, User
from sapwood.types import Address
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

COOKIE = "rooms-session"
FLAGS: Any = {"httponly": True, "samesite": "strict"}
WEEK = 7 * 24 * 3600
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


# --8<-- [start:may]
def may(user: User, address: Address, action: str) -> bool:
    """Everybody may go to the inbox of their own name, and to no other."""
    return address.name == user.id


# --8<-- [end:may]
# --8<-- [start:around]
class Porter:
    """Signs people in and out, and knows them: `App(authenticate=porter)`."""

    app: App

    def around(self, app: App) -> Starlette:
        """Return what to serve: the app, and the porter beside it."""
        self.app = app
        return Starlette(
            routes=[
                Route("/session", self.tell, methods=["GET"]),
                Route("/session", self.sign_in, methods=["POST"]),
                Route("/session", self.sign_out, methods=["DELETE"]),
                Mount("/", app),
            ],
            lifespan=app.lifespan,
        )

    def __call__(self, request: HTTPConnection) -> User | None:
        return self._by_cookie(request)

    @cached_property
    def _by_cookie(self) -> JwtAuth:
        secret = self._secret
        return JwtAuth(secret, algorithms=["HS256"], cookie=COOKIE, query=None)

    # --8<-- [end:around]
    @cached_property
    def _secret(self) -> str:
        """The key of all cookies: `SECRET`, or one that is kept beside the data."""
        if given := os.environ.get("SECRET"):
            return given
        path = Path(self.app.settings.data) / "session-secret"
        if not path.exists():
            new = path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(secrets.token_hex(32))
            new.rename(path)  # whole, or not at all
        return path.read_text()

    # --8<-- [start:session]
    async def tell(self, request: Request) -> Response:
        """Say who is asking."""
        user = self(request)
        return answer({"user": user.id if user else None})

    async def sign_in(self, request: Request) -> Response:
        """Give a cookie to whoever says a name."""
        # A page of another site cannot send JSON, so it cannot sign anybody in here.
        is_ours = request.headers.get("content-type") == "application/json"
        is_short = 0 < int(request.headers.get("content-length", 0)) < 1000
        try:
            said = await request.json() if is_ours and is_short else {}
            name = said["name"].strip().lower()
        except (ValueError, LookupError, TypeError, AttributeError):
            name = ""
        if not NAME.fullmatch(name):
            text = "A name has 1 to 32 letters a to z, digits and hyphens."
            return answer({"error": text}, 400)
        claims = {"sub": name, "exp": int(time.time()) + WEEK}
        token = jwt.encode(claims, self._secret, algorithm="HS256")
        is_tls = request.url.scheme == "https"
        response = self._show_out(request, answer({"user": name}))
        response.set_cookie(COOKIE, token, WEEK, secure=is_tls, **FLAGS)
        return response

    async def sign_out(self, request: Request) -> Response:
        """Take the cookie back."""
        response = self._show_out(request, answer({"user": None}))
        response.delete_cookie(COOKIE, **FLAGS)
        return response

    def _show_out(self, request: Request, response: Response) -> Response:
        """Close what this browser has open, once it has got the response."""
        if user := self(request):
            # Not before: another tab would come back with the cookie it still has.
            response.background = BackgroundTask(self.app.disconnect, user)
        return response


# --8<-- [end:session]
def answer(content: object, status: int = 200) -> Response:
    return JSONResponse(content, status, {"cache-control": "no-store"})
