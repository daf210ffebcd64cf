"""The client of NATS, with what it does not forgive when a server stands still or goes.

Imported only where a connection is made: most apps have no NATS.
"""

# nats-py says of little what it is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors
from nats.aio.client import Client


class NatsClient(Client):
    """A connection whose trouble is always an error of NATS, and raised only to waiters."""

    denied: str | None = None
    """What servers last did not let its user do; waiters for the answer are not notified."""

    async def _process_pong(self) -> None:
        # The sender of the ping may have stopped waiting: not a reason to leave the server that answers now.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.Future()
        await super()._process_pong()

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        try:
            return await super()._flush_pending(force_flush)
        except RuntimeError:  # what uvloop says of a socket that was closed under it
            raise nats.errors.StaleConnectionError from None

    def fail_waiting(self) -> None:
        """Tell waiters for an answer that it was lost with the connection, and does not come any more."""
        for answer in list(self._resp_map.values()):
            if not answer.done():
                answer.set_exception(nats.errors.StaleConnectionError())
                answer.exception()  # the caller may be gone: an exception that is not retrieved is no error
