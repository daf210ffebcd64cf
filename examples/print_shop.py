"""An agent that uses a job server of a print shop through its own transport."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sapwood import Agent, App, RemoteSubAgent, Run, Settings, Unavailable
from sapwood.errors import RemoteLost, RemoteRefused
from sapwood.remote import (
    Chunk,
    End,
    Heartbeat,
    Position,
    RemoteEvent,
    RemoteStatus,
)

LISTENING = socket.create_server(("127.0.0.1", 0))
SHOP = f"http://127.0.0.1:{LISTENING.getsockname()[1]}"


# The job server: it does not use sapwood, and keeps its jobs in memory.
jobs: dict[str, dict[str, Any]] = {}


async def job(request: Request) -> JSONResponse:
    id = request.path_params["id"]
    if request.method == "PUT" and id not in jobs:
        pages = (await request.json())["pages"]
        if pages > 100:
            return JSONResponse({"error": "At most 100 pages."}, 422)
        jobs[id] = {"state": "printing", "pages": pages, "printed": 0}
    elif request.method == "DELETE":
        jobs.setdefault(id, {"pages": 0, "printed": 0})["state"] = "stopped"
    if id not in jobs:
        return JSONResponse({"error": f"There is no job {id}."}, 404)
    print_a_page(jobs[id])
    return JSONResponse(jobs[id])


def print_a_page(one: dict[str, Any]) -> None:
    if one["state"] == "printing":
        one["printed"] = min(one["printed"] + 1, one["pages"])
        if one["printed"] == one["pages"]:
            one["state"] = "done"


shop = Starlette(routes=[Route("/jobs/{id}", job, methods=["GET", "PUT", "DELETE"])])


# --8<-- [start:transport]
class ShopTransport:
    """Maps runs to the job server: a session is a job, a page is a chunk."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def start(self, session: str, input: Any) -> RemoteStatus:
        return await self._ask("PUT", session, json=input)  # the id makes it idempotent

    async def status(self, session: str) -> RemoteStatus:
        return await self._ask("GET", session)

    async def cancel(self, session: str, reason: str) -> RemoteStatus:
        return await self._ask("DELETE", session)

    async def stream(
        self, session: str, after: Position
    ) -> AsyncIterator[list[RemoteEvent]]:
        seq = after.seq
        while True:
            now = await self._ask("GET", session)
            pages = range(seq + 1, now.seq + 1)
            yield [Heartbeat(), *(Chunk(page, page_chunk(page)) for page in pages)]
            seq = now.seq
            if now.is_over:
                yield [End(now)]
                return
            await asyncio.sleep(0.01)

    async def _ask(self, method: str, session: str, **more: Any) -> RemoteStatus:
        with retryable():
            response = await self._client.request(method, f"/jobs/{session}", **more)
        if response.status_code == httpx2.codes.NOT_FOUND:
            raise RemoteLost(f"The print shop does not know the job {session}.")
        if response.is_server_error:
            raise Unavailable(f"The print shop responded with {response.status_code}.")
        if response.is_client_error:
            raise RemoteRefused(response.json()["error"])
        return status_of(response.json())


# --8<-- [end:transport]


@contextmanager
def retryable() -> Generator[None, None, None]:
    try:
        yield
    except httpx2.TransportError as error:
        raise Unavailable(f"The print shop is unreachable: {error}") from error


def page_chunk(page: int) -> dict[str, Any]:
    return {"type": "data-page", "data": {"page": page}}


def status_of(one: dict[str, Any]) -> RemoteStatus:
    if one["state"] == "done":
        return RemoteStatus("completed", one["printed"], output=one["printed"])
    if one["state"] == "stopped":
        return RemoteStatus("cancelled", one["printed"], reason="stopped")
    return RemoteStatus("running", one["printed"])


@dataclass(frozen=True)
class Clients:
    shop: httpx2.AsyncClient


# --8<-- [start:agent]
class PrintShop(RemoteSubAgent):
    """Prints pages."""

    url = "print-shop"
    deps: Clients

    def transport(self) -> ShopTransport:
        return ShopTransport(self.deps.shop)


class Office(Agent):
    async def print_all(self, *pages: int) -> list[Run]:
        return await self.runs.map(PrintShop, [{"pages": one} for one in pages])


# --8<-- [end:agent]


@asynccontextmanager
async def serving() -> AsyncGenerator[None, None]:
    """Serve the print shop in this process. In reality it is another server."""
    server = uvicorn.Server(uvicorn.Config(shop, log_level="error"))
    task = asyncio.create_task(server.serve(sockets=[LISTENING]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    yield
    server.should_exit = True
    await task


async def main(data: str) -> None:
    async with serving(), httpx2.AsyncClient(base_url=SHOP) as client:
        office = App(
            agents=[Office], deps=Clients(client), settings=Settings(data=data)
        )
        async with office as app:
            main_office = await app.get_agent(Office, "main")
            for run in await main_office.print_all(3, 40, 1000):
                print(f"{run.status}: {run.output if run.ok else run.error}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
