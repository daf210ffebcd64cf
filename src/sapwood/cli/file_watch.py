"""Notices that files of a project changed, so that `dev` restarts its server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from uvicorn.supervisors.statreload import StatReload

from sapwood.errors import UsageError

ASKED_TO_STOP = frozenset({signal.SIGINT, signal.SIGTERM})
NOT_WATCHED = frozenset({"node_modules", "__pycache__", "site-packages"})


class FileWatch(StatReload):
    """Watches the files of the project for changes, but not installed packages."""

    def should_restart(self) -> list[Path] | None:
        # A server that could not start is mended by the next change; one that was killed would be waited for in vain,
        # while its clients hang at a port that is still open.
        ended = self.process.exitcode or 0
        if ended < 0 and -ended not in ASKED_TO_STOP:
            raise UsageError(f"The server was killed by {signal.Signals(-ended).name}. Start it again.")
        return super().should_restart()

    def iter_py_files(self) -> Iterator[Path]:
        for start in self.config.reload_dirs:
            for folder, below, names in os.walk(start):
                below[:] = [one for one in below if _is_written_by_hand(Path(folder, one))]
                yield from (Path(folder, name) for name in names if name.endswith((".py", ".sql")))


def _is_written_by_hand(folder: Path) -> bool:
    return (
        not folder.name.startswith(".")
        and folder.name not in NOT_WATCHED
        and not (folder / "pyvenv.cfg").exists()
        and not (folder / "trees").exists()
    )
