"""The porter: authenticates users by a signed cookie.

`/session` returns the current user (GET), signs in (POST) and signs out (DELETE).

This is a demo: the porter accepts every name. In production, let your identity provider
authenticate the user, and set the same cookie. README.md explains how.
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
def owns_inbox(user: User, address: Address, action: str) -> bool:
    """Allow users to open only the inbox with their own name."""
    return address.name == user.id


# --8<-- [end:may]
# --8<-- [start:around]
class Porter:
    """Signs users in and out, and authenticates them: `App(authenticate=porter)`."""

    app: App

    def wrap(self, app: App) -> Starlette:
        """Return the app with the routes of the porter."""
        self.app = app
        return Starlette(
            routes=[
                Route("/session", self.session, methods=["GET"]),
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
        """The key that signs the cookies: `SECRET`, or a file in the data folder."""
        if secret := os.environ.get("SECRET"):
            return secret
        path = Path(self.app.settings.data) / "session-secret"
        if not path.exists():
            new = path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(secrets.token_hex(32))
            new.rename(path)  # atomic: never a partial file
        return path.read_text()

    # --8<-- [start:session]
    async def session(self, request: Request) -> Response:
        """Return the user of the request."""
        user = self(request)
        return json_response({"user": user.id if user else None})

    async def sign_in(self, request: Request) -> Response:
        """Set a cookie for the name in the request."""
        # A form of another site cannot send JSON, so it cannot sign users in here.
        is_json = request.headers.get("content-type") == "application/json"
        is_short = 0 < int(request.headers.get("content-length", 0)) < 1000
        try:
            body = await request.json() if is_json and is_short else {}
            name = body["name"].strip().lower()
        except (ValueError, LookupError, TypeError, AttributeError):
            name = ""
        if not NAME.fullmatch(name):
            text = "A name has 1 to 32 letters a to z, digits and hyphens."
            return json_response({"error": text}, 400)
        claims = {"sub": name, "exp": int(time.time()) + WEEK}
        token = jwt.encode(claims, self._secret, algorithm="HS256")
        is_tls = request.url.scheme == "https"
        response = self._disconnect(request, json_response({"user": name}))
        response.set_cookie(COOKIE, token, WEEK, secure=is_tls, **FLAGS)
        return response

    async def sign_out(self, request: Request) -> Response:
        """Delete the cookie."""
        response = self._disconnect(request, json_response({"user": None}))
        response.delete_cookie(COOKIE, **FLAGS)
        return response

    def _disconnect(self, request: Request, response: Response) -> Response:
        """Close the sockets of the user after the response is sent."""
        if user := self(request):
            # Not earlier: another tab would reconnect with the old cookie.
            response.background = BackgroundTask(self.app.disconnect, user)
        return response


# --8<-- [end:session]
def json_response(content: object, status: int = 200) -> Response:
    return JSONResponse(content, status, {"cache-control": "no-store"})
