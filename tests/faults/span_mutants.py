"""Ways to break records on purpose: spans are lost, and spans are doubled."""

from __future__ import annotations

from collections.abc import Callable

from sapwood.capabilities.spans import SpanRow, Spans


def records_apart() -> None:
    """What is recorded is not in the commit of what happened, but in another a while later: a death loses it."""

    def put(self: Spans, row: SpanRow) -> None:
        opened = self._read()
        if row.is_open:
            opened[row.number] = row
            self._numbers[self._names[row.number]] = row.number
        else:
            self._close(opened, row)
        self._changed[row.number] = row
        self._actor.host.loop.call_later(0.003, write, self)

    def write(self: Spans) -> None:
        if self._actor.dropped is None and not self._actor.detached:
            self.write()

    Spans._put = put


def attempts_again() -> None:
    """A process does not know what an earlier one had begun: it records it once more."""

    def read(self: Spans) -> dict[int, SpanRow]:
        if self._open is None:
            found = before(self)
            self._attempts.clear()
            return found
        return self._open

    before = Spans._read
    Spans._read = read


MUTANTS: dict[str, Callable[[], None]] = {"records-apart": records_apart, "attempts-again": attempts_again}
