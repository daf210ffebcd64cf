"""A bank with many failures: what is raised, what is caught, and what is stored."""

import asyncio
import sys

from sapwood import (
    Agent,
    App,
    ChildFailed,
    NotFound,
    Refused,
    Settings,
    TimedOut,
    deadline,
)
from sapwood.errors import Crashed


class NotEnough(Exception):
    """A custom exception with a field."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} cents are missing.")
        self.missing = missing


class Account(Agent):
    migrations = ("CREATE TABLE entries (cents INTEGER NOT NULL) STRICT",)

    async def book(self, cents: int) -> int:
        self.sql("INSERT INTO entries VALUES (?)", cents)
        return self._balance()

    # --8<-- [start:stays]
    async def spend_carelessly(self, cents: int) -> int:
        self.sql("INSERT INTO entries VALUES (?)", -cents)
        return self._check_balance()  # raises, but the entry is stored

    async def spend(self, cents: int) -> int:
        with self.transaction():
            self.sql("INSERT INTO entries VALUES (?)", -cents)
            return self._check_balance()  # raises, and the entry is rolled back

    # --8<-- [end:stays]
    def _balance(self) -> int:
        return self.sql("SELECT coalesce(sum(cents), 0) FROM entries").scalar(int)

    def _check_balance(self) -> int:
        balance = self._balance()
        if balance < 0:
            raise NotEnough(-balance)
        return balance

    # --8<-- [start:slow]
    async def audit(self) -> str:
        try:
            await asyncio.sleep(3600)  # stands in for a service that does not respond
        finally:
            print("  (the audit is closed)")  # runs on cancellation, too
        return "all is well"

    # --8<-- [end:slow]


# --8<-- [start:start]
class Safe(Agent):
    async def on_start(self) -> None:
        raise ConnectionError("the key is missing")

    async def open(self) -> str:
        return "gold"


# --8<-- [end:start]
class Bank(Agent):
    async def deposit(self, owner: str, cents: int) -> int:
        account = await self.sub_agent(Account, owner)
        return await account.book(cents)

    # --8<-- [start:catch]
    async def pay(self, owner: str, cents: int) -> str:
        account = await self.sub_agent(Account, owner)
        try:
            return f"paid, {await account.spend(cents)} left"
        except NotEnough as error:
            return f"not paid: {error.missing} cents short"

    # --8<-- [end:catch]
    # --8<-- [start:transfer]
    async def transfer(self, source: str, target: str, cents: int) -> None:
        payer = await self.sub_agent(Account, source)
        await payer.spend(cents)
        try:
            payee = await self.get_agent(Bank, self.name, sub=[(Account, target)])
            await payee.book(cents)
        except ChildFailed:
            await payer.book(cents)  # two databases: only this code can undo it
            raise

    # --8<-- [end:transfer]
    # --8<-- [start:deadline]
    async def audit(self, owner: str) -> str:
        account = await self.sub_agent(Account, owner)
        try:
            with deadline(0.05):
                return await account.audit()
        except TimedOut as error:
            return f"{error} (retryable: {error.retryable})"

    # --8<-- [end:deadline]
    async def unlock(self) -> str:
        safe = await self.sub_agent(Safe, "cellar")
        return await safe.open()

    async def child_names(self) -> list[str]:
        return [child.name for child in self.children.list()]


async def main(data: str) -> None:
    async with App(agents=[Bank], settings=Settings(data=data)) as app:
        bank = await app.get_agent(Bank, "village")
        print("a deposit:", await bank.deposit("ada", 500))
        print("ada pays:", await bank.pay("ada", 200))
        print("ada pays:", await bank.pay("ada", 900))

        ada = await app.get_agent(Bank, "village", sub=[(Account, "ada")])
        # --8<-- [start:crashed]
        try:
            await ada.spend(900)
        except Crashed as error:
            print(f"from {error.path[-1][1]}: {error}")
            print("the same error is a NotEnough:", isinstance(error, NotEnough))
        # --8<-- [end:crashed]
        for spend in (ada.spend, ada.spend_carelessly):
            try:
                await spend(900)
            except NotEnough:
                print(f"after {spend.__name__}:", await ada.book(0))
        await ada.book(900)

        # --8<-- [start:refused]
        try:
            await ada.spend("a fortune")  # type: ignore[arg-type]
        except Refused as error:
            print(f"{error.code}: {error}")
        # --8<-- [end:refused]
        try:
            await bank.transfer("ada", "eve", 100)
        except NotFound as error:
            print(f"{error.code}: {error}")
        print("after the transfer:", await ada.book(0))

        print(await bank.audit("ada"))

        try:
            await bank.unlock()
        except ConnectionError as error:
            print(f"no safe: {error}")
        print("children:", await bank.child_names())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "bank-data"))
