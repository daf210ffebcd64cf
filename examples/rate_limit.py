"""A rate limit per user: the root of a user counts the turns of all conversations."""

import asyncio
import sys
import time

from sapwood import Agent, App, ChatAgent, Refused, Settings, Turn
from sapwood.testing import ScriptedModel, text

TURNS_PER_MINUTE = 3


# --8<-- [start:account]
class Account(Agent):
    """The root of one user. The conversations of the user are its sub-agents."""

    migrations = ("CREATE TABLE turns (at REAL) STRICT",)

    async def count(self) -> None:
        now = time.time()
        self.sql("DELETE FROM turns WHERE at < ?", now - 60)
        turns = self.sql("SELECT count(*) FROM turns").scalar(int)
        if turns >= TURNS_PER_MINUTE:
            raise Refused(f"The limit is {TURNS_PER_MINUTE} messages a minute.")
        self.sql("INSERT INTO turns VALUES (?)", now)

    # --8<-- [end:account]
    async def say(self, conversation: str, message: str) -> str:
        """Send a message, as a client of the conversation does."""
        chat = await self.sub_agent(Conversation, conversation)
        turn = await chat.send(message)
        return f"{conversation}: {turn.status}, {turn.error or turn.text}"


# --8<-- [start:conversation]
class Conversation(ChatAgent):
    model = ScriptedModel(text("Hello."))

    async def before_turn(self, turn: Turn) -> None:
        account = await self.parent_agent(Account)
        await account.count()


# --8<-- [end:conversation]


async def main(folder: str) -> None:
    async with App(agents=[Account], settings=Settings(data=folder)) as app:
        ann = await app.get_agent(Account, "ann")
        for conversation in ("work", "home", "work", "home"):
            print(await ann.say(conversation, "Hello!"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
