"""The servers that a cluster needs, real ones, on loopback: NATS with JetStream, and S3 as moto has it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import msgspec

PATIENCE = 60.0


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Nats:
    """One to five NATS servers that form a cell."""

    def __init__(self, folder: Path, count: int = 3, *, name: str = "cell", sync: str = "always") -> None:
        self.folder = folder
        self.count = count
        ports = free_ports(3 * count)
        self.ports, self.routes, self.monitors = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        others = ", ".join(f"nats://127.0.0.1:{port}" for port in self.routes)
        for n in range(count):
            (folder / f"n{n}").mkdir(parents=True, exist_ok=True)
            lines = [
                f"server_name: {name}-{n}",
                f"listen: 127.0.0.1:{self.ports[n]}",
                f"http: 127.0.0.1:{self.monitors[n]}",
                "max_payload: 8MB",
                "write_deadline: 10s",
                f"jetstream {{ store_dir: {str(folder / f'n{n}')!r}, max_mem: 1G, max_file: 20G",
                f"sync_interval: {sync} }}",
            ]
            if count > 1:
                lines.append(f"cluster {{ name: {name}, listen: 127.0.0.1:{self.routes[n]}, routes: [{others}] }}")
            (folder / f"n{n}.conf").write_text("\n".join(lines) + "\n")

    @property
    def urls(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.ports)

    def start(self, which: Sequence[int] | None = None) -> Nats:
        for n in range(self.count) if which is None else which:
            with (self.folder / f"n{n}.log").open("ab") as log:
                program = Path(sys.executable).with_name("nats-server")
                self.processes[n] = subprocess.Popen(
                    [str(program), "-c", str(self.folder / f"n{n}.conf")], stdout=log, stderr=log
                )
        return self

    def wait(self) -> Nats:
        """Return when all of them are well."""
        end = time.monotonic() + PATIENCE
        while not all(self.is_well(n) for n in range(self.count)):
            assert time.monotonic() < end, "NATS did not start."
            time.sleep(0.05)
        return self

    def is_well(self, n: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitors[n]}/healthz", timeout=1) as answer:
                return msgspec.json.decode(answer.read())["status"] == "ok"
        except OSError:
            return False

    def number_of(self, server: str) -> int:
        """Return which server has this name."""
        return int(server.rsplit("-", 1)[1])

    def kill(self, n: int) -> None:
        self.processes[n].kill()
        self.processes[n].wait()

    def pause(self, n: int) -> None:
        self.processes[n].send_signal(signal.SIGSTOP)

    def go_on(self, n: int) -> None:
        self.processes[n].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes.values():
            process.wait()

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class S3:
    """A bucket of moto's server."""

    bucket = "trees"

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "s3.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """What `Settings(archive=…)` takes."""
        return f"s3://{self.bucket}/trees"

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to know beside the URL, as it is told about any S3."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> S3:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, "MOTO_PORT": str(self.port)},
            )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                make = urllib.request.Request(f"{self.endpoint}/{self.bucket}", method="PUT")
                urllib.request.urlopen(make, timeout=5).close()
                return self
            except OSError:
                assert time.monotonic() < end, "S3 did not start."
                time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
