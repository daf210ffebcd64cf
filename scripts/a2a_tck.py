"""Run the test kit of A2A (TCK) against `sapwood serve`, over JSON-RPC and at all of its levels.

The kit has no release: the first time, it is cloned at the commit below, with an environment of its own, into the
folder. Run it in the checkout: `python scripts/a2a_tck.py FOLDER`, with options of `sapwood serve` if you like, such as
`--workers 2`. It ends with 1 if other requirements fail than those that are named here.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
APP = ROOT / "tests/e2e/a2a_tck_app.py"
KIT = "https://github.com/a2aproject/a2a-tck"
COMMIT = "357c4a87afa2818731590647cccbea31c31733a2"
"""Of its branch for A2A 1.0."""
STARTING = 60.0
"""Seconds until the server must accept connections."""
FAILED = {
    # A card has an ETag. It is made from classes and settings, so no time of a change is known. (MAY)
    "CARD-CACHE-003",
    # The kit sends three messages with the same messageId, which here is one message that is sent again. (SHOULD)
    "CORE-HIST-005",
    "CORE-HIST-006",
}
"""The requirements that fail."""


def main(folder: Path, more: list[str]) -> int:
    kit, python = installed(folder)
    with tempfile.TemporaryDirectory() as data:
        port = free_port()
        options = ["--port", str(port), "--data", data, "--log-level", "warning", *more]
        with subprocess.Popen([sys.executable, "-m", "sapwood", "serve", f"{APP}:app", *options]) as server:
            try:
                wait_for(port, server)
                where = ["--sut-host", f"http://127.0.0.1:{port}", "--transport", "jsonrpc"]
                subprocess.run([python, "run_tck.py", *where], cwd=kit, check=False)
            finally:
                server.terminate()
    found = json.loads((kit / "reports/compatibility.json").read_text())["per_requirement"]
    return shown({name: (one["level"], one["status"]) for name, one in found.items()})


def installed(folder: Path) -> tuple[Path, Path]:
    """Return the folder of the kit and its Python; install both the first time."""
    kit, python = folder.resolve() / "kit", folder.resolve() / "venv/bin/python"
    if not kit.exists():
        subprocess.run(["git", "clone", "--quiet", KIT, kit], check=True)
        subprocess.run(["git", "checkout", "--quiet", COMMIT], cwd=kit, check=True)
    if not python.exists():
        venv.create(python.parents[1], with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--editable", kit], check=True)
    return kit, python


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Return when the server accepts connections."""
    end = time.monotonic() + STARTING
    while time.monotonic() < end and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("The server did not start.")


def shown(found: dict[str, tuple[str, str]]) -> int:
    """Print the counts by level, and what fails or passes otherwise than it is named. Return the exit code."""
    for level in ("MUST", "SHOULD", "MAY"):
        states = [status for one, status in found.values() if one == level]
        counts = ", ".join(f"{states.count(status)} {status.lower()}" for status in sorted(set(states)))
        print(f"{level}: {counts}")
    failed = {name for name, (_, status) in found.items() if status == "FAIL"}
    for name in sorted(failed - FAILED):
        print(f"{name} fails")
    for name in sorted(FAILED - failed):
        print(f"{name} does not fail any more: remove it from FAILED")
    return int(failed != FAILED)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("Usage: python scripts/a2a_tck.py FOLDER [options of sapwood serve]")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
