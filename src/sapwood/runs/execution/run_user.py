"""For whom a run is executed: the user whose message began the turn that started it, however far above."""

from __future__ import annotations

from sapwood.kernel.actors.actor import Actor
from sapwood.runs.execution.run_hooks import TurnCause, run_hooks
from sapwood.runs.tables.runs_table import RunsTable


def user_of(actor: Actor, cause: TurnCause) -> str | None:
    """Return the id of the user for whom an agent works now, on a turn or a run that has this cause.

    A run works for the turn that started it, also if that has ended, and the agent above works for another user since.
    """
    found: TurnCause | None = cause
    for above in [*actor.lineage()][1:]:
        if found is None or found.user is not None:
            break
        if found.run is not None:
            found = _started_by(above, found.run)
        else:  # the turn that the agent above executes has called the agent below, without a run
            found = run_hooks(above).turn_cause() or TurnCause()
    return None if found is None else found.user


def _started_by(above: Actor, run: str) -> TurnCause | None:
    """Return what started a run; `None` if that was neither a turn nor a run."""
    row = RunsTable(above.database, above.host.clock).get(run)
    work = None if row is None else row.work_id
    if work is None or work.kind != "run":
        owner = run_hooks(above).owner()
        return None if owner is None else TurnCause(owner)
    return run_hooks(above).turn_cause(work.id) or TurnCause(run=work.id)
