"""A shopping list on a server, and clients that use it over the network."""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn

from sapwood import (
    Agent,
    App,
    ChildFailed,
    Connection,
    NotFound,
    Refused,
    Settings,
    expose,
)
from sapwood.client import connect


# --8<-- [start:agents]
@dataclass(frozen=True)
class Items:
    names: tuple[str, ...] = ()


class Receipt(Agent):
    @expose
    async def total(self) -> int:
        return 42


class ShoppingList(Agent[Items]):
    initial_state = Items()

    @expose
    async def add(self, name: str, amount: int = 1) -> int:
        if amount < 1:
            raise Refused("The minimum is one.")
        self.set_state(Items((*self.state.names, name)))
        return len(self.state.names)

    @expose
    async def lines(self) -> AsyncIterator[str]:
        for number, name in enumerate(self.state.names, start=1):
            yield f"{number}. {name}"

    @expose
    async def pay(self, shop: str) -> None:
        await self.sub_agent(Receipt, shop)

    async def on_message(self, connection: Connection, message: str | bytes) -> None:
        self.broadcast(message, exclude=[connection])


# --8<-- [end:agents]


async def use(url: str) -> None:
    # --8<-- [start:call]
    async with connect(url, ShoppingList, "home") as home:
        print("items:", await home.stub.add("milk"))
        async for line in home.stub.lines():
            print(line)
    # --8<-- [end:call]

    # --8<-- [start:errors]
    async with connect(url, ShoppingList, "home") as home:
        try:
            await home.stub.add("bread", amount=0)
        except ChildFailed as error:
            print("the agent says:", error)
    # --8<-- [end:errors]

    # --8<-- [start:state]
    async with (
        connect(url, ShoppingList, "home") as mine,
        connect(url, ShoppingList, "home") as yours,
    ):
        new = Items(("milk", "eggs"))
        await mine.set_state(new)
        async for items in yours.states():
            if items == new:
                print("state at the other:", items)
                break
        # --8<-- [end:state]
        # --8<-- [start:messages]
        await mine.send("I am at the shop.")
        async for message in yours.messages():
            print("message at the other:", message)
            break
    # --8<-- [end:messages]

    # --8<-- [start:child]
    try:
        async with connect(
            url, ShoppingList, "home", sub=[(Receipt, "corner shop")]
        ) as receipt:
            print("total:", await receipt.stub.total())
    except NotFound:
        print("not paid yet")
    # --8<-- [end:child]
    async with connect(url, ShoppingList, "home") as home:
        await home.stub.pay("corner shop")


@asynccontextmanager
async def serving(app: App) -> AsyncGenerator[str, None]:
    """Serve the app in this process, on a free port."""
    config = uvicorn.Config(app, port=0, ws="websockets-sansio", log_level="error")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await task


async def main(data: str) -> None:
    app = App(agents=[ShoppingList], settings=Settings(data=data))
    async with serving(app) as url:
        await use(url)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
