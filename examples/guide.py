"""A travel guide whose conversation has branches: an edit deletes nothing."""

import asyncio
import sys
from typing import Any

from sapwood import App, ChatAgent, Settings, expose
from sapwood.testing import ScriptedModel, text
from sapwood.types import ConversationBranch

MODEL = ScriptedModel(
    text("Rome: three days."),
    text("A hotel at the river."),
    text("Oslo: two days."),
    text("A cabin at the fjord."),
)


# --8<-- [start:agent]
class Guide(ChatAgent):
    model = MODEL  # such as "openai:gpt-5"
    instructions = "You plan trips."

    @expose
    async def branches(self) -> list[ConversationBranch]:
        """Return the branches, for a page."""
        return await self.conversation.branches()

    @expose
    async def switch_branch(self, message_id: str) -> bool:
        """Continue in another branch, for a page."""
        return await self.conversation.switch(message_id)


# --8<-- [end:agent]
app = App(agents=[Guide])


def message(id: str, words: str) -> list[dict[str, Any]]:
    """Return a message as a page sends it: with an id of its own."""
    return [{"id": id, "role": "user", "parts": [{"type": "text", "text": words}]}]


def first_text(message: dict[str, Any]) -> str:
    return next(part["text"] for part in message["parts"] if part["type"] == "text")


async def main(data: str) -> None:
    app.configure(data=data)
    async with app:
        guide = await app.get_agent(Guide, "ann")
        await guide.conversation.clear()
        # --8<-- [start:edit]
        await guide.send(message("m1", "Plan a trip to Rome."))
        await guide.send("And where do I sleep?")
        await guide.send(message("m1", "Plan a trip to Oslo."))  # the same id: an edit
        for branch in await guide.conversation.branches():
            mark = "*" if branch.is_active else " "
            print(mark, branch.text, f"({branch.messages} messages)")
        # --8<-- [end:edit]
        # --8<-- [start:switch]
        rome, oslo = await guide.conversation.branches()
        await guide.conversation.switch(rome.message_id)
        shown = await guide.conversation.messages()
        print("shown:", " / ".join(first_text(one) for one in shown))
        await guide.conversation.switch(oslo.message_id)
        turn = await guide.send("And where do I sleep?")
        print("in Oslo:", turn.text)
        found = await guide.conversation.search("hotel", all_branches=True)
        print("in another branch:", first_text(found[0]))
        # --8<-- [end:switch]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else str(Settings().data)))
