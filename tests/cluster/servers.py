"""The servers that a cluster needs, real ones, on loopback: NATS with JetStream, and S3 as moto has it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.machine import patience
from tests.ports import free_ports

PATIENCE = patience()
CONFIGURATION = Path(__file__).parents[2] / "deploy/nats/server.conf"
"""What operators are given is what is tested with."""
PASSWORDS = {user: f"{user}-secret" for user in ("route", "node", "watch", "admin")}


async def put(connection: Any, subject: str, data: bytes, headers: dict[str, str] | None = None) -> Any:
    """Store a message; return what the stream acknowledges, as soon as the connection's server knows of the stream."""
    import nats.js.errors

    streams = connection.jetstream(timeout=PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await streams.publish(subject, data, headers=headers)
            except nats.js.errors.NoStreamResponseError:  # it was made a moment ago, and others were told first
                await asyncio.sleep(0.05)


class Nats:
    """One to five NATS servers that form a cell, configured as deploy/nats/server.conf says."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        name: str = "cell",
        sync: str = "always",
        clusters: int = 100,
        room: str = "20GB",
        stream_room: str = "-1",
        advertises: bool = True,
    ) -> None:
        """`clusters`: how many of them a test makes on these servers; the configuration is for one.

        `room`, `stream_room`: what a server, and a stream of the log, may hold. `advertises`: whether servers tell
        clients of each other, which then go past proxies.
        """
        self.room, self.stream_room = room, stream_room
        self.folder = folder
        self.count = count
        ports = free_ports(3 * count)
        self.ports, self.routes, self.monitors = ports[:count], ports[count : 2 * count], ports[2 * count :]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        text = CONFIGURATION.read_text()
        if clusters > 1:
            text = re.sub(r"(max_streams|max_ha_assets): \d+", rf"\1: {40 * clusters}", text)
        if sync != "always":
            text = text.replace("sync_interval: always", f"sync_interval: {sync}")
        if not advertises:
            text = text.replace("cluster {\n", "cluster {\n    no_advertise: true\n", 1)
        if count == 1:
            text = re.sub(r"^cluster \{.*?^\}", "", text, flags=re.DOTALL | re.MULTILINE)
        self.configuration = folder / "server.conf"
        folder.mkdir(parents=True, exist_ok=True)
        self.configuration.write_text(text)
        self._name = name

    @property
    def urls(self) -> str:
        """What `Settings(nats=…)` takes: as a node."""
        return self.urls_of("node")

    def urls_of(self, user: str) -> str:
        """Return where the servers are, with what a user of the configuration says to come in."""
        return ",".join(f"nats://{user}:{PASSWORDS[user]}@127.0.0.1:{port}" for port in self.ports)

    def environment(self, n: int) -> dict[str, str]:
        """Return what the configuration asks for, for one of the servers."""
        routes = ", ".join(f'"nats://route:{PASSWORDS["route"]}@127.0.0.1:{port}"' for port in self.routes)
        return {
            "NATS_NAME": f"{self._name}-{n}",
            "NATS_ZONE": f"zone:{n}",
            "NATS_STORE": str(self.folder / f"n{n}"),
            "NATS_STORE_SIZE": self.room,
            "NATS_STREAM_SIZE": self.stream_room,
            "NATS_LISTEN": f"127.0.0.1:{self.ports[n]}",
            "NATS_ROUTE": f"127.0.0.1:{self.routes[n]}",
            "NATS_MONITOR": f"127.0.0.1:{self.monitors[n]}",
            "NATS_ROUTES": f"[{routes}]",
            **{f"NATS_{user.upper()}_PASSWORD": password for user, password in PASSWORDS.items()},
        }

    def start(self, which: Sequence[int] | None = None) -> Nats:
        for n in range(self.count) if which is None else which:
            with (self.folder / f"n{n}.log").open("ab") as log:
                program = Path(sys.executable).with_name("nats-server")
                self.processes[n] = subprocess.Popen(
                    [str(program), "-c", str(self.configuration)],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.environment(n)},
                )
        return self

    def wait(self) -> Nats:
        """Return when all of them are well."""
        end = time.monotonic() + PATIENCE
        while not all(self.is_well(n) for n in range(self.count)):
            assert time.monotonic() < end, f"NATS did not start. {self._troubles()}"
            time.sleep(0.05)
        return self

    def _troubles(self) -> str:
        """Return what is known of those that are not well."""
        troubles: list[str] = []
        for n in range(self.count):
            try:
                self.ask(n, "healthz")
            except OSError as error:
                said = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
                log = (self.folder / f"n{n}.log").read_text()[-2000:]
                troubles.append(f"Server {n}, exit code {self.processes[n].poll()}, says {said}. Its log: {log}")
        return "\n".join(troubles)

    def is_well(self, n: int) -> bool:
        try:
            return self.ask(n, "healthz")["status"] == "ok"
        except OSError:
            return False

    def ask(self, n: int, what: str) -> dict[str, Any]:
        """Return what a server says at its monitoring port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitors[n]}/{what}", timeout=1) as answer:
            return msgspec.json.decode(answer.read())

    def number_of(self, server: str) -> int:
        """Return which server has this name."""
        return int(server.rsplit("-", 1)[1])

    def blocks(self, n: int, stream: str) -> list[Path]:
        """Return the files in which a server has the messages of a stream."""
        return sorted((self.folder / f"n{n}" / "jetstream").glob(f"*/streams/{stream}/msgs/*.blk"))

    def kill(self, n: int) -> None:
        self.processes[n].kill()
        self.processes[n].wait()

    def pause(self, n: int) -> None:
        """Have a server stand still; it does when this returns."""
        self.processes[n].send_signal(signal.SIGSTOP)
        os.waitpid(self.processes[n].pid, os.WUNTRACED)

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
