"""Before new code goes live: does everything that is stored fit it?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sapwood.app import App
from sapwood.capabilities.fitting import unfit
from sapwood.errors import FolderInUse, UsageError
from sapwood.kernel.classes import known
from sapwood.kernel.fitting import Misfit
from sapwood.kernel.node import TREES
from sapwood.storage.files import held_still


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a data folder."""

    data: str
    counts: dict[str, int]
    """How much was looked at, by what it is."""
    misfits: list[Misfit]
    """What does not fit."""


def examine(folder: Path, app: App, counts: Counter[str] | None = None) -> Report:
    """Read everything that is stored as the app would read it. Nothing is changed; `counts` grow meanwhile."""
    if not (folder / TREES).is_dir():
        raise UsageError(f"{str(folder)!r} is no data folder: it has no {TREES!r} in it. Name one with --data.")
    counts = Counter() if counts is None else counts
    try:
        with held_still(folder):
            misfits = list(unfit(folder, [known(cls) for cls in app.agents], counts))
    except FolderInUse as error:
        raise UsageError(
            f"{error} Stop it, or look at a copy: sapwood backup COPY --data {folder}, and this again with --data COPY."
        ) from None
    return Report(str(folder), dict(counts), misfits)
