"""Takes notes until it is killed, and prints their number after each."""

import asyncio
import itertools

from inbox import Inbox
from sapwood import App


async def main() -> None:
    async with App(agents=[Inbox]) as app:
        alice = await app.get_agent(Inbox, "alice")
        for n in itertools.count(1):
            print("notes in diary:", await alice.note("diary", f"note {n}"), flush=True)
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main())
