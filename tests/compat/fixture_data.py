"""Data of a release: how it is made, kept in the repository, and unpacked again."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import itertools
import json
import lzma
import shutil
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apsw
from packaging.version import Version
from tests.compat.office_app import MODELS, CompatLead, CompatLong, CompatOffice, CompatTalker
from tests.conformance import replicated
from tests.conformance.mcp_servers import RemoteServer, said, tool
from tests.conformance.runtimes import open_questions

from sapwood import with_options
from sapwood.kernel.ports.log import Record
from sapwood.storage.engine import CHECKED
from sapwood.storage.migrations import PARTS, Schema, framework
from sapwood.testing import World
from sapwood.testing.memory_log import MemoryArchive, _Stored  # pyright: ignore[reportPrivateUsage]

HERE = Path(__file__).parent
RELEASES = sorted(
    (path.name for path in HERE.iterdir() if (path / "manifest.json").exists()),
    key=Version,
)
"""Oldest first."""
SKIPPED = ("-shm", "operator.json", "lock")
"""What a data folder has of a running process, and a copy has not."""


async def fill(world: World) -> None:
    """Have agents store some of everything, and leave work unfinished: a sleeping fiber, questions, a cut-off turn."""
    office = await world.get_agent(CompatOffice, "main")
    server = RemoteServer(tools=[tool("greet")], answers={"tools/call": said("Hello.")})
    async with server.serving() as url:
        await office.connect("web", url)
        await office.use("web", "greet", {"name": "Ann"})
    await office.fill()
    await with_options(office, idempotency_key="once").note("noted once")
    await world.settled()
    for name in ("finished", "failed", "waiting", "approved"):
        talker = await world.get_agent(CompatTalker, name)
        await talker.send("go")
        if name == "approved":
            await talker.questions.approve("p2")
            await world.settled()
    await world.app.fork(CompatTalker, "waiting", to="forked")
    long = await world.get_agent(CompatLong, "compacted")
    for words in ("one", "two", "three"):
        await long.send(words)
    *_, last = await long.conversation.messages()
    assert await long.conversation.pin(last["id"])
    await long.conversation.search("word")
    await world.settled()
    for name in ("asking", "asked"):
        lead = await world.get_agent(CompatLead, name)
        turn = await lead.turns.start("go")
        questions = await open_questions(lead)
        if name == "asked":
            await lead.questions.approve(questions[0])
            await lead.turns.wait(turn.id)
        await world.settled()
    # Last, because the world is never settled again.
    talker = await world.get_agent(CompatTalker, "interrupted")
    await talker.turns.start("go")
    await world.until(lambda: MODELS["interrupted"].is_stalled)
    await asyncio.sleep(0.1)


def copy_of(data: Path, to: Path) -> None:
    """Copy a data folder as it is now, as a power cut between two slices would leave it."""
    shutil.copytree(data, to, ignore=lambda _, names: [name for name in names if name.endswith(SKIPPED)])


def pack(folder: Path, to: Path) -> None:
    """Write a folder as an archive whose bytes depend on its files only."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            with path.open("rb") if path.is_file() else contextlib.nullcontext() as file:
                archive.addfile(info, file)
    to.write_bytes(lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def unpack(release: str, name: str, to: Path) -> Path:
    """Unpack a data folder of a release."""
    with tarfile.open(HERE / release / f"{name}.tar.xz") as archive:
        archive.extractall(to, filter="data")
    return to


def pack_cluster(storage: replicated.Storage, to: Path) -> None:
    """Write what the log and the archive of a cluster have."""
    entries = [
        [one.shard, one.is_alarm, one.record.tree, one.record.sequence, _text(one.record.data)]
        for stream in storage.log._stored  # pyright: ignore[reportPrivateUsage]
        for one in stream
    ]
    objects = {key: _text(content) for key, content in storage.archive.objects.items()}
    last = storage.log._last  # pyright: ignore[reportPrivateUsage]
    packed = json.dumps({"lives": storage.lives, "last": last, "entries": entries, "objects": objects}).encode()
    to.write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))


def unpack_cluster(release: str) -> replicated.Storage:
    """Return the log and the archive of a release, in memory."""
    kept: dict[str, Any] = json.loads(lzma.decompress((HERE / release / "cluster.json.xz").read_bytes()))
    storage = replicated.Storage()
    storage.lives, storage.ended_well = kept["lives"], False
    storage.archive = MemoryArchive()
    storage.archive.objects = {key: base64.b64decode(content) for key, content in kept["objects"].items()}
    storage.log._last = kept["last"]  # pyright: ignore[reportPrivateUsage]
    for shard, is_alarm, tree, sequence, data in kept["entries"]:
        stored = _Stored(shard, is_alarm, Record(tree, sequence, base64.b64decode(data)))
        storage.log._stored[storage.log.stream_of(shard)].append(stored)  # pyright: ignore[reportPrivateUsage]
    return storage


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def rows(data: Path) -> dict[str, int]:
    """Return how many rows each table of sapwood has, in all databases of a folder."""
    counts: Counter[str] = Counter()
    for path in sorted(data.rglob("*.db")):
        with contextlib.closing(apsw.Connection(str(path), vfs=CHECKED)) as connection:
            names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'sapwood_%'")
            for (name,) in names.fetchall():
                ((many,),) = connection.execute(f"SELECT count(*) FROM {name}").fetchall()
                counts[str(name)] += int(str(many))
    return dict(sorted(counts.items()))


def scripts() -> dict[str, list[str]]:
    """Return the digests of the numbered scripts of sapwood, by the owner of the tables."""
    return {schema.owner: [one.digest.hex() for one in schema.scripts] for schema in schemas()}


def schemas() -> list[Schema]:
    """Return all schemas of sapwood that have scripts."""
    every = [Schema(f"sapwood.{part}", owner) for part in PARTS for owner in framework()]
    return [schema for schema in every if schema.scripts]


def edited(released: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> list[str]:
    """Return the scripts of a release that are missing or differ now: released migrations are never edited."""
    return [
        f"{owner} {number}"
        for owner, kept in released.items()
        for number, digest in enumerate(kept, start=1)
        if number > len(now.get(owner, ())) or now[owner][number - 1] != digest
    ]


def layout() -> dict[str, list[str]]:
    """Return the columns that each table of sapwood has once all scripts have run."""
    connection = apsw.Connection(":memory:")
    for script in itertools.chain.from_iterable(schema.scripts for schema in schemas()):
        connection.execute(script.sql).fetchall()
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'sapwood_%'")
    return {
        str(name): [str(row[1]) for row in connection.execute(f"PRAGMA table_info({name})")]
        for (name,) in sorted(names.fetchall())
    }
