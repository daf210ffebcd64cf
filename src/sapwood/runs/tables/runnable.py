"""The classes that `run_agent` accepts, with the types of their input and their output."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable
from typing import Any, Protocol

from typing_extensions import TypeVar

I_contra = TypeVar("I_contra", contravariant=True, default=Any)
O_co = TypeVar("O_co", covariant=True, default=Any)


class Runnable(Protocol[I_contra, O_co]):
    """An agent that can be run: a `type[Runnable[Claim, Verdict]]` takes a `Claim` and returns a `Verdict`."""

    def on_run(self, input: I_contra, /) -> Awaitable[O_co] | AsyncIterable[O_co | dict[str, Any]]:
        """Execute a run. An async generator streams text, and its output is all of the text."""
        ...
