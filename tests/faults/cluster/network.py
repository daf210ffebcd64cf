"""A network of its own for every process, in which any two can be cut off from each other, one way or both.

Each has a network namespace, joined to one more that only passes packets on. What is cut is dropped there,
silently, as a broken switch does it: connections stay open and nothing arrives. It needs root and `ip`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""
HUB = 254
WHERE = Path("/var/run/netns")


def missing() -> str:
    """Return what keeps us from making networks and disks on this machine; nothing: they can be made."""
    if os.geteuid() != 0:
        return "A cluster is only broken by root, who may make networks and disks."
    for program in ("ip", "tc", "mount"):
        if shutil.which(program) is None:
            return f"A cluster is broken with `{program}`, which is not there (iproute2 has ip and tc)."
    name = f"sw{os.getpid()}try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"A cluster is broken with network namespaces, and none can be made: {tried.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


class Network:
    """Places, each with an address, and the ways between them."""

    def __init__(self) -> None:
        self._mark = f"sw{os.getpid()}"
        self._second = self._free()
        self._places: dict[str, int] = {}
        self._cuts: set[tuple[str, str]] = set()
        """From where to where nothing gets."""
        self._slow: set[str] = set()
        hub, us = self._space("hub"), self._mark
        _ip(f"netns add {hub}")
        _ip(f"link add {us} type veth peer name out netns {hub}")
        _ip(f"addr add {self._net(HUB)}.1/24 dev {us}", f"link set {us} up")
        _ip(f"addr add {self._net(HUB)}.2/24 dev out", "link set out up", "link set lo up", space=hub)
        _ip(f"route add 10.{self._second}.0.0/16 via {self._net(HUB)}.2")
        _run("ip", "netns", "exec", hub, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def _free(self) -> int:
        routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
        start = os.getpid() % 100
        return next(n for n in (*range(100 + start, 200), *range(100, 200)) if f"10.{n}." not in routes)

    def add(self, place: str) -> str:
        """Make a place; return its address."""
        number = self._places[place] = len(self._places) + 1
        space, hub, net, link = self._space(place), self._space("hub"), self._net(number), f"to{number}"
        _ip(f"netns add {space}")
        _ip(f"link add eth0 netns {space} type veth peer name {link} netns {hub}")
        _ip(f"addr add {net}.1/24 dev {link}", f"link set {link} up", space=hub)
        _ip(
            f"addr add {net}.2/24 dev eth0",
            "link set eth0 up",
            "link set lo up",
            f"route add default via {net}.1",
            space=space,
        )
        return self.address(place)

    def address(self, place: str) -> str:
        return f"{self._net(self._places[place])}.2"

    def _net(self, number: int) -> str:
        return f"10.{self._second}.{number}"

    def _space(self, place: str) -> str:
        return f"{self._mark}{place}"

    def command(self, place: str) -> list[str]:
        """Return what has to stand before a command to have it run there."""
        return ["ip", "netns", "exec", self._space(place)]

    def file(self, place: str) -> str:
        """Return what `enter` takes."""
        return str(WHERE / self._space(place))

    def cut(self, ones: Iterable[str], others: Iterable[str], *, back: bool = True) -> None:
        """Let nothing get from `ones` to `others`, nor back unless told so."""
        others = [*others]
        for one in ones:
            for other in others:
                if one != other:
                    self._cut(one, other)
                    if back:
                        self._cut(other, one)

    def heal(self, ones: Iterable[str], others: Iterable[str]) -> None:
        """Join them again, both ways."""
        others = [*others]
        for one in ones:
            for other in others:
                for way in ((one, other), (other, one)):
                    if way in self._cuts:
                        self._cuts.discard(way)
                        self._rule("del", *way)

    def heal_all(self) -> None:
        for one, other in [*self._cuts]:
            self.heal([one], [other])
        for place in [*self._slow]:
            self.hasten(place)

    def _cut(self, one: str, other: str) -> None:
        if (one, other) not in self._cuts:
            self._cuts.add((one, other))
            self._rule("add", one, other)

    def _rule(self, verb: str, one: str, other: str) -> None:
        _ip(f"rule {verb} from {self.address(one)} to {self.address(other)} blackhole", space=self._space("hub"))

    def slow_down(self, place: str, kilobits: int) -> None:
        """Let no more than so much get to a place and from it; what does not fit waits a while, or is lost."""
        self._slow.add(place)
        for command in self._lines(place):
            _run(*command("add"), "tbf", "rate", f"{kilobits}kbit", "burst", "4kb", "latency", "400ms")

    def hasten(self, place: str) -> None:
        self._slow.discard(place)
        for command in self._lines(place):
            _run(*command("del"))

    def _lines(self, place: str) -> list[_Line]:
        return [
            _Line(self._space("hub"), f"to{self._places[place]}"),
            _Line(self._space(place), "eth0"),
        ]

    def remove(self) -> None:
        """Remove it. Whoever still runs in it is alone from then on."""
        for place in [*self._places, "hub"]:
            subprocess.run(["ip", "netns", "del", self._space(place)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._mark], capture_output=True, check=False)


class _Line:
    def __init__(self, space: str, device: str) -> None:
        self._space, self._device = space, device

    def __call__(self, verb: str) -> list[str]:
        return ["tc", "-n", self._space, "qdisc", verb, "dev", self._device, "root"]


def enter(file: str) -> None:
    """Have this process live in a place from now on. It must not have begun anything with the network."""
    descriptor = os.open(file, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns", file)
    os.close(descriptor)


def _ip(*commands: str, space: str = "") -> None:
    where = ["-n", space] if space else []
    _run("ip", *where, "-batch", "-", input="\n".join(commands) + "\n")


def _run(*command: str, input: str = "") -> None:
    done = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)} {input}: {done.stderr}")
