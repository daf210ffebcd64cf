"""Does what is stored fit the program? Everything in a data folder is read as the program would read it later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sapwood.capabilities import call_rows, fiber_rows, state, steps
from sapwood.errors import StoredDataError
from sapwood.kernel.marshal.agent_class import AgentClass
from sapwood.kernel.node import upgrade_check as kernel
from sapwood.kernel.node.upgrade_check import RESTORE, Misfit, StoredAgent, Survey

CHECKS: tuple[Callable[[StoredAgent], Iterator[Misfit]], ...] = (
    state.unfit,
    call_rows.unfit,
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


def _unfit_in(stored: StoredAgent) -> Iterator[Misfit]:
    for check in CHECKS:
        try:
            yield from check(stored)
        except StoredDataError as error:
            yield stored.misfit("database", str(error), RESTORE)
