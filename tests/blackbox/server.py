"""A real `sapwood serve` with a fixed port and data folder: it can be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.machine import patience
from tests.ports import free_port

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
SAPWOOD = (sys.executable, "-m", "sapwood")
POLL = 0.02
NOT_A_LOG_LINE_OF_INTEREST = re.compile(r"^\d\d:\d\d:\d\d (INFO|DEBUG) ")


class Server:
    """A server, its data folder, its log, and the file of what its agents did outside."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        app: Path = HERE / "app.py",
        prefix: Sequence[str] = (),
        data: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.data = data or folder / "data"
        self.log_file = folder / "server.log"
        self.effects = folder / "effects"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._app = app
        self._command = [*prefix, *SAPWOOD, "serve", str(app), "--data", str(self.data), "--port", str(self.port)]
        self._command += options
        self._variables = dict(variables or {})
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def launch(self) -> None:
        """Start the process, and do not wait until it answers."""
        assert self.process is None or self.process.poll() is not None
        path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {**os.environ, "PYTHONPATH": path, "BLACKBOX_EFFECTS": str(self.effects), **self._variables}
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(self._command, cwd=self.folder, env=variables, stdout=log, stderr=log)

    def wait_until_ready(self, seconds: float = 30.0) -> bool:
        """Return whether it answers; `False` if it has ended."""
        assert self.process is not None
        end = time.monotonic() + patience(seconds)
        while self.process.poll() is None:
            try:
                if self.get("/healthz")[0] == 200:
                    return True
            except OSError:
                pass
            if time.monotonic() > end:
                raise AssertionError(f"The server does not answer. Its log ends with:\n{self.log()[-4000:]}")
            time.sleep(POLL)
        return False

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.launch()
        if not self.wait_until_ready():
            raise AssertionError(f"The server ended with {self.exit_code}. Its log ends with:\n{self.log()[-4000:]}")

    async def start_beside(self) -> None:
        """Start, while the event loop continues."""
        await asyncio.to_thread(self.start)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """End the process with SIGTERM."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(patience(30.0))
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        if code not in (0, -signal.SIGTERM):
            raise AssertionError(f"The server did not stop: {code}. Its log ends with:\n{self.log()[-4000:]}")

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the body of an HTTP response."""
        answer, body = self._request(path)
        return answer.status, body

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def error_code(self, path: str) -> tuple[int, str | None]:
        """Return the status of an HTTP response, and the code of a final error."""
        answer, _ = self._request(path)
        return answer.status, answer.getheader("sapwood-error")

    def _request(self, path: str) -> tuple[http.client.HTTPResponse, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience(10.0))
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer, answer.read().decode()
        finally:
            connection.close()

    def warnings(self) -> list[str]:
        """Return the lines of the log that report something, without the lines of tracebacks."""
        return [line for line in self.troubles() if " WARNING " in line or " ERROR " in line]

    def troubles(self) -> list[str]:
        """Return the lines of the log that are not of level `INFO`: warnings, errors and tracebacks."""
        return [line for line in self.log().splitlines() if not NOT_A_LOG_LINE_OF_INTEREST.match(line)]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command of `sapwood` on the data folder of the server."""
        return run_command(*arguments, "--data", str(self.data))

    def clear(self) -> None:
        """Kill the process and remove the data folder."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `sapwood` to its end."""
    return subprocess.run([*SAPWOOD, *arguments], capture_output=True, text=True, timeout=patience(60.0), check=False)
