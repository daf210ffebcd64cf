"""What a node does so that its local files are what the log says, and the log stays short."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sapwood.address import Address
from sapwood.kernel.ports import Archive, Epoch, FencedLog
from sapwood.storage.files import Files

if TYPE_CHECKING:
    from sapwood.kernel.tree import Tree


class Keeper:
    """Brings trees to this node, puts them away, and has the archive take what the log need not hold."""

    def __init__(
        self,
        log: FencedLog,
        archive: Archive,
        gate: object,
        files: Files,
        *,
        epoch_of: Callable[[int], Epoch | None],
        park_after: float = 600.0,
        history: float = 7 * 86400.0,
    ) -> None:
        self._log = log
        self._archive = archive
        self._gate = gate
        self._files = files
        self._epoch_of = epoch_of
        self._park_after = park_after
        self._history = history

    async def bring(self, root: Address, folder: Path, aliases: Sequence[Address] = ()) -> None:
        """Make the folder of a tree what the log and the archive say, and let the gate go on from there.

        To be awaited before anything of a tree that is not open is looked at. `aliases`: addresses the tree may have
        had before its class got another type id. `ChainBroken` if what is stored is not whole and nobody has a copy
        that is; `Unavailable` if the log or the archive cannot be reached.
        """
        raise NotImplementedError

    async def put_away(self, root: Address, folder: Path) -> None:
        """Note what the files of a tree are, which was closed with all it wrote in the log: they need no restoring."""
        raise NotImplementedError

    async def destroyed(self, root: Address) -> None:
        """Have the archive forget a tree whose end is in the log."""
        raise NotImplementedError

    def look_after(self, open_trees: Callable[[], Collection[Tree]], owned: Callable[[], Collection[int]]) -> None:
        """Begin to snapshot, park and sweep: the trees that are open here, and those of these shards that are not."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop what `look_after` began."""
        raise NotImplementedError
