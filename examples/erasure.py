"""Erasure: a customer with all that is known of them, and a signed receipt."""

import asyncio
import sys

from sapwood import Agent, App, Settings
from sapwood.types import ErasureReceipt


class Notes(Agent):
    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def add(self, text: str) -> int:
        self.sql("INSERT INTO notes VALUES (?)", text)
        return self.sql("SELECT count(*) FROM notes").scalar(int)


class Customer(Agent):
    async def note(self, topic: str, text: str) -> int:
        notes = await self.sub_agent(Notes, topic)
        return await notes.add(text)


app = App(agents=[Customer])


async def main(data: str) -> None:
    app.configure(data=data)
    async with app:
        ann = await app.get_agent(Customer, "ann")
        await ann.note("health", "is allergic to nuts")
        print("notes:", await ann.note("orders", "likes tea"))

        # --8<-- [start:subtree]
        receipt = await app.erase(
            Customer, "ann", sub=[(Notes, "health")], by="ann herself"
        )
        # --8<-- [end:subtree]
        print("agents:", receipt.agents, "of a subtree:", receipt.is_subtree)
        print("notes:", await ann.note("orders", "likes coffee"))

        # --8<-- [start:tree]
        receipt = await app.erase(Customer, "ann", by="ticket 4711")
        text = receipt.json()  # hand it out, and keep it
        # --8<-- [end:tree]

    # --8<-- [start:verify]
    found = ErasureReceipt.verify(text, fingerprint=receipt.fingerprint)
    print("about ann:", found.is_about("Customer:ann"), "remains:", found.remains)
    # --8<-- [end:verify]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Settings().data)))
