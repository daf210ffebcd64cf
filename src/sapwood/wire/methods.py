"""The exposed methods of an agent, as it lists them at `GET …/methods`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PATH = "/methods"


@dataclass(frozen=True, slots=True)
class ExposedMethod:
    """A method of an agent that clients may call."""

    name: str
    doc: str | None
    """Its docstring."""
    parameters: dict[str, Any]
    """JSON schema of an object with one property for each parameter, in the order in which a call passes them.

    Parameters with a default are not `required`. The values of defaults are not included.
    """
    variadic: bool
    """Whether the last parameter takes any number of arguments. Its schema is that of an array of them."""
    streams: bool
    """Whether a call returns a stream of items."""
    result: dict[str, Any] | None
    """JSON schema of the result, or of each item of a stream. `None` if the method has no return annotation."""


@dataclass(frozen=True, slots=True)
class MethodList:
    """What an agent answers."""

    methods: list[ExposedMethod]
