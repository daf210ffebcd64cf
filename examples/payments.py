"""A shop whose payments are retried, but booked once."""

import asyncio
import sys
from datetime import timedelta

from sapwood import Agent, App, Breaker, Retry, Settings, Unavailable, with_options
from sapwood.errors import CircuitOpen, KeyReused


class Ledger(Agent):
    """Books payments. The bank behind it is sometimes unavailable."""

    migrations = ("CREATE TABLE payments (order_id TEXT, cents INTEGER) STRICT",)
    outages = 0

    async def pay(self, order_id: str, cents: int) -> int:
        if Ledger.outages > 0:
            Ledger.outages -= 1
            raise Unavailable("The bank does not respond.")
        self.sql("INSERT INTO payments VALUES (?, ?)", order_id, cents)
        return self.sql("SELECT count(*) FROM payments").scalar(int)

    async def total(self) -> int:
        return self.sql("SELECT coalesce(sum(cents), 0) FROM payments").scalar(int)


class Shop(Agent):
    # --8<-- [start:key]
    async def check_out(self, order_id: str, cents: int) -> int:
        ledger = await self.sub_agent(Ledger, "main")
        safe = with_options(
            ledger,
            timeout=10,
            retry=Retry(max_attempts=5, initial_delay=timedelta(milliseconds=10)),
            idempotency_key=order_id,
        )
        return await safe.pay(order_id, cents)

    # --8<-- [end:key]
    # --8<-- [start:fiber]
    async def order(self, order_id: str, cents: int) -> None:
        self.start_fiber(order_id, self.check_out, order_id, cents)

    # --8<-- [end:fiber]
    # --8<-- [start:breaker]
    async def try_to_pay(self, order_id: str, cents: int) -> str:
        ledger = await self.sub_agent(Ledger, "main")
        guarded = with_options(ledger, breaker=Breaker(failures=3, reset_after=30))
        try:
            return f"payment {await guarded.pay(order_id, cents)}"
        except CircuitOpen as error:
            return f"{error.code}, retry after {error.retry_after:.0f} s"
        except Unavailable as error:
            return str(error)

    # --8<-- [end:breaker]
    async def total(self) -> int:
        return await (await self.sub_agent(Ledger, "main")).total()


async def main(data: str) -> None:
    async with App(agents=[Shop], settings=Settings(data=data)) as app:
        shop = await app.get_agent(Shop, "corner")
        Ledger.outages = 2
        print("order 17 is payment", await shop.check_out("17", 500))
        print("order 17 is payment", await shop.check_out("17", 500))
        print("cents in the ledger:", await shop.total())
        # --8<-- [start:reused]
        try:
            await shop.check_out("17", 900)
        except KeyReused as error:
            print(f"{error.code}: {error}")
        # --8<-- [end:reused]
        Ledger.outages = 3
        for number in range(4):
            print(f"attempt {number + 1}:", await shop.try_to_pay("18", 100))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "payments-data"))
