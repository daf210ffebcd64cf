"""A fare that an agent finds and code pays."""

import asyncio
import sys
from datetime import timedelta
from itertools import count

from sapwood import (
    Agent,
    App,
    ChatAgent,
    Retry,
    Settings,
    StepOptions,
    current_step_key,
    tool,
)
from sapwood.testing import ScriptedModel, call

MODEL = ScriptedModel(
    call("look_up", city="Oslo"), call("final_result", response=90), each=True
)
REQUESTS = count(1)


async def pay_by_card(euros: int, *, idempotency_key: str) -> str:
    """Stand in for a bank that does not respond to the first request."""
    print(f"pay {euros}")
    if next(REQUESTS) == 1:
        raise ConnectionError("The bank does not respond.")
    return f"{euros} euros are paid."


# --8<-- [start:agent]
class Finder(ChatAgent[int]):
    model = MODEL

    @tool
    async def look_up(self, city: str) -> int:
        """Return the fare to a city."""
        print(f"look up {city}")
        return 90


class Booking(Agent):
    async def book(self, wish: str) -> str:
        self.start_fiber("book", self.find_and_pay, wish)
        return await self.fibers.result("book")

    async def find_and_pay(self, wish: str) -> str:
        await self.checkpoint("finding")
        fare = await self.run_agent(Finder, wish)
        await self.checkpoint("paying")
        timeout, retry = timedelta(seconds=10), Retry(max_attempts=3)
        options = StepOptions("pay", timeout=timeout, retry=retry)
        return await self.step(options, self.pay, fare.output)

    async def pay(self, euros: int) -> str:
        return await pay_by_card(euros, idempotency_key=current_step_key())

    async def stage(self) -> str:
        fiber = self.fibers.get("book")
        return fiber.checkpoint if fiber else "not started"


# --8<-- [end:agent]
app = App(agents=[Booking])


# --8<-- [start:use]
async def main(data: str) -> None:
    async with App(agents=[Booking], settings=Settings(data=data)) as app:
        ann = await app.get_agent(Booking, "ann")
        print(await ann.book("To the north."))
        print("last stage:", await ann.stage())


# --8<-- [end:use]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "booking-data"))
