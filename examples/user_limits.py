"""Limits for each user: what one user does in all conversations counts together."""

import asyncio
import sys

import httpx2
from pydantic_ai import ModelSettings
from starlette.requests import HTTPConnection

from sapwood import App, ChatAgent, Limits, Per, Settings
from sapwood.testing import ScriptedModel, text

PAYING = {"ann"}


class Assistant(ChatAgent):
    model_settings = ModelSettings(max_tokens=100)
    model = ScriptedModel(text("Here is an idea."))


def user_of(request: HTTPConnection) -> str | None:
    """Return the user. A real app checks a token here."""
    return request.headers.get("x-user")


# --8<-- [start:limits]
def limits_of(user: str) -> Limits | None:
    if user in PAYING:
        return None
    return Limits(tokens=Per("day", 300), dollars=Per("month", 1))


def make_app(data: str) -> App:
    return App(
        agents=[Assistant],
        authenticate=user_of,
        user_limits=limits_of,
        # --8<-- [end:limits]
        settings=Settings(data=data, prices={"scripted": (3.0, 15.0)}),
    )


async def say(http: httpx2.AsyncClient, user: str, conversation: str) -> str:
    """Send a message, as a page does, and return how the answer ends."""
    part = {"type": "text", "text": "Give me an idea!"}
    reply = await http.post(
        f"/agents/assistant/{user}-{conversation}/chat",
        headers={"x-user": user},
        json={"messages": [{"role": "user", "parts": [part]}]},
    )
    ended = "for the user" if "for the user" in reply.text else "an answer"
    return f"{user} in {conversation}: {ended}"


async def main(data: str) -> None:
    app = make_app(data)
    transport = httpx2.ASGITransport(app)
    async with (
        app,
        httpx2.AsyncClient(transport=transport, base_url="http://app") as http,
    ):
        for user in ("ann", "bob"):
            for conversation in ("work", "home", "garden", "games"):
                print(await say(http, user, conversation))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
