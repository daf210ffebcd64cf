"""The journal of a run that a method executes: its attempts, and at its end the times of what its code did.

It is a column of the run, because a run of a plain agent that did nothing else must not pay for tables of records.
While the run is open, the times of its steps and questions are read from their own tables, which its end deletes.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from sapwood.capabilities.redaction import Redaction
from sapwood.capabilities.spans import Spans
from sapwood.capabilities.steps import Steps
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.tables.journal import MAX_ENTRIES, Attempt, Journal, entries_of, journal_in
from sapwood.runs.tables.own_questions import OwnQuestions


class RunJournals:
    """The journals of the runs that methods of one agent execute. Every change belongs to the open slice."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._db = actor.database
        self._spans = actor.of(Spans)
        self._journals: dict[str, Journal] = {}
        """Those of the runs that are open, as they are stored."""

    def begin(self, run: str, fiber: int, remote: dict[str, Any] | None = None) -> None:
        """Begin the journal of a run that this fiber executes. The statement that starts the run stores it."""
        if self._spans.are_kept:
            self._keep(run, Journal(fiber, remote=remote))

    def at_start(self, run: str) -> str | None:
        """Return the journal of a run that starts now; `None` if it has none."""
        journal = self._journals.get(run)
        return None if journal is None else msgspec.json.encode(journal).decode()

    def begin_again(self, run: str, since: float) -> None:
        """Note that a run is executed again after it was interrupted."""
        if (journal := self._get(run)) is not None and len(journal.attempts) < MAX_ENTRIES:
            incarnation = self._spans.note_incarnation(since)
            attempt = Attempt(self._actor.host.clock.now(), incarnation)
            self._put(run, replace(journal, attempts=[*journal.attempts, attempt]))

    def remote(self, run: str, facts: dict[str, Any]) -> None:
        """Note what is known of a run on another server."""
        if (journal := self._get(run)) is None:
            return
        before = journal.remote or {}
        if (after := before | facts) != before:
            self._put(run, replace(journal, remote=after))

    def at_end(self, run: str) -> str | None:
        """Return the journal of a run that ends now, with what its code did: the tables forget it. `None`: as it is."""
        steps, questions = self._actor.of(Steps), self._actor.of(OwnQuestions)
        journal = self._get(run) if steps.exist or questions.exist else None
        self._forget(run)
        if journal is None:
            return None
        work = WorkId.fiber(journal.fiber)
        found = entries_of(steps.times(work, MAX_ENTRIES), questions.times(work, MAX_ENTRIES))
        if not found:
            return None
        redact = self._actor.host.shared(Redaction).apply
        entries = [one if one.kind == "wait" else replace(one, name=redact("name", one.name)) for one in found]
        text = msgspec.json.encode(replace(journal, entries=entries)).decode()
        return text if self._spans.have_room(len(text)) else None

    def _get(self, run: str) -> Journal | None:
        return self._journals.get(run) or self._read(run)

    def _read(self, run: str) -> Journal | None:
        rows = self._db.execute("SELECT journal FROM sapwood_served_runs WHERE id = ?", run)
        return None if not rows or rows[0][0] is None else journal_in(rows[0][0])

    def _put(self, run: str, journal: Journal) -> None:
        self._keep(run, journal)
        text = msgspec.json.encode(journal).decode()
        self._db.execute("UPDATE sapwood_served_runs SET journal = ? WHERE id = ?", text, run)

    def _keep(self, run: str, journal: Journal) -> None:
        self._db.on_undo(lambda: self._forget(run))
        self._journals[run] = journal

    def _forget(self, run: str) -> None:
        self._journals.pop(run, None)
