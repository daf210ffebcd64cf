"""The log and the archive in the memory of one process: as strict as the real ones, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sapwood.errors import Unavailable
from sapwood.kernel.ports.log import Entry, Epoch, Fenced, Full, Record


class _Stored(NamedTuple):
    shard: int
    is_alarm: bool
    record: Record


class MemoryLog:
    """A `FencedLog` that ends with the process. Nodes of one process share it."""

    def __init__(self, streams: int = 1) -> None:
        self._streams = streams
        self._owners: dict[int, int] = {}
        self._stored: list[list[_Stored]] = [[] for _ in range(streams)]
        self._last = [0] * streams
        self._places: dict[str, int] = {}
        """Where each entry lies, by its id."""
        self.appends: list[int] = []
        """How many entries each append had."""
        self.is_reachable = asyncio.Event()
        self.is_reachable.set()
        self.in_doubt = False
        """Whether appends store what they are given and then report an unknown outcome."""
        self.is_full = False

    def own(self, shard: int) -> int:
        """Make the caller the owner of a shard; return the sequence of its ownership."""
        self._owners[shard] = self._next(self.stream_of(shard))
        return self._owners[shard]

    def _next(self, stream: int) -> int:
        self._last[stream] += 1
        return self._last[stream]

    async def append(self, entries: Sequence[Entry], epochs: Mapping[int, Epoch]) -> list[int]:
        streams = {self.stream_of(entry.shard) for entry in entries}
        if len(streams) != 1:
            raise ValueError("what is stored together lies in one stream")
        (stream,) = streams
        await asyncio.sleep(0)
        await self.is_reachable.wait()
        if all(entry.id in self._places for entry in entries):
            return [self._places[entry.id] for entry in entries]
        lost = {shard for shard in {entry.shard for entry in entries} if self._owners.get(shard) != epochs[shard][1]}
        if lost:
            raise Fenced(lost)
        if self.is_full:
            raise Full("The log is full.")
        self.appends.append(len(entries))
        for entry in entries:
            self._store(stream, entry)
        if self.in_doubt:
            raise Unavailable("The log did not answer.")
        return [self._places[entry.id] for entry in entries]

    async def has_room(self, stream: int, size: int) -> bool:
        return not self.is_full

    def _store(self, stream: int, entry: Entry) -> None:
        if entry.is_alarm or entry.replaces:
            self._remove(entry.shard, entry.tree, is_alarm=entry.is_alarm, up_to=self._last[stream])
        place = self._places[entry.id] = self._next(stream)
        if entry.data or not entry.is_alarm:
            self._stored[stream].append(_Stored(entry.shard, entry.is_alarm, Record(entry.tree, place, entry.data)))

    def _remove(self, shard: int, tree: str, *, is_alarm: bool, up_to: int) -> None:
        stream = self.stream_of(shard)

        def stays(one: _Stored) -> bool:
            return (one.shard, one.record.tree, one.is_alarm) != (shard, tree, is_alarm) or one.record.sequence > up_to

        self._stored[stream] = [one for one in self._stored[stream] if stays(one)]

    async def read(self, shard: int, tree: str, after: int = 0) -> list[Record]:
        await self.is_reachable.wait()
        return [
            one.record
            for one in self._stored[self.stream_of(shard)]
            if one.shard == shard and one.record.tree == tree and not one.is_alarm and one.record.sequence > after
        ]

    async def alarms(self, shards: Collection[int]) -> list[Record]:
        await self.is_reachable.wait()
        return [one.record for stored in self._stored for one in stored if one.is_alarm and one.shard in shards]

    async def trees(self, shards: Collection[int]) -> dict[int, dict[str, int]]:
        await self.is_reachable.wait()
        found: dict[int, dict[str, int]] = {shard: {} for shard in shards}
        for one in (one for stored in self._stored for one in stored):
            if one.shard in found and not one.is_alarm:
                trees = found[one.shard]
                trees[one.record.tree] = trees.get(one.record.tree, 0) + 1
        return found

    async def drop(self, shard: int, tree: str, up_to: int) -> None:
        await self.is_reachable.wait()
        self._remove(shard, tree, is_alarm=False, up_to=up_to)

    def stream_of(self, shard: int) -> int:
        return shard % self._streams


class MemoryArchive:
    """An `Archive` that ends with the process."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes, *, only_new: bool = False) -> bool:
        await asyncio.sleep(0)
        if only_new and key in self.objects:
            return False
        self.objects[key] = bytes(data)
        return True

    async def get(self, key: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.objects.get(key)

    async def put_file(self, key: str, path: Path) -> None:
        self.objects[key] = await asyncio.to_thread(path.read_bytes)

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        await asyncio.sleep(0)
        found = self.objects.get(key)
        return None if found is None else found[start:end]

    async def size(self, key: str) -> int | None:
        await asyncio.sleep(0)
        return len(self.objects[key]) if key in self.objects else None

    async def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield key

    async def remove(self, keys: Sequence[str]) -> None:
        await asyncio.sleep(0)
        for key in keys:
            self.objects.pop(key, None)
