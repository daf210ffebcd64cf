"""Nodes in processes of their own, as `sapwood serve` starts them: one cluster over real NATS servers and S3."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self
from uuid import uuid4

from tests.cluster.servers import S3, Nats
from tests.machine import patience
from tests.servers import Server

PATIENCE = patience()


class NodeProcess(Server):
    """One node. It can be ended and started again."""

    def __init__(self, target: str, folder: Path, name: str, environment: dict[str, str]) -> None:
        self.target = target
        self.name = name
        work = folder / name
        work.mkdir()
        super().__init__(work, work / "data", **environment, SAPWOOD_NODE=name, SAPWOOD_DURABILITY="replicated")

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--data", str(self._data), "--log-level", "warning"]
        return [sys.executable, "-m", "sapwood", "serve", self.target, *options]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self._data

    def until_ready(self) -> NodeProcess:
        end = time.monotonic() + PATIENCE
        while self.asked("/readyz") != 200:
            assert time.monotonic() < end, f"{self.name} is not ready: {self.log()}"
            assert self._process.poll() is None, self.log()
            time.sleep(0.05)
        return self

    def asked(self, path: str) -> int | None:
        """Return the status of an answer; None: nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def send(self, what: signal.Signals) -> None:
        self._process.send_signal(what)

    def until_ended(self) -> int:
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self.kill()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of an operator on the node's data folder."""
        command = [sys.executable, "-m", "sapwood", *arguments, "--data", str(self._data)]
        return subprocess.run(command, cwd=self._work, capture_output=True, text=True, timeout=PATIENCE, check=False)


class Nodes:
    """The nodes of one cluster."""

    def __init__(self, nats: Nats, s3: S3, folder: Path, target: str, **environment: str) -> None:
        self.cluster = f"c{uuid4().hex[:8]}"
        self._folder = folder
        self._target = target
        self._environment = {
            **s3.environment,
            "SAPWOOD_NATS": nats.urls,
            "SAPWOOD_ARCHIVE": f"{s3.url}/{self.cluster}",
            "SAPWOOD_CLUSTER": self.cluster,
            **environment,
        }
        self.all: dict[str, NodeProcess] = {}

    def start(self, *names: str, target: str = "", **environment: str) -> Nodes:
        """Start nodes at the same time, and return when all are ready."""
        for name in names:
            told = {**self._environment, **environment}
            self.all[name] = NodeProcess(target or self._target, self._folder, name, told)
        for name in names:
            self.all[name].until_ready()
        return self

    def others(self, folder: Path) -> Nodes:
        """Return nodes of the same cluster with other data folders: so they may have the same names."""
        folder.mkdir()
        made = copy.copy(self)
        made._folder, made.all = folder, {}
        return made

    def __getitem__(self, name: str) -> NodeProcess:
        return self.all[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for node in self.all.values():
            node.close()
