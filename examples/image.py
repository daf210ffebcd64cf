"""A message with an image, sent from code."""

import asyncio
import base64
import sys

from pydantic_ai import BinaryContent
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from sapwood import App, ChatAgent, Settings, Turn

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def look(messages: list[ModelMessage], _: AgentInfo):
    """Stand in for a model: count the images of the last message."""
    assert isinstance(messages[-1], ModelRequest)
    prompts = [part for part in messages[-1].parts if isinstance(part, UserPromptPart)]
    parts = [part for prompt in prompts for part in prompt.content]
    images = [part for part in parts if isinstance(part, BinaryContent)]
    yield f"I see {len(images)} image, {images[0].media_type}."


# --8<-- [start:send]
class Viewer(ChatAgent):
    model = FunctionModel(stream_function=look)  # use a model that reads images

    async def describe(self, image: bytes) -> Turn:
        url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        parts = [
            {"type": "text", "text": "What is in this picture?"},
            {"type": "file", "mediaType": "image/png", "url": url},
        ]
        return await self.send([{"role": "user", "parts": parts}])


# --8<-- [end:send]


async def main(folder: str) -> None:
    async with App(agents=[Viewer], settings=Settings(data=folder)) as app:
        viewer = await app.get_agent(Viewer, "gallery")
        turn = await viewer.describe(DOT)
        print(f"{turn.status}: {turn.error or turn.text}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sapwood-data"))
