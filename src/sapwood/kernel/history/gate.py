"""A gate that tells the history of each commit. What it decides, the gate below it decides."""

from __future__ import annotations

from sapwood.kernel.durability.gate_layer import GateLayer
from sapwood.kernel.history.recorder import HistoryRecorder
from sapwood.kernel.ports.durability import Commit, Gate
from sapwood.storage.database import Database


class HistoryGate(GateLayer):
    """The gate of a node whose trees have a past."""

    def __init__(self, below: Gate, history: HistoryRecorder) -> None:
        super().__init__(below)
        self._history = history

    def opened(self, database: Database) -> None:
        super().opened(database)
        self._history.opened(database)

    def committed(self, commit: Commit) -> None:
        super().committed(commit)
        if commit.root is not None:
            self._history.committed(commit)

    def forget(self, database: Database) -> None:
        super().forget(database)
        self._history.closed(database)

    def close(self) -> None:
        super().close()
        self._history.close()
