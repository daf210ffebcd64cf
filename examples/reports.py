"""Scheduled reports: cron expressions with time zones and keys."""

import asyncio
import sys

from sapwood import Agent, App, Cron, Settings


class Reports(Agent):
    migrations = ("CREATE TABLE written (kind TEXT NOT NULL) STRICT",)

    # --8<-- [start:on-start]
    async def on_start(self) -> None:
        working_days = Cron("0 8 * * MON-FRI", "Europe/Berlin", key="morning")
        end_of_month = Cron("0 18 L * *", "America/New_York", key="month")
        self.schedule(working_days, self.write, "morning")
        self.schedule(end_of_month, self.write, "month")

    async def write(self, kind: str) -> None:
        self.sql("INSERT INTO written VALUES (?)", kind)

    # --8<-- [end:on-start]
    async def written(self) -> list[str]:
        return [str(row["kind"]) for row in self.sql("SELECT kind FROM written")]

    # --8<-- [start:user]
    async def greet_daily(self, hour: int, zone: str) -> None:
        self.schedule(Cron(f"0 {hour} * * *", zone, key="greet"), self.write, "greet")

    async def stop_greeting(self) -> bool:
        return self.schedules.cancel("greet")

    # --8<-- [end:user]
    # --8<-- [start:next]
    async def next_times(self) -> dict[str, str]:
        return {
            str(schedule.when.key): f"{schedule.due_at:%A %d %B, %H:%M} UTC"
            for schedule in self.schedules.list()
        }

    # --8<-- [end:next]


async def main(data: str) -> None:
    async with App(agents=[Reports], settings=Settings(data=data)) as app:
        office = await app.get_agent(Reports, "office")
        await office.greet_daily(9, "Asia/Tokyo")
        for key, time in (await office.next_times()).items():
            print(f"{key}: {time}")
        print("greetings were stopped:", await office.stop_greeting())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "reports-data"))
