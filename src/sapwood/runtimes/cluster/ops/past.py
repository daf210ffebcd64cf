"""The past of the trees of a cluster: what its archive has."""

from __future__ import annotations

from typing import Any

from sapwood.address import Address
from sapwood.errors import StoredDataError
from sapwood.kernel.log.restore import TreeContent
from sapwood.kernel.ports.log import Archive
from sapwood.kernel.ports.shards import shard_of
from sapwood.runtimes.cluster.base.layout import Names
from sapwood.runtimes.cluster.copies.log_shipper import Shipper
from sapwood.runtimes.cluster.ops.recovery import tree_at


class ArchivePast:
    """Reads the past of trees from the archive of a cluster."""

    def __init__(self, connection: Any, names: Names, archive: Archive) -> None:
        self._connection = connection
        self._names = names
        self._archive = archive

    async def tree_at(self, root: Address, until: float) -> TreeContent | None:
        """Return a tree as it was at a time, or `None` if there was none, or it is older than what is kept."""
        stream = self._names.layout.stream_of(shard_of(root))
        await Shipper(self._connection, self._names, stream, self._archive).ship()  # all that was stored up to now
        lost: dict[str, str] = {}
        state = await tree_at(self._archive, self._names, root, until, lost)
        if lost:
            why = "; ".join(lost.values())
            raise StoredDataError(f"The archive is damaged, so the past of {root} is not whole: {why}")
        return state
