"""A database that is accessible only through methods, not with SQL of other agents.

Use it if a model may write SQL, but must not see all data: give it an agent whose
database has only the data that it may see. The rest stays behind methods.
"""

import asyncio
import sys
from dataclasses import dataclass

from sapwood import Agent, App, Settings
from sapwood.errors import UsageError


@dataclass(frozen=True)
class Customer:
    name: str
    city: str


# --8<-- [start:vault]
class CustomerDatabase(Agent):
    """Holds customers with their card numbers. No method returns a number."""

    migrations = (
        """
        CREATE TABLE customers (
            name TEXT PRIMARY KEY,
            city TEXT NOT NULL,
            card TEXT NOT NULL
        ) STRICT;
        INSERT INTO customers VALUES
            ('Ada', 'London', '4000 1111'),
            ('Emil', 'Berlin', '4000 2222');
        """,
    )

    async def in_city(self, city: str) -> list[Customer]:
        return self.sql("SELECT name, city FROM customers WHERE city = ?", city).into(
            Customer
        )

    async def pays_with(self, name: str, last_digits: str) -> bool:
        card = self.sql("SELECT card FROM customers WHERE name = ?", name).scalar(str)
        return card.endswith(last_digits)


class Assistant(Agent):
    """Serves clients. Its own database contains only its notes."""

    migrations = ("CREATE TABLE notes (text TEXT NOT NULL) STRICT",)

    async def who_lives_in(self, city: str) -> list[Customer]:
        customers = await self.sub_agent(CustomerDatabase, "eu")
        rows = await customers.in_city(city)
        self.sql("INSERT INTO notes VALUES (?)", f"asked for {city}")
        return rows

    async def pays_with(self, name: str, last_digits: str) -> bool:
        customers = await self.sub_agent(CustomerDatabase, "eu")
        return await customers.pays_with(name, last_digits)

    async def run(self, sql: str) -> str:
        """Run SQL from another source, for instance a model."""
        try:
            return str(list(self.sql(sql)))
        except UsageError as error:
            return f"refused ({error.code}): {error}"


# --8<-- [end:vault]


async def main(data: str) -> None:
    async with App(agents=[Assistant], settings=Settings(data=data)) as app:
        assistant = await app.get_agent(Assistant, "front desk")
        print("through its methods:", await assistant.who_lives_in("Berlin"))
        print("does Ada pay with …1111?", await assistant.pays_with("Ada", "1111"))
        for sql in (
            "SELECT count(*) AS notes FROM notes",
            "SELECT card FROM customers",
            "ATTACH DATABASE 'customers.db' AS theirs",
            "SELECT * FROM sapwood_children",
            "COMMIT",
        ):
            print(f"> {sql}\n  {await assistant.run(sql)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
