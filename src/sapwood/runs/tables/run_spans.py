"""Records the runs that one agent starts: a span in the work that started each."""

from __future__ import annotations

from sapwood.capabilities.spans import Spans
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.tables.runs_table import RunRow


class RunSpans:
    """The spans of the runs that one agent has started."""

    def __init__(self, actor: Actor) -> None:
        self._spans = actor.of(Spans)

    def begin(self, row: RunRow) -> None:
        """Record that a run is started."""
        self._begin(row, None)

    def begin_again(self, row: RunRow) -> None:
        """Record that a run is started again after it was interrupted."""
        if self._spans.are_kept:
            self._begin(row, 1 + self._spans.attempts(_work(row), "run", row.id))

    def _begin(self, row: RunRow, attempt: int | None) -> None:
        self._spans.begin(
            "run", _work(row), row.type, key=row.id, attempt=attempt, child=row.name, tool_call=row.tool_call
        )

    def end(self, row: RunRow) -> None:
        """Record how a run ended."""
        work = _work(row)
        span = self._spans.find(work, "run", row.id)
        # One that was interrupted may still end: the agent that executes it was only out of reach.
        number = self._spans.reopen(work, "run", row.id) if span is None else span.number
        if number is not None:
            self._spans.end(number, row.status, reason=row.reason)


def _work(row: RunRow) -> str:
    """Return the work that a run is part of; one that no work waits for is work of its own."""
    return str(row.work_id or WorkId.run(row.id))
