"""Trips that are forked: a plan is tried on a copy, and the original stays as it is."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from sapwood import After, Agent, App, Settings
from sapwood.types import Fork, ForkOrigin


# --8<-- [start:agent]
class Traveller(Agent):
    migrations = ("CREATE TABLE places (name TEXT NOT NULL) STRICT",)

    async def see(self, place: str) -> None:
        self.sql("INSERT INTO places VALUES (?)", place)

    async def places(self) -> list[str]:
        return [
            str(row["name"])
            for row in self.sql("SELECT name FROM places ORDER BY rowid")
        ]

    async def end(self) -> None:
        await self.destroy()


class Trip(Agent[str]):
    """Its state is the address of a webhook."""

    initial_state = ""

    async def plan(self, traveller: str, place: str) -> None:
        await (await self.sub_agent(Traveller, traveller)).see(place)
        self.schedule(After(timedelta(days=7), key="remind"), self.remind, traveller)

    async def remind(self, traveller: str) -> None:
        self.broadcast(f"{traveller} leaves tomorrow.")

    async def seen_by(self, traveller: str) -> list[str]:
        return await (await self.sub_agent(Traveller, traveller)).places()

    async def end(self) -> None:
        await self.destroy()

    async def on_fork(self, source: ForkOrigin) -> None:
        self.set_state(f"https://travel.example/trips/{self.name}")


# --8<-- [end:agent]


# --8<-- [start:fork]
async def try_another_way(app: App) -> Fork:
    fork = await app.fork(Trip, "main", to="main~what-if")
    copy = await app.get_agent(Trip, fork.name)
    await copy.plan("ann", "Oslo")
    return fork
    # --8<-- [end:fork]


# --8<-- [start:subtree]
async def give_ann_a_trip_of_her_own(app: App) -> list[str]:
    await app.fork(Trip, "main", to="ann", sub=[(Traveller, "ann")])
    ann = await app.get_agent(Traveller, "ann")
    return await ann.places()
    # --8<-- [end:subtree]


# --8<-- [start:held]
class HeldTrip(Trip):
    async def release_all(self) -> int:
        """Make the schedules of a fork due again, each at its own time."""
        held = [
            letter.id for letter in self.dead_letters.list() if letter.code == "forked"
        ]
        return sum(self.dead_letters.replay(id) for id in held)
        # --8<-- [end:held]


# --8<-- [start:transfer]
async def move_to(app: App, other: App, file: Path) -> Fork:
    await app.export(Trip, "main", file)
    return await other.import_(file, as_name="main")
    # --8<-- [end:transfer]


# --8<-- [start:move]
async def confirm(app: App) -> list[str]:
    draft = await app.get_agent(Trip, "draft")
    await draft.plan("ben", "Bern")
    await app.move(Trip, "draft", to="confirmed")
    return await draft.seen_by("ben")  # the old name leads to the new one
    # --8<-- [end:move]


app = App(agents=[Trip, HeldTrip, Traveller])


async def main(data: str) -> None:
    app.configure(data=data)
    async with app:
        trip = await app.get_agent(Trip, "main")
        await trip.plan("ann", "Rome")
        fork = await try_another_way(app)
        copy = await app.get_agent(Trip, fork.name)
        print("the original:", await trip.seen_by("ann"))
        print("the fork:", await copy.seen_by("ann"))
        print("held in the fork:", fork.held.calls)
        await copy.end()
        print("ann:", await give_ann_a_trip_of_her_own(app))
        await (await app.get_agent(Traveller, "ann")).end()
        print("moved:", await confirm(app))
        await (await app.get_agent(Trip, "confirmed")).end()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Settings().data)))
