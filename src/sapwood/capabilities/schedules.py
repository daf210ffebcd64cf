"""What an agent wishes to be called on itself later: once, at intervals, or by the calendar."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from sapwood.capabilities.call_rows import CallRow, retry_of
from sapwood.capabilities.due_work import Agenda
from sapwood.capabilities.stored_method import method_of, pack
from sapwood.capabilities.stored_rows import shown, time_of
from sapwood.kernel.actors.actor import Actor
from sapwood.when import After, At, Cron, Every, wished

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One scheduled call."""

    id: str
    """The id for `schedules.cancel` and `schedules.get`."""
    method: str
    """The method that will be called."""
    arguments: dict[str, Any]
    """The arguments of the call."""
    when: After | At | Every | Cron
    """When the method is called: `After`, `At`, `Every` or `Cron`."""
    due_at: datetime
    """When the next call is due; after a failure, when it is retried."""
    failed: int
    """The number of failed attempts so far."""
    error: str | None
    """The last error message."""
    created_at: datetime
    """When it was scheduled."""


class Schedules:
    """The schedules of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._calls = actor.of(Agenda).calls
        self._rows = self._calls.rows

    def add(
        self, when: object, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Schedule:
        """Store a call to come, with what else this slice writes."""
        self._actor.check_use()
        wish = wished(when)  # pyright: ignore[reportArgumentType] - unchecked programs exist
        method = method_of(self._actor, function, "schedule()")
        arguments = pack(self._actor, method, args, kwargs)
        same = _sameness(wish, method.name, arguments)
        agenda = self._actor.of(Agenda)
        due = wish.first(self._actor.host.clock.now())
        if same is not None:
            for row in self._rows.find("WHERE dedup_key = ?", same):
                if self._calls.is_running(row.number) and isinstance(row.when(), After | At):
                    self._rows.release_key(row.number)  # this one is about to be over: the wish is for another
                elif _is_same(row, wish, method.name, arguments):
                    return self._shown(row)
                else:
                    if (
                        row.due_at is not None
                        and row.when().stored() == wish.stored()
                        and wish.next(due, due) is not None
                    ):
                        due = min(due, row.due_at)  # the same times: what is owed is owed still, by another method
                    self._rows.remove(row)
        row = self._rows.add(method.name, arguments, due=due, retry=wish.retry, wish=wish, dedup_key=same)
        agenda.note(due)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("scheduled", extra={"address": str(self._actor.address), "method": method.name, "due": due})
        return self._shown(row, wish)

    def cancel(self, id: str) -> bool:
        """Forget a call to come; return whether there was one."""
        found = self._find(id)
        if found is None:
            return False
        self._rows.remove(found)
        self._actor.of(Agenda).settle_soon()
        log.debug("schedule cancelled", extra={"address": str(self._actor.address), "method": found.method})
        return True

    def get(self, id: str) -> Schedule | None:
        """Return one call to come."""
        found = self._find(id)
        return None if found is None else self._shown(found)

    def list(self, limit: int) -> list[Schedule]:
        """Return calls to come, in the order they are due."""
        self._actor.check_use()
        rows = self._rows.find(
            "WHERE schedule IS NOT NULL AND due_at IS NOT NULL ORDER BY due_at, number LIMIT ?", limit
        )
        return [self._shown(row) for row in rows]

    def _find(self, id: str) -> CallRow | None:
        self._actor.check_use()
        number = self._rows.ids.number_of(id)
        rows = [] if number is None else self._rows.find("WHERE number = ? AND schedule IS NOT NULL", number)
        if not rows:
            rows = self._rows.find("WHERE dedup_key = ?", f"key {id}")
        return rows[0] if rows else None

    def _shown(self, row: CallRow, wish: After | At | Every | Cron | None = None) -> Schedule:
        return Schedule(
            self._rows.ids.id_of(row.number),
            row.method,
            shown(row.arguments),
            wish or _wish_of(row),
            time_of(row.due_at or 0.0),
            row.failures,
            row.error,
            time_of(row.created_at),
        )


def _wish_of(row: CallRow) -> After | At | Every | Cron:
    key = row.dedup_key.removeprefix("key ") if row.dedup_key is not None and row.dedup_key.startswith("key ") else None
    return msgspec.structs.replace(row.when(), key=key, retry=retry_of(row.retry))


def _sameness(wish: After | At | Every | Cron, method: str, arguments: bytes) -> str | None:
    """Return what makes a wish the same as another: its key, or for one that repeats all that it says."""
    if wish.key is not None:
        return f"key {wish.key}"
    if isinstance(wish, After | At):
        return None
    said = msgspec.json.encode([wish.stored(), method, arguments])
    return f"said {hashlib.sha256(said).hexdigest()}"


def _is_same(row: CallRow, wish: After | At | Every | Cron, method: str, arguments: bytes) -> bool:
    return (
        row.method == method
        and row.arguments == arguments
        and row.when().stored() == wish.stored()
        and retry_of(row.retry) == wish.retry
    )
