"""Write the fixtures of this version: `just record-fixtures` at the release, and never again for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from tests.compat import fixture_data, messages, transcripts
from tests.compat.office_app import CompatOffice, app
from tests.compat.surface import surface
from tests.conformance import replicated

from sapwood.address import Address
from sapwood.testing import running
from sapwood.testing.loop import VirtualLoop

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


async def record_local(to: Path, scratch: Path) -> None:
    async with running(app) as world:
        await fixture_data.fill(world)
        fixture_data.copy_of(world.data, scratch)
        fixture_data.pack(scratch, to / "local.tar.xz")


async def record_cluster(to: Path) -> None:
    async with replicated.running_replicated(app) as world:
        await fixture_data.fill(world)
        # Some trees begin with a snapshot in the archive, of which one has messages behind it; others lie in the log.
        keeper = world.node.keeper
        assert keeper is not None
        for root in (Address.root_of("CompatOffice", "main"), Address.root_of("CompatTalker", "finished")):
            await keeper.snapshot(root)
        await (await world.get_agent(CompatOffice, "main")).note("behind the snapshot")
        fixture_data.pack_cluster(replicated.storage_of(world.data), to / "cluster.json.xz")


def record_workers(to: Path, scratch: Path) -> None:
    """Have real workers fill a folder, and stop them: their locks and indexes have other names."""
    command = [sys.executable, "-m", "sapwood"]
    where = {"cwd": ROOT, "env": {**os.environ, "SAPWOOD_DATA": str(scratch)}}
    server = subprocess.Popen(
        [*command, "serve", "tests.compat.office_app:app", "--workers", "2", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        **where,
    )
    assert server.stderr is not None
    for line in server.stderr:
        if "http://" in line:
            break
    try:
        subprocess.run([*command, "call", "CompatOffice:main", "fill"], check=True, **where)
    finally:
        server.send_signal(signal.SIGTERM)
        server.stderr.close()
        server.wait(60)
    fixture_data.copy_of(scratch, scratch.with_name("copy"))
    fixture_data.pack(scratch.with_name("copy"), to / "workers.tar.xz")


def play(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def write_json(content: object, to: Path) -> None:
    to.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    release = version("sapwood")
    to = fixture_data.HERE / release
    if (to / "manifest.json").exists() and "--again" not in sys.argv:
        sys.exit(f"The fixtures of {release} exist. Those of a release are never written again.")
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(ROOT):
        scratch = Path(folder)
        play(record_local(to, scratch / "local"))
        play(record_cluster(to))
        record_workers(to, scratch / "workers")
        manifest = {
            "version": release,
            "scripts": fixture_data.scripts(),
            "tables": fixture_data.layout(),
            "rows": fixture_data.rows(scratch / "local"),
        }
    dialogues = [play(transcripts.play(transcripts.DIALOGUES)) for _ in range(2)]
    write_json(transcripts.merged(*dialogues), to / "wire.json")
    write_json(messages.forms(), to / "messages.json")
    write_json(messages.frames(), to / "frames.json")
    write_json(surface(), to / "surface.json")
    write_json(manifest, to / "manifest.json")


if __name__ == "__main__":
    main()
