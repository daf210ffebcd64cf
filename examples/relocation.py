"""A root moves to another server, which continues its work."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sapwood import Agent, App, Settings, expose
from sapwood.client import connect
from sapwood.errors import MovedAway


class Trip(Agent):
    migrations = ("CREATE TABLE stops (place TEXT NOT NULL) STRICT",)

    @expose
    async def add(self, place: str) -> None:
        self.sql("INSERT INTO stops VALUES (?)", place)

    @expose
    async def stops(self) -> list[str]:
        return [
            str(row["place"])
            for row in self.sql("SELECT place FROM stops ORDER BY rowid")
        ]


# --8<-- [start:move]
async def relocate(app: App, server: str, token: str) -> str:
    trip = await app.get_agent(Trip, "confirmed")
    await app.move(Trip, "confirmed", to=server, token=token)
    try:
        await trip.add("Rome")
    except MovedAway as moved:
        return moved.url  # such as https://other.example/agents/trip/confirmed
    raise AssertionError("The agent is still here.")


# --8<-- [end:move]


@contextmanager
def other_server(data: Path) -> Iterator[tuple[str, str]]:
    """Start a server on another data folder; yield its URL, and its token."""
    operator = data / "operator.json"
    operator.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "sapwood",
        "serve",
        f"{Path(__file__).resolve()}:app",
    ]
    process = subprocess.Popen(
        [*command, "--data", str(data), "--port", "0", "--log-level", "error"]
    )
    try:
        while not operator.exists():
            time.sleep(0.05)
        found = json.loads(operator.read_text())
        yield found["url"], found["token"]
    finally:
        process.terminate()
        process.wait()


async def main(data: Path) -> None:
    with other_server(data / "there") as (url, token):
        async with App(
            agents=[Trip], settings=Settings(data=str(data / "here"))
        ) as here:
            try:
                trip = await here.get_agent(Trip, "confirmed")
            except MovedAway:
                print("It has moved already.")
                return
            await trip.add("Bern")
            print((await relocate(here, url, token)).removeprefix(url))
        async with connect(url, Trip, "confirmed") as there:
            print(await there.stub.stops())


app = App(agents=[Trip])

if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data")))
