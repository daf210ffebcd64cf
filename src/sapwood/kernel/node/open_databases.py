"""The open databases of a node: the least recently used are closed, and each stores how far it is written."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence

from sapwood.kernel.alarms.node_index import NodeAlarms
from sapwood.kernel.marshal.failure_log import FailureLog
from sapwood.kernel.trees.tree import Tree
from sapwood.storage.database import Database
from sapwood.timings import Timings

log = logging.getLogger(__name__)

MARK_PAUSE = 0.002
"""Seconds between two groups of databases that are marked."""
MARKED_AT_ONCE = 20
"""Databases whose marks are stored before other tasks have a turn."""


class OpenDatabases:
    """The open databases of one node."""

    def __init__(
        self,
        limit: int,
        alarms: NodeAlarms,
        *,
        loop: asyncio.AbstractEventLoop,
        failures: FailureLog,
        timings: Timings,
    ) -> None:
        self._limit = limit
        self._alarms = alarms
        self._loop = loop
        self._failures = failures
        self._timings = timings
        self._open: OrderedDict[Database, tuple[Tree, float]] = OrderedDict()
        """Open databases, each with when it had last been used at the last look; the first is looked at next."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Store from now on, at intervals, how far databases are written that stay open."""
        self._timer = self._loop.call_later(self._timings.mark_interval, self._mark)

    def opened(self, tree: Tree, database: Database) -> None:
        """Note a database that was opened. Close one that was not used lately, if too many are open."""
        self._open[database] = (tree, database.last_used)
        for _ in range(len(self._open)):
            if len(self._open) <= self._limit:
                return
            oldest, (its_tree, used) = self._open.popitem(last=False)
            if not oldest.is_open:
                continue
            if oldest is database or oldest.last_used > used or not its_tree.close_database(oldest):
                self._open[oldest] = (its_tree, oldest.last_used)

    def closed(self, database: Database) -> None:
        """Forget a closed database."""
        self._open.pop(database, None)

    def forget(self, tree: Tree) -> None:
        """Forget the databases of a tree."""
        for database in tree.databases.values():
            self._open.pop(database, None)

    def _mark(self, left: Sequence[tuple[Tree, Database]] = ()) -> None:
        """Store how far databases are written that were not closed since their last commit."""
        self._alarms.mark()
        left = left or [(tree, database) for database, (tree, _) in self._open.items() if not database.is_marked]
        for tree, database in left[:MARKED_AT_ONCE]:
            try:
                tree.mark(database)
            except Exception as error:  # noqa: BLE001 - one tree may not keep all others from being marked
                text = "cannot store how far a database is written address=%s"
                self._failures.report(log, logging.ERROR, text, tree.address, error=error, traceback=error)
        left = left[MARKED_AT_ONCE:]
        self._timer = self._loop.call_later(MARK_PAUSE if left else self._timings.mark_interval, self._mark, left)

    def stop(self) -> None:
        """Store it no more."""
        if self._timer is not None:
            self._timer.cancel()
