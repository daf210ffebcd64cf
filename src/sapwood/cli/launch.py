"""How a server was started, so that it can start its successor in the same way with the code that is there then."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PREDECESSOR = "SAPWOOD_PREDECESSOR"
"""The variable that tells a server which of its open files leads to its predecessor."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The command, the folder and the environment that a server was started with."""

    command: list[str]
    folder: str
    environment: dict[str, str]

    @classmethod
    def of_this_process(cls) -> Launch:
        """Return how this process was started. Call it before the app is imported, which may change its environment."""
        folder = _folder()
        script = Path(folder, sys.argv[0])
        # A script is started by its path: it names the interpreter, also if a symbolic link on the way now leads to
        # another release.
        is_script = script.suffix != ".py" and script.is_file() and os.access(script, os.X_OK)
        command = [str(script), *sys.argv[1:]] if is_script else [sys.executable, *sys.orig_argv[1:]]
        return cls(command, folder, dict(os.environ))

    def start(self, line: int) -> subprocess.Popen[bytes]:
        """Start it again, in a session of its own: the terminal signals only the first process."""
        return subprocess.Popen(
            self.command,
            cwd=self.folder,
            env={**self.environment, PREDECESSOR: str(line)},
            stdin=subprocess.DEVNULL,
            pass_fds=[line],
            start_new_session=True,
        )


def _folder() -> str:
    """Return the current folder, by the name that the shell or the unit file has for it."""
    name, here = os.environ.get("PWD", ""), Path.cwd()
    try:
        return name if name and here.samefile(name) else str(here)
    except OSError:
        return str(here)
