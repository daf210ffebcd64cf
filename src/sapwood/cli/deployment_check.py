"""Check before a deployment that the stored data fits the new code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sapwood.app import App
from sapwood.capabilities.stored_data_check import unfit
from sapwood.errors import FolderInUse, UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.kernel.node.data_folder import TREES, OddEntry, odd_in
from sapwood.kernel.node.upgrade_check import Misfit
from sapwood.storage.files import held_still


@dataclass(frozen=True, slots=True)
class Report:
    """The result of checking a data folder."""

    data: str
    counts: dict[str, int]
    """How many objects were checked, by kind."""
    misfits: list[Misfit]
    """The objects that do not fit."""
    odd: list[OddEntry]
    """The entries of the folder that are not trees, or cannot be read as one."""

    @property
    def fits(self) -> bool:
        """Whether all data was checked, and fits."""
        return not self.misfits and not any(one.has_data for one in self.odd)


def examine(folder: Path, app: App, counts: Counter[str] | None = None) -> Report:
    """Read all stored data as the app would read it. Changes nothing; `counts` grows as it proceeds."""
    if not (folder / TREES).is_dir():
        raise UsageError(
            f"{str(folder)!r} is not a data folder: it has no {TREES!r}. Pass the data folder with --data."
        )
    counts = Counter() if counts is None else counts
    try:
        with held_still(folder):
            misfits = list(unfit(folder, [known(cls) for cls in app.agents], counts))
            odd = odd_in(folder)
    except FolderInUse as error:
        raise UsageError(
            f"{error} Stop the process, or check a copy: sapwood backup COPY --data {folder}, then run this "
            "with --data COPY."
        ) from None
    return Report(str(folder), dict(counts), misfits, odd)
