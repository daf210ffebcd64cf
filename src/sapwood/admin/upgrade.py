"""`upgrade`: start the command of the server again with the code that is installed now, and hand everything to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, Params
from sapwood.clock import Clock
from sapwood.errors import Refused
from sapwood.settings import Settings


class Upgrades:
    """How the process of one node is replaced by a new one."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.start: Callable[[], Awaitable[Answer]] | None = None
        """Starts a new process, and returns once it is prepared. `None` where something else starts and stops it."""


async def _upgrade(call: AdminCall, _: Params) -> Answer:
    if (start := call.node.shared(Upgrades).start) is None:
        raise Refused(
            "Only a server that `sapwood serve` runs on one machine can be upgraded in place. `sapwood dev` restarts "
            "by itself, a node of a cluster is replaced by another node, and what embeds the app restarts it."
        )
    return await start()


UPGRADE = Endpoint("upgrade", "admin", Params, _upgrade, is_of_any_node=True)
