"""The whole inputs of runs: the caller's table has only a preview of each.

The caller holds an input in memory until the sub-agent takes it. From then on the sub-agent's database has it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sapwood.kernel.actors.actor import Actor
from sapwood.runs.tables import executed_runs_table
from sapwood.storage.database import Database

InputDetail = Literal["preview", "full"]
"""How much of an input a start event carries."""
INPUT_DETAILS: tuple[InputDetail, ...] = ("preview", "full")


class PendingInputs:
    """The inputs, as JSON, that one agent has for sub-agents that have not taken them yet."""

    def __init__(self, actor: Actor) -> None:
        self.by_run: dict[str, bytes] = {}


def full_input(run: str, caller: Actor | None, child: Database | None, otherwise: Any) -> Any:
    """Return the whole input of a run; `otherwise` if neither its sub-agent nor its caller has it."""
    if child is not None and executed_runs_table.find(child, run) is not None:
        return msgspec.json.decode(executed_runs_table.input_of(child, run))
    pending = None if caller is None else caller.found(PendingInputs)
    text = None if pending is None else pending.by_run.get(run)
    return otherwise if text is None else msgspec.json.decode(text)
