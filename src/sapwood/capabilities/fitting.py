"""Does what is stored fit the program? Everything in a data folder is read as the program would read it later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sapwood.capabilities import calls, fiber_rows, state, steps
from sapwood.errors import StoredDataError
from sapwood.kernel import fitting as kernel
from sapwood.kernel.classes import AgentClass
from sapwood.kernel.fitting import RESTORE, Misfit, Stored, Survey

CHECKS: tuple[Callable[[Stored], Iterator[Misfit]], ...] = (
    state.unfit,
    calls.unfit,
    fiber_rows.unfit,
    steps.unfit,
    kernel.unfit,  # last: from there on a copy is read
)


def unfit(folder: Path, roots: Sequence[AgentClass], counts: Counter[str]) -> Iterator[Misfit]:
    """Return what is stored in a data folder and no longer fits; `counts` says how much was looked at."""
    for found in Survey(folder, roots, counts).agents():
        if isinstance(found, Misfit):
            yield found
        else:
            yield from _unfit_in(found)


def _unfit_in(stored: Stored) -> Iterator[Misfit]:
    for check in CHECKS:
        try:
            yield from check(stored)
        except StoredDataError as error:
            yield stored.misfit("database", str(error), RESTORE)
