"""Webhooks: a shop receives the events of a payment provider."""

import asyncio
import hashlib
import hmac
import json
import socket
import sys
from contextlib import asynccontextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as Post
from urllib.request import urlopen

import uvicorn
from starlette.requests import Request
from starlette.responses import Response

from sapwood import Agent, App, Settings

SECRET = b"keep this out of your repository: in a vault"


def signature_of(body: bytes) -> str:
    return hmac.new(SECRET, body, hashlib.sha256).hexdigest()


# --8<-- [start:agent]
class Shop(Agent):
    migrations = (
        "CREATE TABLE events (id TEXT PRIMARY KEY) STRICT",
        "CREATE TABLE payments (order_id TEXT PRIMARY KEY, cents INTEGER) STRICT",
    )

    async def on_request(self, request: Request) -> Response:
        if request.method != "POST" or request.url.path != "/webhook":
            return Response(status_code=404)
        body = await request.body()
        signature = request.headers.get("x-signature", "")
        if not hmac.compare_digest(signature, signature_of(body)):
            return Response("Wrong signature.", status_code=401)
        event = json.loads(body)
        # No await from here: the event and its call are committed together.
        if self.sql("SELECT 1 FROM events WHERE id = ?", event["id"]).first() is None:
            self.sql("INSERT INTO events VALUES (?)", event["id"])
            self.enqueue(self.book, event)
        return Response(status_code=204)

    async def book(self, event: dict[str, Any]) -> None:
        """Book a payment. If it fails, it is retried, and then a dead letter."""
        order, cents = event["order"], event["cents"]
        self.sql("INSERT INTO payments VALUES (?, ?)", order, cents)

    # --8<-- [end:agent]

    async def count(self) -> int:
        return self.sql("SELECT count(*) FROM payments").scalar(int)


def deliver(url: str, event: dict[str, Any], signature: str | None = None) -> int:
    """Send an event as the provider does, and return the status."""
    body = json.dumps(event).encode()
    headers = {"x-signature": signature or signature_of(body)}
    try:
        with urlopen(Post(url, data=body, headers=headers)) as response:
            return response.status
    except HTTPError as error:
        with error:
            return error.code


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
    app = App(agents=[Shop], settings=Settings(data=folder))
    async with app, serving(app) as site:
        url = f"{site}{app.path_to(Shop, 'corner')}/webhook"
        event = {"id": "evt-1", "order": "A-99", "cents": 2500}
        print("forged:", await asyncio.to_thread(deliver, url, event, "0" * 64))
        print("received:", await asyncio.to_thread(deliver, url, event))
        print("repeated:", await asyncio.to_thread(deliver, url, event))
        shop = await app.get_agent(Shop, "corner")
        while await shop.count() == 0:  # noqa: ASYNC110 - in the queue
            await asyncio.sleep(0.01)
        print("payments:", await shop.count())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
