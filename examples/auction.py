"""An auction that clients follow live, in a web application with other pages."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.request import urlopen

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from sapwood import (
    Agent,
    App,
    ChildFailed,
    Connection,
    Refused,
    Settings,
    current_connection,
    expose,
)
from sapwood.client import connect
from sapwood.types import PathSegment


@dataclass(frozen=True)
class Offer:
    amount: int = 0
    bidder: str = "none"
    note: str = ""


# --8<-- [start:lot]
class Lot(Agent[Offer]):
    """One item for sale. Its state is the highest offer, and all clients see it."""

    initial_state = Offer()

    @expose
    async def bid(self, amount: int) -> Offer:
        connection = current_connection()
        if amount <= self.state.amount:
            raise Refused(f"The highest offer is {self.state.amount}.")
        bidder = connection.query["name"] if connection else "the house"
        self.set_state(Offer(amount, bidder))
        return self.state

    # --8<-- [end:lot]
    # --8<-- [start:state]
    def is_readonly(self, connection: Connection) -> bool:
        return connection.query.get("name") != "auctioneer"

    def validate_state(self, state: Offer, source: Connection | None) -> None:
        if source is not None and state.amount != self.state.amount:
            raise Refused("Use bid() to change the amount.")

    async def on_state_changed(self, state: Offer, source: Connection | None) -> None:
        auction = await self.parent_agent(Auction)
        await auction.announce(f"{self.name}: {state.amount} by {state.bidder}")

    # --8<-- [end:state]


class Auction(Agent):
    """The root: it has the lots, and relays chat messages between its clients."""

    async def on_start(self) -> None:
        for name in ("chair", "clock"):
            await self.sub_agent(Lot, name)

    # --8<-- [start:request]
    async def on_request(self, request: Request) -> Response:
        if request.url.path == "/lots":
            return JSONResponse(await self.lots())
        return PlainTextResponse(f"Welcome to the auction {self.name}.")

    async def lots(self) -> list[str]:
        return [lot.name for lot in self.children.list(Lot)]

    # --8<-- [end:request]
    # --8<-- [start:messages]
    def connection_tags(self, connection: Connection) -> Sequence[str]:
        return ["staff"] if connection.query["name"] == "auctioneer" else []

    async def on_connect(self, connection: Connection) -> None:
        connection.send(f"Welcome, {connection.query['name']}.")

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        text = f"{connection.query['name']} says: {message}"
        self.broadcast(text, exclude=[connection])

    async def announce(self, text: str) -> None:
        for connection in self.connections.list(tag="staff"):
            connection.send(text)

    # --8<-- [end:messages]
    # --8<-- [start:hooks]
    async def on_before_connect(self, request: HTTPConnection) -> Response | None:
        return None if "name" in request.query_params else Response(status_code=403)

    async def on_before_sub_agent(
        self, request: HTTPConnection, child: PathSegment
    ) -> Response | None:
        return None if "name" in request.query_params else Response(status_code=403)

    # --8<-- [end:hooks]


# --8<-- [start:mount]
def make_site(agents: App) -> Starlette:
    async def front(request: Request) -> Response:
        auction = await agents.get_agent(Auction, "spring")
        return PlainTextResponse(f"lots in spring: {len(await auction.lots())}")

    return Starlette(
        routes=[Route("/", front), Mount("/agents", agents)],
        lifespan=agents.lifespan,
    )


# --8<-- [end:mount]


async def use(url: str) -> None:
    def read(path: str) -> str:
        with urlopen(url + path) as response:
            return response.read().decode()

    print(await asyncio.to_thread(read, "/"))
    print(await asyncio.to_thread(read, "/agents/auction/spring"))
    print(await asyncio.to_thread(read, "/agents/auction/spring/lots"))

    boss, ann = {"name": "auctioneer"}, {"name": "ann"}
    chair = [(Lot, "chair")]
    async with (
        connect(url, Auction, "spring", query=boss) as staff,
        connect(url, Auction, "spring", query=ann) as hall,
        connect(url, Auction, "spring", sub=chair, query=ann) as mine,
        connect(url, Auction, "spring", sub=chair, query=boss) as lot,
    ):
        to_staff, to_ann = staff.messages(), hall.messages()
        print(await anext(to_staff), await anext(to_ann))
        await hall.send("What a chair!")
        print(await anext(to_staff))

        offer = await mine.stub.bid(mine.state.amount + 10)
        print(await anext(to_staff))
        try:
            await mine.stub.bid(offer.amount)
        except ChildFailed as error:
            print("refused:", error)

        try:
            await mine.set_state(Offer(1, "ann"))
        except Refused as error:
            print("refused:", error)
        try:
            await lot.set_state(Offer(1, "ann"))
        except Refused as error:
            print("refused:", error)
        await lot.set_state(Offer(offer.amount, offer.bidder, "going twice"))
        async for state in mine.states():
            if state.note:
                print("ann sees:", state.amount, state.note)
                break

    try:
        async with connect(url, Auction, "spring"):
            pass
    except Refused:
        print("refused: a client without a name")


@asynccontextmanager
async def serving(site: Starlette) -> AsyncGenerator[str, None]:
    """Serve a site in this process, on a free port."""
    config = uvicorn.Config(site, port=0, ws="websockets-sansio", log_level="error")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await task


async def main(data: str) -> None:
    agents = App(agents=[Auction], settings=Settings(data=data))
    async with serving(make_site(agents)) as url:
        await use(url)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
