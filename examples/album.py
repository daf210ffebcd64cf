"""Pictures in a chat: sent by users, made by tools, and read by the model."""

import asyncio
import base64
import sys
from typing import ClassVar

from pydantic_ai.messages import BinaryContent

from sapwood import App, ChatAgent, tool
from sapwood.testing import ScriptedModel, call, text

MB = 1_000_000
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


# --8<-- [start:album]
class Album(ChatAgent):
    model = ScriptedModel(text("A red dot."), call("draw"), text("Here it is."))
    accept_files: ClassVar = {"image/*": 5 * MB}

    @tool
    async def draw(self) -> BinaryContent:
        """Draw a picture."""
        return BinaryContent(PIXEL, media_type="image/png")

    # --8<-- [end:album]


# --8<-- [start:send]
async def show(album: Album, picture: bytes) -> str:
    url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
    turn = await album.send(
        [
            {
                "role": "user",
                "parts": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "file", "mediaType": "image/png", "url": url},
                ],
            }
        ]
    )
    return turn.text


# --8<-- [end:send]

app = App(agents=[Album])


async def main(data: str) -> None:
    app.configure(data=data)
    async with app:
        album = await app.get_agent(Album, "ann")
        print(await show(album, PIXEL))
        await album.send("Draw one for me.")
        for message in await album.conversation.messages():
            for part in message["parts"]:
                if part["type"] == "file":
                    print("sent:", part["url"])
                elif part["type"] == "tool-draw":
                    print("drawn:", part["output"]["url"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "album-data"))
