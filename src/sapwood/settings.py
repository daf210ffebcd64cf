"""How a node is set up: plain values, handed in once.

Library code never reads the environment; only the command line turns `SAPWOOD_*`
variables into these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from math import inf
from types import NoneType
from typing import Any

from sapwood.errors import UsageError

MIB = 1024 * 1024
FILE_URL_SCHEMES = ("https", "http")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
SOURCES = re.compile(r"[!-+\--:<-~ ]*")


class Durability(str, Enum):
    """What "kept" means before anything leaves an agent."""

    PROCESS = "process"
    """Survives the death of the process (kill -9). Nothing ever waits for a disk."""
    DISK = "disk"
    """Survives the loss of power: what leaves waits until the disk has what came before it."""
    REPLICATED = "replicated"
    """Survives the loss of the machine: what leaves waits until a majority of the log's servers has what came
    before it. The process is a node of a cluster then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a tree may grow to. A class's limits and those above it combine to the tightest."""

    depth: int = 64
    """Levels of sub-agents below a root; 0 allows none."""
    children: int = 100_000
    """Sub-agents of one agent."""
    descendants: int = 1_000_000
    """Sub-agents of a whole tree."""
    database_bytes: int = 1024 * MIB
    """Size of one agent's database."""
    tree_bytes: int = 64 * 1024 * MIB
    """Size of all databases of a tree together; the app's and the root's class count, no other."""
    payload_bytes: int = 8 * MIB
    """Size of one copied argument, result or stream item."""
    tokens: int | None = None
    """Tokens that models may use for one agent and everything below it, as long as it lives; None: any number."""
    dollars: float | None = None
    """What these may cost."""
    runs_at_once: int | None = None
    """Runs that one agent and everything below it have given and that are not over; None: any number."""
    runs_per_minute: int | None = None
    """Runs that one agent and everything below it may begin in a minute; None: any number."""

    def __post_init__(self) -> None:
        for field_ in fields(self):
            value, kind = getattr(self, field_.name), str(field_.type)
            if value is None and kind.endswith("| None"):
                continue
            if kind.startswith("float"):
                if not isinstance(value, int | float) or not 0 <= value < inf:
                    raise UsageError(f"Limits({field_.name}={value!r}): a limit is a number, 0 or more.")
            elif not isinstance(value, int) or value < 0:
                raise UsageError(f"Limits({field_.name}={value!r}): a limit is a whole number, 0 or more.")

    def within(self, other: Limits) -> Limits:
        """Return, field by field, the tighter of the two."""
        return Limits(**{f.name: _tighter(getattr(self, f.name), getattr(other, f.name)) for f in fields(Limits)})


def _tighter(one: Any, other: Any) -> Any:
    return min((limit for limit in (one, other) if limit is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one node runs."""

    data: str | os.PathLike[str] = "sapwood-data"
    """The folder that holds every database. One process owns it at a time."""
    durability: Durability | str = Durability.PROCESS
    """What must be kept before anything leaves an agent: `process`, `disk` or `replicated`."""
    limits: Limits = field(default_factory=Limits)
    """What every tree may grow to, unless a class says less."""
    sleep_after: float = 120.0
    """Seconds an idle agent stays in memory."""
    open_databases: int | None = None
    """How many databases may be open at once; None: as many as the limit on open files allows."""
    slow_after: float = 0.1
    """Seconds of code without an await after which a warning names the method."""
    stuck_after: float = 30.0
    """Seconds after which the node reports itself as not ready."""
    fatal_after: float = 60.0
    """Seconds after which the process writes down where it is stuck, and ends."""
    strikes: int = 3
    """How many fatal slices in an hour put a tree in quarantine."""
    sql_timeout: float = 1.0
    """Seconds one statement may run on the loop; `read_sql` has no such limit."""
    threads: int = 16
    """How many threads `in_thread` may use."""
    model_requests_at_once: int = 1000
    """Requests to one provider of models that may be under way; more wait."""
    model_requests_per_minute: int = 1_000_000
    """Requests to one provider of models in a minute; more wait."""
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Dollars for a million tokens that a model reads, and writes, by its name; others are looked up."""
    recovery_timeout: float = 30.0
    """Seconds `on_fiber_recovered` may take; then it is tried again later."""
    idempotency_retention: float = 86400.0
    """Seconds for which an agent remembers the outcome of a call that was made with an idempotency key."""
    run_idle_timeout: float = 120.0
    """Seconds nothing may be heard of a run, after a crash, before it is given up."""
    prefix: str = "agents"
    """The first segment of every URL; mounted in another app, the mount point takes its place."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may open sockets and send requests that change something, beside the server's own."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names that `sapwood serve` accepts on a loopback address without `authenticate`, beside `localhost`."""
    frame_ancestors: str = "'self'"
    """Sources of `Content-Security-Policy: frame-ancestors` on every response; an empty string sends no header."""
    file_url_schemes: tuple[str, ...] = ("https",)
    """Schemes of URLs that clients may send as files: `https`, `http`. `()` accepts only `data:` URLs."""
    cors: bool = False
    """Whether pages of any origin may read HTTP answers."""
    request_bytes: int = 64 * MIB
    """Size of the body of one HTTP request."""
    frame_bytes: int = 1 * MIB
    """Size of one message of a client's."""
    outgoing_bytes: int = 4 * MIB
    """What may wait for one client that does not read; then its socket is closed."""
    connections: int = 20_000
    """Sockets of the process."""
    connections_per_address: int = 1000
    """Connections of one remote address, authenticated or not. Loopback and trusted proxies have no such limit."""
    connections_per_agent: int = 10_000
    """Sockets and HTTP requests under way of one agent."""
    connections_per_user: int = 1000
    """Sockets and HTTP requests under way of one user."""
    new_roots_per_minute: int | None = 600
    """New agents that URLs of one user, or of one remote address without a user, may make in a minute. `None` means
    no limit."""
    check_state: bool = False
    """Whether changing `self.state` in place is detected and raises; on in `sapwood.testing`."""
    nats: str = ""
    """The NATS servers of the cluster, with commas between them; for `replicated`."""
    archive: str = ""
    """Where in object storage the cluster keeps what is old, such as `s3://bucket/prefix`; for `replicated`."""
    cluster: str = "sapwood"
    """The name of the cluster: several may share the NATS servers, each with an archive of its own."""
    node: str = ""
    """The name of this node, which no other has; "": the host's name and something random."""
    park_after: float = 600.0
    """Seconds a tree is idle before it lies in object storage only."""
    history: float = 7 * 86400.0
    """Seconds for which object storage keeps what a tree was, so that it can be put back to any moment."""

    def __post_init__(self) -> None:
        for field_ in fields(self):
            value = getattr(self, field_.name)
            kinds, what = KINDS[str(field_.type)]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise UsageError(f"Settings({field_.name}={value!r}): it takes {what}.")
        for model, price in self.prices.items():
            if not _is_price(price):
                raise UsageError(f"Settings(prices={{{model!r}: {price!r}}}): it takes two numbers, 0 or more.")
        if not set(self.file_url_schemes) <= set(FILE_URL_SCHEMES):
            raise UsageError(f"Settings(file_url_schemes={self.file_url_schemes!r}): expected 'https' and 'http' only.")
        if self.durability not in tuple(Durability):
            *levels, last = [repr(level.value) for level in Durability]
            raise UsageError(f"Settings(durability={self.durability!r}): it can be {', '.join(levels)} or {last}.")
        if not SOURCES.fullmatch(self.frame_ancestors):
            raise UsageError(
                f"Settings(frame_ancestors={self.frame_ancestors!r}): expected sources with spaces between them, such "
                "as \"'self' https://app.example.com\"; commas, semicolons and line breaks are not allowed."
            )
        self._check_cluster()

    def _check_cluster(self) -> None:
        for name in ("cluster", "node"):
            value: str = getattr(self, name)
            if (name == "cluster" or value) and not NAME.fullmatch(value):
                raise UsageError(
                    f"Settings({name}={value!r}): a name has letters, digits, - and _, and 64 of them at most."
                )
        where = {"nats": "nats://one,nats://two", "archive": "s3://bucket/prefix"}
        for name, example in where.items():
            if self.durability == Durability.REPLICATED and not getattr(self, name):
                raise UsageError(
                    f"Settings(durability='replicated') keeps everything in NATS and in object storage. "
                    f"Say where: {name}={example!r}, or SAPWOOD_{name.upper()}."
                )
            if self.durability != Durability.REPLICATED and getattr(self, name):
                raise UsageError(
                    f"Settings({name}=…) is for a cluster. Say durability='replicated' beside it, or leave it out."
                )


def _is_price(price: Any) -> bool:
    try:
        reads, writes = price
        return 0 <= reads < inf and 0 <= writes < inf
    except (TypeError, ValueError):
        return False


KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str | os.PathLike[str]": ((str, os.PathLike), "a path"),
    "Durability | str": ((str,), "a Durability or its text"),
    "Limits": ((Limits,), "Limits(…)"),
    "float": ((float, int), "a number"),
    "int": ((int,), "a whole number"),
    "str": ((str,), "a text"),
    "tuple[str, ...]": ((tuple,), "a tuple of texts"),
    "int | None": ((int, NoneType), "a whole number, or None"),
    "bool": ((bool,), "True or False"),
    "Mapping[str, tuple[float, float]]": ((Mapping,), "a price by model, such as {'my-model': (0.5, 2.0)}"),
}
"""What the fields of `Settings` may hold, by their annotation: unchecked programs exist."""
