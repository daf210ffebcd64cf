"""The past of a tree on one machine: each moment that was recorded can be read as files."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import randbytes

import pytest
from tests.unit.histories import Gardener, Node, Rows, rows_in, rows_now, rows_of

from sapwood import After, Agent, App, ChatAgent, agent
from sapwood.errors import NotFound, StoredDataError, UsageError
from sapwood.kernel.history import images
from sapwood.kernel.history import sweep as history_sweep
from sapwood.kernel.history.chain import Chain
from sapwood.kernel.history.moments import TreePast
from sapwood.kernel.history.recorder import HistoryRecorder
from sapwood.kernel.history.segments import HEADER, MAGIC, PAGES, SegmentReader, history_folder, segments_in
from sapwood.kernel.node.past import write_tree_at
from sapwood.kernel.ports.durability import Commit
from sapwood.runtimes.local import LocalRuntime
from sapwood.settings import Limits
from sapwood.storage.files import Files
from sapwood.testing import ScriptedModel, World, running, text
from sapwood.timings import DEFAULTS
from sapwood.types import Address, BeforeTurn, Moment

ROOT = Address.parse("Node:a")
DAY = 86400.0


async def then(world: World, at: Moment | BeforeTurn | datetime | str, folder: Path, root: Address = ROOT) -> Rows:
    """Return what a tree held at a moment."""
    await write_tree_at(world.node, root, at, folder)
    try:
        return rows_in(folder)
    finally:
        shutil.rmtree(folder)


async def values(world: World, at: Moment | datetime | str, folder: Path) -> list[str]:
    """Return the lines of the root that have this value."""
    return [line for line in (await then(world, at, folder))["root"] if line.startswith("(") and "'v" in line]


@pytest.mark.slow
async def test_every_moment_of_random_trees_is_as_it_was(tmp_path: Path) -> None:
    timings = replace(DEFAULTS, checkpoint_frames=20, history_base_interval=4.0, history_delay=0.3)
    async with running(App(agents=[Node]), history=DAY, timings=timings) as world:
        was = await changed(world, Gardener(world, "a", 32, agents=12), moments=14)
        assert len(segments_in(history_folder(world.data, ROOT))) > 3  # several bases
        for name, rows in was.items():
            assert await then(world, name, tmp_path / name) == rows, name


@pytest.mark.slow
async def test_files_are_read_in_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "RANGE", 2)
    timings = replace(DEFAULTS, checkpoint_frames=20, history_base_interval=4.0, history_delay=0.3)
    async with running(App(agents=[Node]), history=DAY, timings=timings) as world:
        was = await changed(world, Gardener(world, "a", 7, agents=12), moments=14)
        for name, rows in was.items():
            assert await then(world, name, tmp_path / name) == rows, name


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
async def test_every_moment_of_large_random_trees_is_as_it_was(seed: int, tmp_path: Path) -> None:
    timings = replace(DEFAULTS, checkpoint_frames=100, history_base_interval=60.0, history_delay=0.3)
    async with running(App(agents=[Node]), history=DAY, timings=timings, slow_slices="allow") as world:
        gardener = Gardener(world, "a", seed, agents=200)
        for _ in range(400):
            await gardener.change()
        was = await changed(world, gardener, moments=500)
        past = TreePast(history_folder(world.data, ROOT), ROOT)
        for name, rows in was.items():
            assert rows_of(past.read(past.find(name)).files) == rows, (seed, name)
        assert await then(world, "m250", tmp_path / "then") == was["m250"]


async def changed(world: World, gardener: Gardener, *, moments: int) -> dict[str, Rows]:
    """Change a tree, through restarts, crashes and sleep; return what it held at each moment."""
    was: dict[str, Rows] = {}
    for number in range(moments):
        for _ in range(3):
            await gardener.change()
        name = f"m{number}"
        await (await gardener.agent(())).mark(name)
        was[name] = rows_now(world, ROOT)
        if number % 4 == 1:
            await world.clock.advance(5)
        if number % 10 == 4:
            await world.restart()
        if number % 10 == 8:
            await world.app.moments(Node, "a")  # what is not written yet is lost in a crash
            await world.crash()
        if number % 5 == 3:
            world.sleep()
    recorded = {one.label for one in await world.app.moments(Node, "a", limit=100_000)}
    assert recorded >= was.keys()
    return was


async def test_a_mark_contains_what_its_slice_has_written_also_if_an_index_is_committed_first(tmp_path: Path) -> None:
    class Ringer(Node):
        async def plan(self, value: str) -> None:
            self.sql("INSERT INTO item (value) VALUES (?)", value)
            self.schedule(After(timedelta(hours=5)), self.add, "late")  # the root has an index of this
            self.history.mark(value)

    class Belfry(Agent):
        async def plan(self, value: str) -> None:
            await (await self.sub_agent(Ringer, "r")).plan(value)

    root = Address.parse("Belfry:a")
    async with running(App(agents=[Belfry]), history=DAY) as world:
        belfry = await world.get_agent(Belfry, "a")
        for value in ("v1", "v2"):
            await belfry.plan(value)
            held = await then(world, value, tmp_path / "then", root)
            assert f"'{value}'" in str(held), value
            await world.app.moments(Belfry, "a")
            await world.crash()  # the next commit begins a new base
            belfry = await world.get_agent(Belfry, "a")


async def test_a_moment_of_a_past_that_was_erased_is_not_one_of_the_next(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        for value in ("v1", "v2"):
            node = await world.get_agent(Node, "a")
            await node.add(value, "m")
            (moment, *_) = await world.app.moments(Node, "a")
            if value == "v1":
                old = moment
                await world.app.erase(Node, "a")
                await world.clock.advance(1)
        assert len(await values(world, moment, tmp_path / "then")) == 1
        with pytest.raises(NotFound, match="does not have the moment 'm'"):
            await then(world, old, tmp_path / "then")


async def test_a_tree_is_replaced_also_if_its_history_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        await node.add("v2")

        def broken(chain: Chain) -> None:
            raise OSError(errno.EIO, "no disk")

        monkeypatch.setattr(Chain, "reopened", broken)
        await world.app.rewind(Node, "a", at="m1")
        assert await (await world.get_agent(Node, "a")).values() == ["v1"]


async def test_a_job_that_fails_in_an_unknown_way_does_not_stop_the_thread(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        await world.app.moments(Node, "a")
        history = world.node.history
        assert isinstance(history, HistoryRecorder)
        (record,) = history._records.values()  # pyright: ignore[reportPrivateUsage]

        def broken(*arguments: object) -> bool:
            raise MemoryError

        record.chain._add = broken  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
        await node.add("v2", "m2")
        assert [one.label for one in await asyncio.wait_for(world.app.moments(Node, "a"), 10)] == ["m1"]


async def test_a_time_means_what_was_committed_until_then(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        times: list[datetime] = []
        for number in range(4):
            await node.add(f"v{number}")
            times.append(datetime.fromtimestamp(world.clock.now(), UTC))
            await world.clock.advance(10)
            await asyncio.sleep(DEFAULTS.history_delay)  # it is recorded without a mark
        for number, at in enumerate(times):
            assert len(await values(world, at, tmp_path / "then")) == number + 1
        assert len(await values(world, times[1] + timedelta(seconds=9), tmp_path / "then")) == 2
        with pytest.raises(NotFound, match=r"does not have the time .* It begins at 20"):
            await then(world, times[0] - timedelta(seconds=1), tmp_path / "before")
        with pytest.raises(UsageError, match="future"):
            await then(world, times[-1] + timedelta(days=1), tmp_path / "after")
        with pytest.raises(UsageError, match="time zone"):
            await then(world, datetime(2027, 1, 1), tmp_path / "naive")  # noqa: DTZ001 - that is the point
        assert not os.listdir(tmp_path)  # noqa: PTH208 - no folder is left half written


async def test_a_mark_contains_what_its_slice_writes_after_it(tmp_path: Path) -> None:
    class Marker(Node):
        async def work(self) -> None:
            self.sql("INSERT INTO item (value) VALUES ('v1')")
            self.history.mark("half")
            self.sql("INSERT INTO item (value) VALUES ('v2')")

    async with running(App(agents=[Marker]), history=DAY) as world:
        root = Address.parse("Marker:a")
        await (await world.get_agent(Marker, "a")).work()
        held = await then(world, "half", tmp_path / "then", root)
        assert sum("'v" in line for line in held["root"]) == 2
        (moment,) = await world.app.moments(Marker, "a")
        assert (moment.address, moment.kind, moment.label) == (root, "mark", "half")
        assert await then(world, moment, tmp_path / "then", root) == held


class Desk(ChatAgent):
    """A chat."""

    model = ScriptedModel(text("One."), text("Two."), text("Three."))

    async def look(self) -> int:
        return len(await self.conversation.messages())


async def test_before_a_turn_there_is_no_row_of_it(tmp_path: Path) -> None:
    root = Address.parse("Desk:a")
    async with running(App(agents=[Desk]), history=DAY) as world:
        desk = await world.get_agent(Desk, "a")
        for number in range(3):
            await desk.turns.start(f"question {number}", id=f"t{number}")
            await desk.turns.wait(f"t{number}")
        for number in range(3):
            held = await then(world, BeforeTurn(f"t{number}"), tmp_path / "then", root)
            rows = "\n".join(held["root"])
            assert [f"'t{n}'" in rows for n in range(3)] == [n < number for n in range(3)]
            assert [f"question {n}" in rows for n in range(3)] == [n < number for n in range(3)]
        kinds = [(one.kind, one.label) for one in await world.app.moments(Desk, "a")]
        assert kinds == [(kind, f"t{n}") for n in range(3) for kind in ("before_turn", "after_turn")]
        with pytest.raises(NotFound, match="a moment before turn 'never' of Desk:a"):
            await then(world, BeforeTurn("never"), tmp_path / "then", root)


async def test_without_history_nothing_is_written_and_the_setting_is_named(tmp_path: Path) -> None:
    async with running(App(agents=[Node])) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v", "m")
        assert not (world.data / "history").exists()
        with pytest.raises(UsageError, match=r"Settings\(history=…\)"):
            await world.app.moments(Node, "a")
        with pytest.raises(UsageError, match=r"Settings\(history=…\)"):
            await then(world, "m", tmp_path / "then")


async def test_what_was_written_while_no_history_was_kept_is_in_the_next_base(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        await (await world.get_agent(Node, "a")).add("v1", "m1")
        for history, value in ((0, "v2"), (DAY, "v3")):
            await world.app.__aexit__()
            world.settings = replace(world.settings, history=history)
            await world.start()
            node = await world.get_agent(Node, "a")
            for _ in range(20):  # more than one page
                await node.add(value + "x" * 500, f"m{value[1]}")
        assert len(await values(world, "m1", tmp_path / "then")) == 1
        assert len(await values(world, "m3", tmp_path / "then")) == 41
        with pytest.raises(NotFound, match="a moment 'm2'"):
            await then(world, "m2", tmp_path / "then")


async def test_a_destroyed_tree_has_no_past_and_its_namesake_a_new_one(tmp_path: Path) -> None:
    class Mortal(Node):
        async def end(self) -> None:
            await self.destroy()

    root = Address.parse("Mortal:a")
    async with running(App(agents=[Mortal]), history=DAY) as world:
        mortal = await world.get_agent(Mortal, "a")
        await mortal.add("v1", "m1")
        await mortal.end()
        await world.settled()
        assert not history_folder(world.data, root).exists()
        mortal = await world.get_agent(Mortal, "a")
        await mortal.add("v2", "m2")
        held = await then(world, "m2", tmp_path / "then", root)
        assert ["'v1'" in line or "'v2'" in line for line in held["root"]].count(True) == 1
        with pytest.raises(NotFound):
            await then(world, "m1", tmp_path / "then", root)


@pytest.mark.slow
async def test_the_past_before_a_restore_stays_reachable(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        await world.app.backup(tmp_path / "backup")
        await node.add("v2", "m2")
        await world.app.restore(tmp_path / "backup")
        node = await world.get_agent(Node, "a")
        await node.add("v3", "m3")
        assert [line[-6:] for line in await values(world, "m1", tmp_path / "then")] == [", 'v1')"[-6:]]
        assert len(await values(world, "m2", tmp_path / "then")) == 2
        assert ["'v1'" in "".join(await values(world, "m3", tmp_path / "then"))] == [True]
        assert "'v2'" not in "".join(await values(world, "m3", tmp_path / "then"))
        now = datetime.fromtimestamp(world.clock.now(), UTC)
        assert "'v3'" in "".join(await values(world, now, tmp_path / "then"))


async def test_old_segments_go_and_what_is_left_is_whole(tmp_path: Path) -> None:
    timings = replace(DEFAULTS, history_base_interval=50.0, history_sweep_interval=30.0)
    async with running(App(agents=[Node]), history=200.0, timings=timings) as world:
        node = await world.get_agent(Node, "a")
        for number in range(8):
            await node.add(f"v{number}", f"m{number}")
            await world.clock.advance(60)
        past = history_folder(world.data, ROOT)
        found = {one.label for one in await world.app.moments(Node, "a")}
        assert "m7" in found
        assert "m5" in found  # within 200 s
        assert "m0" not in found
        for name in found:
            assert len(await values(world, name, tmp_path / "then")) == int(name[1:]) + 1
        world.sleep()
        await world.clock.advance(600)
        await asyncio.sleep(timings.history_sweep_interval)
        assert not segments_in(past)  # it was not written to for longer than its past is kept


async def test_the_size_of_a_history_is_limited(tmp_path: Path) -> None:
    limit = 200_000
    async with running(App(agents=[Node]), history=DAY, limits=Limits(history_bytes=limit)) as world:
        node = await world.get_agent(Node, "a")
        for number in range(60):
            await node.add(f"v{number}" + randbytes(4000).hex(), f"m{number}")
            await node.run("DELETE FROM item WHERE n < (SELECT max(n) FROM item) - 2")
            await world.clock.advance(1)
        sizes = [segment.stat().st_size for segment in segments_in(history_folder(world.data, ROOT))]
        assert sum(sizes) <= limit * 1.1, sizes
        found = [one.label for one in await world.app.moments(Node, "a", limit=100)]
        assert found[-1] == "m59"
        assert found[0] != "m0"
        assert "'v59" in "".join(await values(world, "m59", tmp_path / "then"))


class FullFiles(Files):
    """Refuses what is appended to a history while `is_full`."""

    is_full = False

    def append(self, path: Path, content: bytes) -> None:
        if self.is_full:
            super().append(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(path, content)


async def test_a_full_disk_stops_the_history_and_not_the_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FullFiles()
    monkeypatch.setattr(LocalRuntime, "_make_history", _recorder_with(files))
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        await world.settled()
        files.is_full = True
        for number in range(5):
            await node.add("v2", f"lost{number}")
            await world.settled()
        files.is_full = False
        assert len([line for line in caplog.messages if line.startswith("history not recorded")]) == 1
        await asyncio.sleep(DEFAULTS.history_retry_delay)
        await node.add("v3", "m3")
        assert len(await values(world, "m1", tmp_path / "then")) == 1
        assert len(await values(world, "m3", tmp_path / "then")) == 7
        with pytest.raises(NotFound):
            await then(world, "lost1", tmp_path / "then")


def _recorder_with(files: Files) -> Callable[[LocalRuntime, Path], HistoryRecorder | None]:
    made = LocalRuntime._make_history  # pyright: ignore[reportPrivateUsage]

    def make(runtime: LocalRuntime, folder: Path) -> HistoryRecorder | None:
        own, runtime._files = runtime._files, files  # pyright: ignore[reportPrivateUsage]
        try:
            return made(runtime, folder)
        finally:
            runtime._files = own  # pyright: ignore[reportPrivateUsage]

    return make


async def test_a_damaged_history_is_refused(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        await (await world.get_agent(Node, "a")).add("v1", "m1")
        await world.app.moments(Node, "a")
        (segment,) = segments_in(history_folder(world.data, ROOT))
        content = bytearray(segment.read_bytes())
        content[len(MAGIC) + 100] ^= 1
        segment.write_bytes(content)
        with pytest.raises(StoredDataError, match="is damaged at byte"):
            await then(world, "m1", tmp_path / "then")
        assert not (tmp_path / "then").exists()
        assert await (await world.get_agent(Node, "a")).values() == ["v1"]


async def test_a_deleted_file_is_part_of_the_past(tmp_path: Path) -> None:
    large = randbytes(300_000)

    class Archivist(Node):
        async def put(self, mark: str) -> str:
            file = await self.files.put(large)
            self.history.mark(mark)
            return file.digest

        async def drop(self, digest: str, mark: str) -> None:
            await self.files.delete(digest)
            self.history.mark(mark)

    root = Address.parse("Archivist:a")
    async with running(App(agents=[Archivist]), history=DAY) as world:
        archivist = await world.get_agent(Archivist, "a")
        digest = await archivist.put("with")
        await archivist.drop(digest, "without")
        await world.settled()
        folder = tmp_path / "then"
        await write_tree_at(world.node, root, "with", folder)
        assert (folder / "root.files" / digest).read_bytes() == large
        await write_tree_at(world.node, root, "without", tmp_path / "later")
        assert not (tmp_path / "later" / "root.files").exists()


async def test_a_commit_that_writes_nothing_does_not_stop_the_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        root = world.node.trees[ROOT].root
        # As the index of alarms tells it, if an agent has to be entered again.
        world.node.gate.committed(Commit(ROOT, root, root.frames + 1, root.frames))
        await node.add("v2", "m2")
        assert len(await values(world, "m2", tmp_path / "then")) == 2
        assert not caplog.records


async def test_a_log_that_begins_again_with_a_new_base_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        root = world.node.trees[ROOT].root
        await node.add("v1", "m1")
        with monkeypatch.context() as changed:
            changed.setattr(root, "_checkpoint_frames", 1)
            await node.add("v2", "m2")
            await node.flush_now()
        world.node.history.replaced(ROOT)
        await node.add("v3", "m3")
        await node.add("v4", "m4")
        assert len(await values(world, "m4", tmp_path / "then")) == 4
        assert not caplog.records


@pytest.mark.parametrize("byte", [0, 1, 4, 12, 20, 24])
async def test_damage_in_the_middle_is_told_from_the_end_of_a_segment(byte: int, tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        for number in range(4):
            await node.add(f"v{number}", f"m{number}")
        await world.restart()
        (segment,) = segments_in(history_folder(world.data, ROOT))
        content = bytearray(segment.read_bytes())
        line = [line for line in SegmentReader(segment).lines() if line.kind == PAGES][2]
        content[line.body - HEADER + byte] ^= 0x40
        segment.write_bytes(content)
        now = datetime.fromtimestamp(world.clock.now(), UTC)
        for at in (now, "m3"):
            with pytest.raises(StoredDataError, match="is damaged at byte"):
                await then(world, at, tmp_path / "then")


@pytest.mark.parametrize("end", ["cut", "zeros"])
async def test_a_segment_that_a_crash_cut_short_is_read_up_to_there(end: str, tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        await node.add("v2", "m2")
        await world.app.moments(Node, "a")
        await world.crash()
        (segment,) = segments_in(history_folder(world.data, ROOT))
        *_, last, _ = SegmentReader(segment).lines()
        content = segment.read_bytes()[: last.body - 3]
        segment.write_bytes(content if end == "cut" else content[: last.body - HEADER] + bytes(2 * HEADER))
        node = await world.get_agent(Node, "a")
        await node.add("v3", "m3")
        assert [one.label for one in await world.app.moments(Node, "a")] == ["m1", "m3"]
        assert len(await values(world, "m1", tmp_path / "then")) == 1


async def test_a_move_does_not_wait_for_the_histories_of_other_trees(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        recorder = world.node.history
        assert isinstance(recorder, HistoryRecorder)
        over, waited = threading.Event(), list[bool]()
        recorder._thread.put(  # pyright: ignore[reportPrivateUsage] - as the base of a large tree
            lambda: waited.append(over.wait(10)), lambda error, result: None
        )
        await node.add("v2", "m2")
        await world.app.move(Node, "a", to="b")
        over.set()
        await (await world.get_agent(Node, "b")).add("v3", "m3")
        root = Address.parse("Node:b")
        for number in (1, 2, 3):
            rows = (await then(world, f"m{number}", tmp_path / "then", root))["root"]
            assert len([line for line in rows if line.startswith("(") and "'v" in line]) == number
        assert waited == [True]
        await world.app.move(Node, "b", to="a")
        assert [one.label for one in await world.app.moments(Node, "a")] == ["m1", "m2", "m3"]


async def test_a_destruction_does_not_wait_for_a_base_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        await world.app.moments(Node, "a")
        over, reached, waited = threading.Event(), asyncio.Event(), list[bool]()
        loop, size = asyncio.get_running_loop(), images._checked_size  # pyright: ignore[reportPrivateUsage]

        def slow(path: Path) -> int:
            loop.call_soon_threadsafe(reached.set)
            waited.append(over.wait(10))
            return size(path)

        monkeypatch.setattr(images, "_checked_size", slow)
        recorder = world.node.history
        assert isinstance(recorder, HistoryRecorder)
        recorder.replaced(ROOT)  # it needs a new base
        await node.add("v2", "m2")
        await reached.wait()
        recorder.forget(ROOT, is_destroyed=True)
        over.set()
        await world.settled()
        await recorder.settle(ROOT)
        assert waited == [True]
        assert not history_folder(world.data, ROOT).exists()


async def test_the_past_of_a_tree_that_wakes_during_a_sweep_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = replace(DEFAULTS, history_sweep_interval=30.0)
    async with running(App(agents=[Node]), history=60, timings=timings) as world:
        await (await world.get_agent(Node, "a")).add("v1", "m1")
        await world.restart()
        reached, over = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()
        last_at = history_sweep._last_at  # pyright: ignore[reportPrivateUsage]

        def paused(segment: Path) -> float:
            loop.call_soon_threadsafe(reached.set)
            assert over.wait(10)
            return last_at(segment) - DAY

        recorder = world.node.history
        assert isinstance(recorder, HistoryRecorder)
        monkeypatch.setattr(history_sweep, "_last_at", paused)
        recorder._sweep()  # pyright: ignore[reportPrivateUsage]
        await reached.wait()
        await (await world.get_agent(Node, "a")).add("v2", "m2")
        over.set()
        assert len(await values(world, "m2", tmp_path / "then")) == 2
        assert len(await values(world, "m1", tmp_path / "then")) == 1


async def test_the_past_of_a_renamed_class_stays(tmp_path: Path) -> None:
    @agent(type="old-node")
    class Old(Node):
        pass

    @agent(type="new-node", aliases=("old-node",))
    class New(Node):
        pass

    async with running(App(agents=[Old]), history=DAY) as world:
        await (await world.get_agent(Old, "a")).add("v1", "m1")
        await world.app.__aexit__()
        world._given = App(agents=[New])  # pyright: ignore[reportPrivateUsage]
        await world.start()
        await (await world.get_agent(New, "a")).add("v2", "m2")
        root = Address.parse("new-node:a")
        for name, count in (("m1", 1), ("m2", 2)):
            held = await then(world, name, tmp_path / "then", root)
            assert sum("'v" in line for line in held["root"]) == count


async def test_a_tree_that_was_replaced_while_none_was_recorded_begins_again(tmp_path: Path) -> None:
    async with running(App(agents=[Node]), history=DAY) as world:
        node = await world.get_agent(Node, "a")
        await node.add("v1", "m1")
        await node.add("v2", "m2")
        await world.app.__aexit__()
        world.settings = replace(world.settings, history=0)
        await world.start()
        await world.app.rewind(Node, "a", at="m1")  # all of it is recorded, so it can be read
        await world.restart()
        with pytest.raises(UsageError, match="No history is kept here"):
            await then(world, "m1", tmp_path / "then")
        await world.app.__aexit__()
        world.settings = replace(world.settings, history=DAY)
        await world.start()
        await (await world.get_agent(Node, "a")).add("v3", "m3")
        assert [line.split("'")[1] for line in await values(world, "m3", tmp_path / "then")] == ["v1", "v3"]
        assert len(await values(world, "m2", tmp_path / "then")) == 2
