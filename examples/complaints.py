"""A complaints desk that asks before it refunds."""

import asyncio
import sys

from sapwood import App, ChatAgent, Settings, tool
from sapwood.testing import ScriptedModel, call, text

MODEL = ScriptedModel(
    call("find_order", number=17),
    call("refund", number=17, euros=25),
    text("You get 25 euros for the vase."),
    text("You are welcome."),
    each=True,
)


# --8<-- [start:agent]
class Desk(ChatAgent):
    model = MODEL  # such as "openai:gpt-5"
    instructions = "You handle complaints. Look up the order first."

    @tool(idempotent=True)
    async def find_order(self, number: int) -> str:
        """Return what was ordered."""
        return f"order {number}: a vase, 25 euros"

    @tool(requires_approval=True)
    async def refund(self, number: int, euros: int) -> str:
        """Refund an order."""
        return f"{euros} euros are refunded for order {number}"


# --8<-- [end:agent]
app = App(agents=[Desk])


# --8<-- [start:use]
async def main(data: str) -> None:
    async with App(agents=[Desk], settings=Settings(data=data)) as app:
        ann = await app.get_agent(Desk, "ann")
        turn = await ann.send("The vase of order 17 is broken.")
        for question in await ann.questions.list():
            print("approve?", question.tool, question.arguments)
            await ann.questions.approve(question)
        turn = await ann.turns.wait(turn.id)
        print(turn.text)
        turn = await ann.send("Thank you.")
        print(turn.text)


# --8<-- [end:use]
if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "complaints-data"))
