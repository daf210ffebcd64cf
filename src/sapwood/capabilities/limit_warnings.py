"""Calls the hook of an agent once in each period in which one of its limits comes near."""

from __future__ import annotations

from sapwood.capabilities.queue import Queue
from sapwood.kernel.actors.actor import Actor
from sapwood.periods import KEPT_PERIODS, LimitWarning
from sapwood.storage.migrations import Schema

WARNINGS = Schema("sapwood.capabilities", "limit_warnings")
METHOD = "_sapwood_limit_near"
"""The method that calls the hook `on_limit_near`."""
QUEUE = "sapwood limits"


class LimitWarnings:
    """The warnings of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._has_hook = actor.kind.overrides("on_limit_near")

    def add(self, warning: LimitWarning) -> None:
        """Queue the call of the hook, in one commit with a row that says so, unless there is such a row."""
        if not self._has_hook or self._has(warning):
            return
        database = self._actor.database
        database.begin()
        with database.block():  # else a call that cannot be queued would leave the row, and no warning in this period
            self._add_row(warning)
            self._actor.of(Queue).call_back(QUEUE, METHOD, "warning", warning)

    def _add_row(self, warning: LimitWarning) -> None:
        database, (*limit, starts_at, _) = self._actor.database, _key(warning)
        database.ensure(WARNINGS)
        database.execute("INSERT INTO sapwood_limit_warnings VALUES (?, ?, ?, ?, ?)", *_key(warning))
        database.execute(
            "DELETE FROM sapwood_limit_warnings WHERE name = ?1 AND period = ?2 AND zone = ?3 AND starts_at NOT IN"
            " (SELECT DISTINCT starts_at FROM sapwood_limit_warnings WHERE name = ?1 AND period = ?2 AND zone = ?3"
            " ORDER BY abs(starts_at - ?4) LIMIT ?5)",
            *limit,
            starts_at,
            KEPT_PERIODS,
        )

    def _has(self, warning: LimitWarning) -> bool:
        if not self._actor.database.has(WARNINGS):
            return False
        return bool(
            self._actor.database.execute(
                "SELECT 1 FROM sapwood_limit_warnings"
                " WHERE name = ? AND period = ? AND zone = ? AND starts_at = ? AND threshold = ?",
                *_key(warning),
            )
        )


def _key(warning: LimitWarning) -> tuple[str, str, str, float, float]:
    return (warning.limit, warning.period, warning.zone, warning.starts_at.timestamp(), warning.threshold)
