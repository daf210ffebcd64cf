"""When agents go to sleep: once they were idle for long enough, leaves first."""

from __future__ import annotations

import asyncio
import logging

from sapwood.kernel.node.tree_host import TreeHost
from sapwood.kernel.node.tree_loader import TreeLoader

log = logging.getLogger(__name__)


class IdleSleep:
    """Puts the idle agents of one node to sleep."""

    def __init__(self, node: TreeHost, loader: TreeLoader) -> None:
        self._node = node
        self._loader = loader
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look for idle agents after a while."""
        self._timer = self._node.loop.call_later(self._node.settings.sleep_after / 2, self._sweep)

    def stop(self) -> None:
        """Look for no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        try:
            self.sleep(self._node.settings.sleep_after)
        except Exception as error:  # noqa: BLE001 - one tree may not keep all others awake
            text = "putting idle agents to sleep failed"
            self._node.failures.report(log, logging.ERROR, text, error=error, traceback=error)
        self._node.failures.flush()
        self.start()

    def sleep(self, idle_for: float) -> None:
        """Forget agents that were idle for this long; leaves first, so that parents may follow."""
        before = self._node.loop.time() - idle_for
        for tree in list(self._node.trees.values()):
            if tree.deletions:
                continue  # they still write to the databases of parents
            tree.close_unused(before)
            if tree.stays_awake:
                continue
            for actor in sorted(tree.actors.values(), key=lambda actor: -len(actor.address.segments)):
                if actor.is_idle and actor.last_active <= before:
                    tree.sleep(actor)
            if tree.is_quiet and tree.close():
                self._loader.put_away(tree)
