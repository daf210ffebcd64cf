"""The customers, in their own database. The code never holds its stub."""

import asyncio
import os
from dataclasses import dataclass

from sapwood import Agent

SLOW = float(os.environ.get("SLOW", "1.5"))
"""The duration of a query in seconds, long enough to see the code wait."""


@dataclass(frozen=True)
class Customer:
    name: str
    city: str
    plan: str
    pays: int


class CustomerDatabase(Agent):
    migrations = (
        """
        CREATE TABLE customers (
            name TEXT NOT NULL,
            city TEXT NOT NULL,
            plan TEXT NOT NULL,
            pays INTEGER NOT NULL  -- euros a month
        ) STRICT;
        INSERT INTO customers VALUES
            ('Ada Lovelace', 'London', 'pro', 40),
            ('Alan Turing', 'London', 'free', 0),
            ('Maria Agnesi', 'Milan', 'team', 130),
            ('Enrico Fermi', 'Rome', 'pro', 40),
            ('Laura Bassi', 'Rome', 'pro', 45),
            ('Rita Levi-Montalcini', 'Rome', 'team', 120);
        """,
    )

    async def in_city(self, city: str) -> list[Customer]:
        """Return the customers of a city. The code can cause only this call."""
        await asyncio.sleep(SLOW)
        return self.sql("SELECT * FROM customers WHERE city = ?", city).into(Customer)

    async def all_customers(self) -> list[Customer]:
        """Return all customers, for the page."""
        return self.sql("SELECT * FROM customers ORDER BY city, name").into(Customer)

    async def erase(self) -> None:
        """Delete all customers. Only the escape attempts try to call it."""
        self.sql("DELETE FROM customers")
