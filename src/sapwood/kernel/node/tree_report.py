"""What a backup, a restore or a verification found: how many trees are whole, and which are damaged."""

from __future__ import annotations

import msgspec

from sapwood.kernel.node.data_folder import OddEntry

FIRST = 5
"""How many trees an error names."""


class DamagedTree(msgspec.Struct, frozen=True):
    """A tree that is not whole."""

    root: str
    """Its address; its id if the address is unknown."""
    problems: list[str]
    """What is damaged, in sentences."""

    def __str__(self) -> str:
        return f"{self.root} is damaged. {' '.join(self.problems)}"


class TreeReport(msgspec.Struct):
    """The trees of a data folder, a backup or a cluster that were gone through."""

    trees: int = 0
    """How many were whole and are done: copied, restored, or only checked."""
    damaged: list[DamagedTree] = msgspec.field(default_factory=list[DamagedTree])
    odd: list[OddEntry] = msgspec.field(default_factory=list[OddEntry])
    """The entries of the folder that are not trees, or cannot be read as one."""

    @property
    def is_whole(self) -> bool:
        """Whether every tree is whole. An odd entry without databases is no tree."""
        return not self.damaged and not any(entry.has_data for entry in self.odd)

    def note(self, root: str, problems: list[str]) -> None:
        """Count a tree, or name it if it is damaged."""
        if problems:
            self.damaged.append(DamagedTree(root, problems))
        else:
            self.trees += 1

    def add(self, other: TreeReport) -> None:
        """Add what another node has gone through."""
        self.trees += other.trees
        self.damaged += other.damaged
        self.odd += other.odd

    def sentences(self) -> list[str]:
        """Return each damaged tree, and each odd entry with data, in sentences."""
        odd = [f"{entry.problem} {entry.remedy}" for entry in self.odd if entry.has_data]
        return [*map(str, self.damaged), *odd]

    def summary(self) -> str:
        """Return the first sentences as one text."""
        told = self.sentences()
        more = [f"And {len(told) - FIRST} more."] if len(told) > FIRST else []
        return " ".join([*told[:FIRST], *more])


read_report = msgspec.msgpack.Decoder(TreeReport).decode
