import hashlib
import json
from typing import Any

import pytest

import files
from sapwood import NotFound
from sapwood.testing import World, running


async def upload(world: World, content: bytes, name: str) -> dict[str, Any]:
    """Upload a file as a client does, and return what the server answers."""
    path = "/agents/archive/city/files"
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "PUT",
        "path": path,
        "raw_path": path.encode(),
        "query_string": f"name={name}".encode(),
        "headers": [
            (b"host", b"localhost"),
            (b"content-length", str(len(content)).encode()),
        ],
    }
    body = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Any:
        return next(body, {"type": "http.disconnect"})

    async def send(message: Any) -> None:
        sent.append(message)

    await world.app(scope, receive, send)
    return {"status": sent[0]["status"]} | json.loads(sent[1]["body"])


async def test_an_uploaded_document_is_read_and_removed() -> None:
    async with running(files.app) as world:
        archive = await world.get_agent(files.Archive, "city")
        file = await upload(world, b"to be or not to be", "hamlet.txt")
        assert (file["status"], file["mediaType"]) == (201, "text/plain")

        assert await archive.add("Hamlet", file["digest"]) == file["url"]
        assert await archive.words("Hamlet") == 6
        await archive.remove("Hamlet")

        with pytest.raises(NotFound):
            await archive.add("Hamlet", file["digest"])


async def test_what_the_archive_does_not_accept_is_refused() -> None:
    async with running(files.app) as world:
        assert (await upload(world, b"PK\x03\x04", "a.pdf"))["status"] == 415
        assert (await upload(world, b"x" * 100_001, "a.txt"))["status"] == 413


async def test_a_report_is_stored_once() -> None:
    async with running(files.app) as world:
        archive = await world.get_agent(files.Archive, "city")
        first, second = await archive.write_report(3), await archive.write_report(3)

        assert first == second
        assert first.digest == hashlib.sha256(b"0,0\n1,1\n2,4\n").hexdigest()
        assert await archive.listed() == ["squares.csv, text/csv, 12 bytes"]
