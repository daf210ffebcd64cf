"""What the runs ask of the class of their agent: the class attributes that users set."""

from __future__ import annotations

from typing import Protocol

from sapwood.runs.tables.retention import Keep


class RunSettings(Protocol):
    """The settings of `Agent` for its runs. `Agent` documents each."""

    expose_runs: bool
    input_as_state: bool
    max_concurrent_runs: int | None
    run_retention: Keep
