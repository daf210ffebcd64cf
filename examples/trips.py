"""A travel agent: a fiber with several steps that sleeps between them."""

import asyncio
import sys

# --8<-- [start:imports]
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sapwood import After, Agent, App, Retry, Settings, StepOptions, current_step_key
from sapwood.types import Fiber

# --8<-- [end:imports]

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Trip:
    city: str
    start: datetime


@dataclass(frozen=True)
class Flight:
    number: str
    arrival: datetime


async def pay_by_card(cents: int, *, idempotency_key: str) -> str:
    """Stand in for a bank that books a payment once per idempotency key."""
    await asyncio.sleep(0.01)
    return f"{cents} cents"


class Travel(Agent):
    migrations = ("CREATE TABLE done (what TEXT NOT NULL) STRICT",)

    async def plan(self, trip: Trip) -> str:
        self.start_fiber(trip.city, self.book_trip, trip)
        return await self.fibers.result(trip.city)

    # --8<-- [start:steps]
    async def book_trip(self, trip: Trip) -> str:
        flight = await self.step("flight", self.book_flight, trip)
        hotel = await self.step("hotel", self.book_hotel, trip.city, flight.arrival)
        paid = await self.step("pay", self.pay, 30_000)
        await self.sleep_until(trip.start - DAY)
        await self.step("remind", self.remind, trip.city)
        return f"{flight.number}, {hotel}, {paid}"

    # --8<-- [end:steps]
    async def book_flight(self, trip: Trip) -> Flight:
        await asyncio.sleep(0.01)  # stands in for an airline
        self._record(f"a flight to {trip.city}")
        return Flight("SW 12", trip.start + timedelta(hours=3))

    async def book_hotel(self, city: str, arrival: datetime) -> str:
        await asyncio.sleep(0.01)
        self._record(f"a bed in {city}")
        return f"Hotel {city}"

    # --8<-- [start:pay]
    async def pay(self, cents: int) -> str:
        return await pay_by_card(cents, idempotency_key=current_step_key())

    # --8<-- [end:pay]
    async def remind(self, city: str) -> None:
        self._record(f"tomorrow: {city}")

    def _record(self, text: str) -> None:
        self.sql("INSERT INTO done VALUES (?)", text)
        print(f"  {text}")

    async def done(self) -> list[str]:
        return [str(row["what"]) for row in self.sql("SELECT what FROM done")]

    # --8<-- [start:options]
    async def book_carefully(self, trip: Trip) -> Flight:
        five_times = Retry(max_attempts=5, max_delay=timedelta(seconds=30))
        options = StepOptions("flight", retry=five_times, timeout=timedelta(minutes=2))
        return await self.step(options, self.book_flight, trip)

    # --8<-- [end:options]
    # --8<-- [start:retry]
    async def ask(self, guest: str, question: str) -> None:
        second, minutes = timedelta(seconds=1), timedelta(minutes=10)
        patient = Retry(max_attempts=10, initial_delay=second, max_delay=minutes)
        self.queues[guest].with_retry(patient).add(self.send, guest, question)
        self.schedule(After(DAY, retry=patient), self.ask_again, guest)

    # --8<-- [end:retry]
    async def send(self, guest: str, text: str) -> None:
        self._record(f"to {guest}: {text}")

    async def ask_again(self, guest: str) -> None:
        self._record(f"to {guest}: well?")

    # --8<-- [start:recovered]
    async def on_fiber_recovered(self, fiber: Fiber) -> None:
        if datetime.now(UTC) - fiber.created_at > timedelta(days=365):
            self.fibers.cancel(fiber.id)  # too old

    # --8<-- [end:recovered]


async def main(data: str) -> None:
    async with App(agents=[Travel], settings=Settings(data=data)) as app:
        ann = await app.get_agent(Travel, "ann")
        soon = datetime.now(UTC) + DAY + timedelta(seconds=0.5)
        print("planning")
        print("planned:", await ann.plan(Trip("Oslo", soon)))
        before = len(await ann.done())
        await ann.ask("ann", "window or aisle?")
        while len(await ann.done()) == before:  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "trips-data"))
