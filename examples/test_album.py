import base64

from pydantic_ai.messages import BinaryContent

import album
from sapwood.testing import running


async def test_the_model_sees_pictures_and_messages_name_them() -> None:
    async with running(album.app) as world:
        agent = await world.get_agent(album.Album, "ann")

        assert await album.show(agent, album.PIXEL) == "A red dot."
        await agent.send("Draw one for me.")

        shown, _, _, drawn = await agent.conversation.messages()
        url = shown["parts"][1]["url"]
        assert url.startswith("/agents/album/ann/files/")
        (part,) = [part for part in drawn["parts"] if part["type"] == "tool-draw"]
        assert part["output"] == {"type": "file", "mediaType": "image/png", "url": url}
        first = album.Album.model.asked[0][0].parts[0].content
        assert [one.data for one in first if isinstance(one, BinaryContent)] == [
            album.PIXEL
        ]
        assert base64.b64encode(album.PIXEL).decode() not in str(
            await agent.conversation.export()
        )
