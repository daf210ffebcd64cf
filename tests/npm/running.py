"""Runs the npm clients against sapwood and against the original."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from tests.machine import patience
from tests.packages import environment, key
from tests.servers import Server

HERE = Path(__file__).parent
WORKER = ("worker.js", "wrangler.jsonc")


def workspace(home: Path, folder: Path) -> Path:
    """Return a folder with our scripts and the installed packages."""
    for path in HERE.iterdir():
        if path.suffix in (".js", ".mjs", ".capnp", ".jsonc"):
            shutil.copy(path, folder)
    (folder / "node_modules").symlink_to(home / "node_modules")
    return folder


def bundle(home: Path, work: Path) -> None:
    """Put the original's worker into the workspace, as one file."""
    kept = home / f"worker-{key(HERE, WORKER)}.js"
    if not kept.exists():
        command = ["node", "node_modules/wrangler/bin/wrangler.js", "deploy", "--dry-run", "--outdir", "made"]
        subprocess.run(command, cwd=work, check=True, stdout=sys.stderr, env=environment(home), timeout=patience(120))
        (work / "made/worker.js").rename(kept)
    (work / "dist").mkdir(exist_ok=True)
    shutil.copy(kept, work / "dist/worker.js")


MAJORS = {"7": [], "6": ["--alias:ai=ai-6", "--alias:@ai-sdk/react=ai-sdk-react-3"]}
"""The AI SDK's majors that useAgentChat works with, and how to have them: the installed one, or under another name."""


def built(home: Path, work: Path, script: str, out: str, major: str, *more: str) -> None:
    """Put a script into the workspace as one file, with a major of the AI SDK."""
    flags = ["--bundle", "--log-level=warning", "--define:process.env.NODE_ENV='production'", f"--outfile={out}"]
    command = ["node_modules/.bin/esbuild", script, *flags, *MAJORS[major], *more]
    subprocess.run(command, cwd=work, check=True, stdout=sys.stderr, env=environment(home), timeout=patience(120))


class Sapwood(Server):
    app = HERE / "server.py"

    def command(self) -> list[str]:
        os.environ["NPM_TEST_PAGES"] = str(self._work / "pages")
        options = ["--port", str(self.port), "--data", str(self._data), "--grace", "3", "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", f"{self.app}:site", *options]


class SapwoodChat(Sapwood):
    app = HERE / "chat_server.py"


class SapwoodRuns(Sapwood):
    app = HERE / "runs_server.py"


class SapwoodImpatient(SapwoodRuns):
    """Gives up soon on helpers that are silent after a crash."""

    environment: ClassVar[dict[str, str]] = {"SAPWOOD_RUN_IDLE_TIMEOUT": "2"}


class Original(Server):
    config: ClassVar[str] = "workerd.capnp"

    def command(self) -> list[str]:
        workerd = self._work / "node_modules/@cloudflare/workerd-linux-64/bin/workerd"
        address = f"--socket-addr=http=127.0.0.1:{self.port}"
        return [str(workerd), "serve", self.config, address, f"--directory-path=disk={self._data}"]


ENDINGS = {"kill": signal.SIGKILL, "stop": signal.SIGTERM}


def drive(script: str, server: Server, home: Path, work: Path, *more: str) -> dict[str, Any]:
    """Run a script of scenarios against a server; return its transcript."""
    command = ["node", script, server.host, *more]
    client = subprocess.Popen(
        command, cwd=work, env=environment(home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdin is not None
    assert client.stdout is not None
    with client:
        try:
            for line in client.stdout:
                said = json.loads(line) if line.startswith("{") else {}
                if "please" not in said:
                    if said:
                        return said
                    continue
                server.end(ENDINGS[said["please"]])
                server.start()
                client.stdin.write("done\n")
                client.stdin.flush()
        finally:
            client.kill()
    raise RuntimeError(f"{script} ended without a transcript. {server.log()}")
