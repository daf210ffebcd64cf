"""Files when the process dies in an upload, the disk is full, or a cluster runs the tree."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.replicated import running_replicated
from tests.conformance.serving import door
from tests.conformance.test_files import Shelf, blobs, large
from tests.conformance.test_files_http import URL, Desk, picture, put, stored
from tests.conformance.worlds import Run, until

from sapwood import App, NotFound, Unavailable
from sapwood.capabilities.file_writer import BATCH, INLINE
from sapwood.storage.files import Files
from sapwood.testing import POINTS, World, running
from sapwood.testing.faults import CountingGate

ID = "0123456789abcdef"
SIZE = INLINE + 1000


async def send(world: World, content: bytes, content_range: str) -> tuple[int, Any]:
    """Send a part of an upload, and return the status and the body of the answer; 0 if there is none."""
    told: list[Any] = []
    body = iter([{"type": "http.request", "body": content, "more_body": False}])
    headers = {"host": "x", "content-length": str(len(content)), "content-range": content_range}
    scope = {
        "type": "http",
        "method": "PUT",
        "path": URL,
        "raw_path": URL.encode(),
        "query_string": f"upload={ID}".encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> Any:
        return next(body, {"type": "http.disconnect"})

    async def taken(message: Any) -> None:
        told.append(message)

    try:
        await world.app(scope, receive, taken)
    except (Unavailable, NotFound):
        return 0, None
    return (told[0]["status"], json.loads(told[1]["body"])) if len(told) > 1 and told[0]["status"] < 500 else (0, None)


@pytest.mark.parametrize("point", POINTS)
async def test_an_upload_is_complete_after_a_kill_anywhere_and_a_client_that_asks_where_to_continue(
    run: Run, point: str
) -> None:
    content, nth, passed = picture(SIZE), 0, True
    digest = hashlib.sha256(content).hexdigest()
    while passed:
        nth += 1
        async with run(Desk) as world:
            await world.get_agent(Desk, "d")
            before = world.points.passed[point]
            world.crash_at(point, nth)
            first = await send(world, content[:5000], f"bytes 0-4999/{SIZE}")
            last = await send(world, content[5000:], f"bytes 5000-{SIZE - 1}/{SIZE}")
            passed = world.points.passed[point] >= before + nth
            await world.crash()

            asked = await send(world, b"", f"bytes */{SIZE}")
            if asked[0] == 202:
                received = asked[1]["received"]
                assert last[0] != 201
                # A kill between the new name of the complete file and the commit of its row starts again from 0.
                assert received in (
                    (0, 5000, SIZE) if first[0] != 202 or "sync" in point or "rename" in point else (5000, SIZE)
                )
                asked = await send(world, content[received:], f"bytes {received}-{SIZE - 1}/{SIZE}")

            assert (asked[0], asked[1]["digest"]) == (201, digest)
            assert [file.digest for file in await (await world.get_agent(Desk, "d")).stored()] == [digest]
            await until(lambda: blobs(world) == {digest})


@pytest.mark.parametrize("refused", ["create", "write_at", "rename"])
async def test_a_full_disk_refuses_an_upload_and_keeps_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    async with door(Desk) as site:
        await put(site, b"small")
        original = getattr(Files, refused)

        def full(self: Files, path: Path, *more: Any) -> Any:
            if ".files" in str(path):
                raise OSError(errno.ENOSPC, "")
            return original(self, path, *more)

        with monkeypatch.context() as patched:
            patched.setattr(Files, refused, full)
            answer = await put(site, picture(2 * BATCH))

        assert answer.status == 503
        assert "retry-after" in answer.headers
        await until(lambda: not blobs(site.world))
        assert len(await stored(site)) == 1
        assert (await put(site, picture(2 * BATCH))).status == 201


async def test_in_a_cluster_an_upload_in_parts_is_stored_and_starts_again_on_another_node() -> None:
    content = picture(3 * INLINE)
    size, half = len(content), INLINE + 10
    async with running_replicated(App(agents=[Desk]), slow_slices="allow") as world:
        await world.get_agent(Desk, "d")
        first = await send(world, content[:half], f"bytes 0-{half - 1}/{size}")
        asked = await send(world, b"", f"bytes */{size}")
        await world.crash()  # and nothing is left of the folder
        moved = await send(world, content[half:], f"bytes {half}-{size - 1}/{size}")
        last = await send(world, content, f"bytes 0-{size - 1}/{size}")
        again = await send(world, b"", f"bytes */{size}")
        await world.crash()

        assert first == asked == (202, {"received": half})
        assert (moved[0], moved[1]["received"]) == (409, 0)
        assert (last[0], last[1]["digest"]) == (201, hashlib.sha256(content).hexdigest())
        assert again == last
        (file,) = await (await world.get_agent(Desk, "d")).stored()
        assert file.size == size


async def test_a_loss_of_power_finds_the_file_before_its_row_and_its_row_gone_before_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[str] = []

    def noted(owner: Any, name: str, told: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def wrapped(self: Any, *given: Any) -> Any:
            found = original(self, *given)
            steps.append(told(*given))
            return found

        monkeypatch.setattr(owner, name, wrapped)

    noted(Files, "sync_file", lambda path: f"sync {path.suffix}")
    noted(Files, "rename", lambda old, new: f"rename {old.suffix}")
    noted(Files, "sync_folder", lambda path: f"names {path.suffix}")
    noted(Files, "sync_descriptor", lambda path, descriptor: f"sync {path.name}")
    noted(Files, "remove", lambda path: f"remove {path.parent.suffix}")
    noted(CountingGate, "committed", lambda commit: "commit")
    async with running(App(agents=[Shelf]), durability="disk") as world:
        shelf = await world.get_agent(Shelf, "s")
        await shelf.put(b"small")
        steps.clear()

        file = await shelf.put(large())
        stored = steps.copy()
        steps.clear()
        await shelf.delete(file)
        await until(lambda: not blobs(world))

        first = [step for step in stored if step in ("sync .part", "rename .part", "names .files", "commit")]
        assert first == ["sync .part", "rename .part", "names .files", "commit"]
        assert stored.index("commit") < stored.index("sync root.db-wal")
        assert [step for step in steps if step != "names .files"][:3] == ["commit", "sync root.db-wal", "remove .files"]
