"""Three NATS servers, S3 and some nodes, each in a network and on a disk of its own, and what can be done to them."""

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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.cluster.servers import CONFIGURATION, PASSWORDS, S3
from tests.faults.cluster.network import Network
from tests.faults.cluster.stem import PORT, Stem

PATIENCE = 150.0
"""Seconds in which whatever was started answers, and whatever was healed is well."""
GRACE = 5.0
SERVERS = ("nats0", "nats1", "nats2")
STORE = "s3"
CLIENTS, ROUTES, MONITOR = 4222, 6222, 8222
SERVER_DISK, NODE_DISK = "2g", "512m"
RUNNING = re.compile(r"running at http://")


class Disk:
    """A small disk of its own, which can be filled up."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        self._size = size
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "sapwood-fault", str(folder)], check=True)

    def fill(self) -> None:
        """Leave no more than a few pages."""
        now = os.statvfs(self.folder)
        self._resize(f"{(now.f_blocks - now.f_bfree + 4) * now.f_frsize // 1024}k")

    def clear(self) -> None:
        self._resize(self._size)

    def _resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], check=True)

    def wipe(self) -> None:
        for one in self.folder.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)


@dataclass(slots=True)
class Node:
    """One process after the other, under one name and on one disk."""

    name: str
    address: str
    disk: Disk
    log: Path
    pid: int = 0
    is_wanted: bool = False
    """Whether it should run: then it is started again when it ends by itself."""
    looked: int = 0
    """How much of its log was looked at."""
    seen: int = 0
    """How much of its log belongs to the processes before."""

    @property
    def url(self) -> str:
        return f"http://{self.address}:{PORT}"

    def said(self) -> str:
        """Return what its last process wrote."""
        with suppress(OSError):
            return self.log.read_bytes()[self.seen :].decode(errors="replace")
        return ""


@dataclass
class Cell:
    """A whole cluster. `level`: what its nodes keep; with anything but `replicated` each is for itself."""

    home: Path
    stem: Stem
    level: str = "replicated"
    count: int = 5
    """How many nodes there can be."""
    network: Network = field(default_factory=Network)
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    servers: dict[str, int] = field(default_factory=dict[str, int])
    """The process of each NATS server."""
    disks: dict[str, Disk] = field(default_factory=dict[str, Disk])
    notes: list[str] = field(default_factory=list[str])
    """What happened that nobody did."""
    ended: list[str] = field(default_factory=list[str])
    """Nodes that ended by themselves, since it was last asked."""
    store: int = 0
    _has_told: bool = False

    def __post_init__(self) -> None:
        for place in (*SERVERS, STORE):
            self.network.add(place)
        for server in SERVERS:
            self.disks[server] = Disk(self.home / server, SERVER_DISK)
        for number in range(self.count):
            name = f"n{number}"
            address = self.network.add(name)
            self.disks[name] = Disk(self.home / name, NODE_DISK)
            self.nodes[name] = Node(name, address, self.disks[name], self.home / f"{name}.log")
        (self.home / "server.conf").write_text(CONFIGURATION.read_text())

    async def start(self, nodes: int) -> None:
        """Start all servers and so many nodes."""
        self._start_store()
        for server in SERVERS:
            self.start_server(server)
        await asyncio.gather(self._store_is_there(), *(self.is_well(server) for server in SERVERS))
        await asyncio.gather(*(self.start_node(f"n{number}") for number in range(nodes)))

    def remove(self) -> None:
        """End everything, and leave nothing but the logs."""
        for pid in [*self.servers.values(), self.store, *(node.pid for node in self.nodes.values())]:
            if pid and self.stem.code(pid) is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for disk in self.disks.values():
            disk.remove()
        self.network.remove()

    # Nodes

    async def start_node(self, name: str) -> None:
        """Start a node; return when it answers."""
        node = self.nodes[name]
        self._launch(node)
        node.is_wanted = True
        until = time.monotonic() + PATIENCE
        while node.is_wanted and not RUNNING.search(node.said()):
            if time.monotonic() > until:
                raise TimeoutError(f"{name} does not start: {node.said()[-2000:]}")
            await asyncio.sleep(0.05)

    def _launch(self, node: Node) -> None:
        node.seen = node.log.stat().st_size if node.log.exists() else 0
        node.pid = self.stem.serve(
            network=self.network.file(node.name),
            log=str(node.log),
            environ=self._environ(node.name),
            data=str(node.disk.folder / "data"),
            grace=GRACE,
        )

    def _environ(self, name: str) -> dict[str, str]:
        environ = {"SAPWOOD_NODE": name, "SAPWOOD_DURABILITY": self.level}
        if self.level == "replicated":
            environ |= {
                "SAPWOOD_NATS": self.urls("node"),
                "SAPWOOD_ARCHIVE": self.archive,
                "SAPWOOD_CLUSTER": "sapwood",
                **self.store_environ,
            }
        return environ

    @property
    def archive(self) -> str:
        return f"s3://{S3.bucket}/trees"

    @property
    def store_environ(self) -> dict[str, str]:
        """What a process has to know to reach S3."""
        return {
            "AWS_ENDPOINT_URL": self._store_url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a node or a server, if it runs."""
        pid = self.nodes[name].pid if name in self.nodes else self.store if name == STORE else self.servers[name]
        if self.stem.code(pid) is None:
            os.kill(pid, number)

    async def end_node(self, name: str, number: signal.Signals) -> int:
        """Make a node end; return how it did."""
        node = self.nodes[name]
        node.is_wanted = False
        self.signal(name, number)
        return await self._code(node.pid, name)

    async def _code(self, pid: int, name: str) -> int:
        until = time.monotonic() + PATIENCE
        while (code := self.stem.code(pid)) is None:
            if time.monotonic() > until:
                self.notes.append(f"{name} did not end in {PATIENCE:.0f} s, and was killed")
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.02)
        return code

    async def keep_up(self) -> None:
        """Start nodes again that ended by themselves, as whoever operates them does."""
        while True:
            for name, node in self.nodes.items():
                if node.is_wanted and (code := self.stem.code(node.pid)) is not None:
                    last = node.said().strip().splitlines()[-1:]
                    self.ended.append(f"{name} ended by itself with {code}: {last}")
                    self.notes.append(self.ended[-1])
                    await asyncio.sleep(0.5)
                    if node.is_wanted and self.stem.code(node.pid) is not None:
                        self._launch(node)
            await asyncio.sleep(0.25)

    def hung(self, url: str) -> None:
        """Take note of a node that did not answer; all write to their logs what they wait for, the first time."""
        names = [name for name, node in self.nodes.items() if node.url == url]
        self.notes.append(f"{', '.join(names)} did not answer, although all was well")
        if not self._has_told:
            self._has_told = True
            self.tell_tasks()

    def tell_tasks(self) -> None:
        """Have every node write to its log what it waits for."""
        for name, node in self.nodes.items():
            if node.is_wanted:
                self.signal(name, signal.SIGUSR1)

    # NATS servers

    def urls(self, user: str) -> str:
        """Return where the servers are, for a user of theirs."""
        return ",".join(
            f"nats://{user}:{PASSWORDS[user]}@{self.network.address(server)}:{CLIENTS}" for server in SERVERS
        )

    def start_server(self, server: str) -> None:
        routes = ", ".join(
            f'"nats://route:{PASSWORDS["route"]}@{self.network.address(other)}:{ROUTES}"' for other in SERVERS
        )
        address = self.network.address(server)
        environ = {
            "NATS_NAME": server,
            "NATS_ZONE": f"zone:{server}",
            "NATS_STORE": str(self.disks[server].folder),
            "NATS_STORE_SIZE": "1900MB",
            "NATS_STREAM_SIZE": "-1",
            "NATS_LISTEN": f"{address}:{CLIENTS}",
            "NATS_ROUTE": f"{address}:{ROUTES}",
            "NATS_MONITOR": f"{address}:{MONITOR}",
            "NATS_ROUTES": f"[{routes}]",
            **{f"NATS_{user.upper()}_PASSWORD": password for user, password in PASSWORDS.items()},
        }
        self.servers[server] = self.stem.run(
            [str(Path(sys.executable).with_name("nats-server")), "-c", str(self.home / "server.conf")],
            network=self.network.file(server),
            log=str(self.home / f"{server}.log"),
            environ=environ,
        )

    async def restart_server(self, server: str, number: signal.Signals, after: float) -> None:
        self.signal(server, number)
        await self._code(self.servers[server], server)
        await asyncio.sleep(after)
        self.start_server(server)

    async def is_well(self, server: str) -> None:
        """Return when a server says that it is well and has all it should have."""
        until = time.monotonic() + PATIENCE
        while (said := await asyncio.to_thread(self.ask, server, "/healthz")).get("status") != "ok":
            if self.stem.code(self.servers[server]) is not None:
                self.notes.append(f"{server} ended by itself, and was started again")
                self.start_server(server)
            if time.monotonic() > until:
                raise TimeoutError(f"{server} is not well: {said}")
            await asyncio.sleep(0.1)

    def ask(self, server: str, path: str) -> dict[str, Any]:
        """Return what a server says of itself; nothing if it says nothing."""
        url = f"http://{self.network.address(server)}:{MONITOR}{path}"
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                return msgspec.json.decode(answer.read())
        except urllib.error.HTTPError as error:
            return msgspec.json.decode(error.read() or b"{}")
        except (OSError, msgspec.DecodeError) as error:
            return {"error": str(error)}

    def leaders(self) -> dict[str, str]:
        """Return which server leads each stream."""
        for server in SERVERS:
            said = self.ask(server, "/jsz?accounts=true&streams=true")
            found = {
                stream["name"]: stream.get("cluster", {}).get("leader", "")
                for account in said.get("account_details") or ()
                for stream in account.get("stream_detail") or ()
            }
            if found:
                return found
        return {}

    # S3

    @property
    def _store_url(self) -> str:
        return f"http://{self.network.address(STORE)}:{PORT}"

    @property
    def _orders(self) -> Path:
        return self.home / "s3.orders"

    def order_store(self, what: str) -> None:
        """Have S3 fail or hesitate, as tests/faults/cluster/storing.py says; "": be well."""
        self._orders.write_text(what)

    def _start_store(self) -> None:
        command = [sys.executable, "-m", "tests.faults.cluster.storing", self.network.address(STORE), str(PORT)]
        self.order_store("")
        self.store = self.stem.run(
            [*command, str(self._orders)],
            network=self.network.file(STORE),
            log=str(self.home / "s3.log"),
            environ={"MOTO_PORT": str(PORT)},
        )

    async def _store_is_there(self) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                await asyncio.to_thread(self._make_bucket)
                return
            except OSError as error:
                if time.monotonic() > until:
                    raise TimeoutError("S3 does not start") from error
                await asyncio.sleep(0.1)

    def _make_bucket(self) -> None:
        make = urllib.request.Request(f"{self._store_url}/{S3.bucket}", method="PUT")
        urllib.request.urlopen(make, timeout=5).close()
