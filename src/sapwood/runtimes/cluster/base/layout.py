"""What a cluster is called and how it is cut: streams, shards, and the cell of servers that each shard lies in.

How many streams there are is decided once, when the cluster is made, and kept in it: where
something is stored follows from its name.
"""

from __future__ import annotations

import msgspec

from sapwood.kernel.ports.shards import SHARDS


class Layout(msgspec.Struct, frozen=True):
    """How a cluster is cut. Never changed once it is made."""

    streams: int = 8
    replicas: int = 3
    cells: int = 1
    """Groups of servers of their own. A shard stays in one of them permanently; there is one for now."""

    def cell_of(self, shard: int) -> int:
        """Return which cell a shard lies in."""
        return shard * self.cells // SHARDS

    def stream_of(self, shard: int) -> int:
        """Return which stream a shard lies in, counted over all cells."""
        return self.cell_of(shard) * self.streams + shard % self.streams


class Names:
    """What everything of a cluster is called in NATS."""

    def __init__(self, cluster: str, layout: Layout) -> None:
        self.cluster = cluster
        self.layout = layout

    def stream(self, number: int) -> str:
        """Return the name of a stream of the log."""
        return f"{self.cluster}-log-{number}"

    def subjects(self, number: int) -> str:
        """Return what a stream of the log holds."""
        return f"{self.cluster}.log.{number}.>"

    def owner(self, shard: int) -> str:
        """Return where it stands who owns a shard."""
        return f"{self._shard(shard)}.owner"

    def owners(self, stream: int) -> str:
        """Return where it stands who owns the shards of a stream."""
        return f"{self.cluster}.log.{stream}.*.owner"

    def tree(self, shard: int, tree: str) -> str:
        """Return where the commits of a tree are stored."""
        return f"{self._shard(shard)}.tree.{tree}"

    def alarm(self, shard: int, tree: str) -> str:
        """Return where it stands when a tree has to be woken."""
        return f"{self._shard(shard)}.alarm.{tree}"

    def _shard(self, shard: int) -> str:
        return f"{self.cluster}.log.{self.layout.stream_of(shard)}.{shard}"

    @property
    def members(self) -> str:
        """The name of the stream that has the cluster's layout, its archive's id and the leases of its nodes."""
        return f"{self.cluster}-nodes"

    @property
    def setup(self) -> str:
        """Return where the layout stands."""
        return f"{self.cluster}.nodes.setup"

    @property
    def archive(self) -> str:
        """Return where it stands which archive is the cluster's own."""
        return f"{self.cluster}.nodes.archive"

    def lease(self, node: str) -> str:
        """Return where the lease of a node stands."""
        return f"{self.cluster}.nodes.lease.{node}"

    def speech(self, node: str) -> str:
        """Return where a node listens to others."""
        return f"{self.cluster}.to.{node}"

    def ask(self, node: str) -> str:
        """Return where a node is asked to hand over shards."""
        return f"{self.cluster}.ask.{node}"

    def mend(self, node: str) -> str:
        """Return where a node is asked to mend a tree."""
        return f"{self.cluster}.mend.{node}"

    @property
    def news(self) -> str:
        """Where nodes tell each other which shards they took and released."""
        return f"{self.cluster}.news"

    @property
    def who(self) -> str:
        """The subject on which all nodes answer."""
        return f"{self.cluster}.who"
