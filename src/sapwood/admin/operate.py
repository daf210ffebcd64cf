"""`App(operate=…)`: the app's own rule about requests to the admin API."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from sapwood.address import Address
from sapwood.clock import Clock
from sapwood.errors import Refused
from sapwood.settings import Settings

log = logging.getLogger(__name__)

OperateRule: TypeAlias = Callable[[str, str, Address | None], bool | Awaitable[bool]]
"""Returns whether the token of this name may use this endpoint for this agent."""


class Operate:
    """The rule of one node."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.function: OperateRule | None = None

    async def check(self, name: str, endpoint: str, addresses: Sequence[Address]) -> None:
        """Raise `Refused` unless the rule allows the request. A rule that raises refuses."""
        if self.function is None:
            return
        for address in addresses or (None,):
            try:
                verdict = self.function(name, endpoint, address)
                is_allowed = await verdict if inspect.isawaitable(verdict) else verdict
            except Exception:
                log.exception("App(operate=…) failed token=%s endpoint=%s", name, endpoint)
                is_allowed = False
            if is_allowed is not True:
                raise Refused(f"App(operate=…) does not allow {name!r} to use {endpoint!r} here.")
