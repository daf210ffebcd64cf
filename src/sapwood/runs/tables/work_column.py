"""How the work that a run is part of is stored: the id of a turn or run as it is, a fiber with a prefix."""

from __future__ import annotations

from sapwood.kernel.ports.work_id import WorkId

FIBER = "sapwood fiber "
"""The prefix of fibers. Runs and turns have ids that users choose, so it is unlikely to be one of theirs."""


def stored_work(work: WorkId) -> str:
    """Return the text of the column `work`."""
    return f"{FIBER}{work.id}" if work.kind == "fiber" else work.id


def work_of(stored: str) -> WorkId:
    """Return the work that the column `work` names."""
    return WorkId("fiber", stored.removeprefix(FIBER)) if stored.startswith(FIBER) else WorkId.run(stored)
