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
from sapwood.periods import Per, combined, each, is_number

MIB = 1024 * 1024
CLUSTER_HISTORY = 7 * 86400.0
DEV_HISTORY = 86400.0
"""Seconds of history under `sapwood dev`, unless the settings say otherwise."""
FILE_URL_SCHEMES = ("https", "http")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
PUBLIC_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+")
SOURCES = re.compile(r"[!-+\--:<-~ ]*")


class Durability(str, Enum):
    """What a write must survive before its results leave an agent."""

    PROCESS = "process"
    """Writes survive a crash of the process (kill -9). Nothing waits for the disk."""
    DISK = "disk"
    """Writes survive a power failure: results wait until the writes before them are on disk."""
    REPLICATED = "replicated"
    """Writes survive the loss of a machine: results wait until a majority of the log's servers has stored the writes
    before them. The process is a node of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a tree. The limits of a class and of everything above it are combined: the lowest value applies."""

    depth: int = 64
    """Levels of sub-agents below a root. 0 means no sub-agents."""
    children: int = 100_000
    """Sub-agents of one agent."""
    descendants: int = 1_000_000
    """Sub-agents of a whole tree."""
    database_bytes: int = 1024 * MIB
    """Size of one agent's database."""
    tree_bytes: int = 64 * 1024 * MIB
    """Total size of all databases and files of a tree. Only the limits of the app and of the root's class apply."""
    file_bytes: int = 4096 * MIB
    """Total size of the files of one agent, uploads in progress included."""
    history_bytes: int = 1024 * MIB
    """Size of the history of a tree. Above it, the oldest part is removed. Only the limits of the app and of the root's
    class apply, and none in a cluster."""
    payload_bytes: int = 8 * MIB
    """Size of one copied argument, result or stream item."""
    tokens: int | Per | tuple[int | Per, ...] | None = None
    """Tokens that models may use for one agent and everything below it. A number holds for the lifetime of the agent,
    `Per("day", 200_000)` for each day. In a tuple, all hold. `None` means no limit."""
    dollars: float | Per | tuple[float | Per, ...] | None = None
    """Cost of these tokens in dollars, in the same way. `None` means no limit."""
    runs_at_once: int | None = None
    """Unfinished runs that one agent and everything below it have started. `None` means no limit."""
    runs_per_minute: int | None = None
    """Runs that one agent and everything below it may start per minute. `None` means no limit."""

    def __post_init__(self) -> None:
        for field_ in fields(self):
            value, kind = getattr(self, field_.name), str(field_.type)
            if value is None and kind.endswith("| None"):
                continue
            for part in each(value) if "Per" in kind else (value,):
                amount = part.amount if isinstance(part, Per) else part
                if kind.startswith("float"):
                    if not is_number(amount):
                        raise UsageError(
                            f"Limits({field_.name}={part!r}): expected a number of at least 0{_periods(part)}."
                        )
                elif not isinstance(amount, int) or amount < 0:
                    periods = _periods(part) if "Per" in kind else ""
                    raise UsageError(f"Limits({field_.name}={part!r}): expected an integer of at least 0{periods}.")
            if "Per" in kind:  # in one form, so that equal limits are equal values
                object.__setattr__(self, field_.name, combined(value))

    def within(self, other: Limits) -> Limits:
        """Return limits that allow what both allow: the lower number of each field, and all limits per period."""
        return Limits(**{f.name: combined(getattr(self, f.name), getattr(other, f.name)) for f in fields(Limits)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one node runs."""

    data: str | os.PathLike[str] = "sapwood-data"
    """The folder that holds every database. One process owns it at a time."""
    durability: Durability | str = Durability.PROCESS
    """What a write must survive before its results leave an agent: `process`, `disk` or `replicated`."""
    limits: Limits = field(default_factory=Limits)
    """Limits of every tree, unless a class sets lower ones."""
    sleep_after: float = 120.0
    """Seconds an idle agent stays in memory."""
    open_databases: int | None = None
    """Maximum number of open databases. `None` means as many as the limit on open files allows."""
    slow_after: float = 0.1
    """Seconds of code without an await after which a warning names the method."""
    stuck_after: float = 30.0
    """Seconds of code without an await after which the node reports that it is not ready."""
    fatal_after: float = 60.0
    """Seconds of code without an await after which the process logs where it is stuck, and exits."""
    strikes: int = 3
    """Number of fatal slices within an hour after which a tree is quarantined."""
    sql_timeout: float = 1.0
    """Timeout of one SQL statement on the event loop, in seconds. `read_sql` has no timeout."""
    threads: int = 16
    """Maximum number of threads for `in_thread`."""
    model_requests_at_once: int = 1000
    """Concurrent requests to one model provider. Further requests wait."""
    model_requests_per_minute: int = 1_000_000
    """Requests to one model provider per minute. Further requests wait."""
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Price of a million input and output tokens in dollars, by model name. Other prices are looked up."""
    recovery_timeout: float = 30.0
    """Timeout of `on_fiber_recovered` in seconds. After it, the hook is retried later."""
    idempotency_retention: float = 86400.0
    """Seconds for which an agent remembers the outcome of a call that was made with an idempotency key."""
    run_idle_timeout: float = 120.0
    """Seconds without progress after which a run that continues after a crash is interrupted."""
    prefix: str = "agents"
    """The first segment of every URL. If the app is mounted in another app, the mount path replaces it."""
    origins: tuple[str, ...] = ()
    """Origins, other than the server's own, whose pages may open sockets and send requests that change data."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, other than `localhost`, that `sapwood serve` accepts on a loopback address without `authenticate`."""
    frame_ancestors: str = "'self'"
    """Sources of `Content-Security-Policy: frame-ancestors` on every response. An empty string sends no header."""
    file_url_schemes: tuple[str, ...] = ("https",)
    """Schemes of URLs that clients may send as files: `https`, `http`. `()` accepts only `data:` URLs."""
    mcp_private_hosts: tuple[str, ...] = ()
    """Hosts of private networks, such as `mcp.internal`, that agents may use as MCP servers. Public hosts need none."""
    secret_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys for secrets that agents store, of at least 32 characters. The first encrypts, all decrypt."""
    erasure_key: str = field(default="", repr=False)
    """Private key that signs the receipts of erasures: 32 bytes, hexadecimal. Empty: the data folder gets its own."""
    public_url: str = ""
    """The URL under which browsers reach this server, such as `https://agents.example.com`, for sign-ins elsewhere."""
    cors: bool = False
    """Whether pages of any origin may read HTTP responses."""
    request_bytes: int = 64 * MIB
    """Size of the body of one HTTP request."""
    frame_bytes: int = 1 * MIB
    """Size of one message from a client, without its inline files."""
    file_frame_bytes: int = 32 * MIB
    """Size of one message from a chat client with the inline files in it."""
    file_frames_bytes: int = 256 * MIB
    """Size of all messages with inline files that a process receives at the same time. Further ones wait."""
    outgoing_bytes: int = 4 * MIB
    """Bytes that may be buffered for one client that does not read. Above this, its socket is closed."""
    connections: int = 20_000
    """Sockets of the process."""
    connections_per_address: int = 1000
    """Connections of one remote address, authenticated or not. Loopback and trusted proxies are exempt."""
    connections_per_agent: int = 10_000
    """Open sockets and HTTP requests of one agent."""
    connections_per_user: int = 1000
    """Open sockets and HTTP requests of one user."""
    new_roots_per_minute: int | None = 600
    """Agents that one user may create by URL per minute; without a user, one remote address. `None` means no limit."""
    check_state: bool = False
    """Whether changing `self.state` in place raises. Enabled in `sapwood.testing`."""
    nats: str = ""
    """The NATS servers of the cluster, separated by commas. Only for `replicated`."""
    archive: str = ""
    """The object storage for the archive of the cluster, such as `s3://bucket/prefix`. Only for `replicated`."""
    cluster: str = "sapwood"
    """The name of the cluster. Several clusters may share NATS servers, each with its own archive."""
    node: str = ""
    """The unique name of this node. An empty string means the host name with a random suffix."""
    park_after: float = 600.0
    """Seconds of idle time after which a tree is stored only in object storage."""
    history: float | None = None
    """Seconds for which the history of a tree is kept, so that it can be forked, exported or restored as it was at an
    earlier time. 0 keeps none. `None` means a week in a cluster, one day under `sapwood dev`, and otherwise 0."""

    def __post_init__(self) -> None:
        for field_ in fields(self):
            check_setting(field_.name, str(field_.type), getattr(self, field_.name))
        for model, price in self.prices.items():
            if not _is_price(price):
                raise UsageError(f"Settings(prices={{{model!r}: {price!r}}}): expected two numbers of at least 0.")
        if not set(self.file_url_schemes) <= set(FILE_URL_SCHEMES):
            raise UsageError(f"Settings(file_url_schemes={self.file_url_schemes!r}): expected 'https' and 'http' only.")
        if self.durability not in tuple(Durability):
            *levels, last = [repr(level.value) for level in Durability]
            raise UsageError(f"Settings(durability={self.durability!r}): expected {', '.join(levels)} or {last}.")
        if not SOURCES.fullmatch(self.frame_ancestors):
            raise UsageError(
                f"Settings(frame_ancestors={self.frame_ancestors!r}): expected sources separated by spaces, such "
                "as \"'self' https://app.example.com\"; commas, semicolons and line breaks are not allowed."
            )
        if not all(isinstance(one, str) and len(one) >= SECRET_KEY for one in self.secret_keys):  # pyright: ignore[reportUnnecessaryIsInstance] - unchecked programs exist
            raise UsageError(
                f"Settings(secret_keys=…): expected strings of at least {SECRET_KEY} characters. Write one with: "
                'python -c "import secrets; print(secrets.token_urlsafe(32))"'
            )
        if self.public_url and not PUBLIC_URL.fullmatch(self.public_url):
            raise UsageError(
                f"Settings(public_url={self.public_url!r}): expected a URL without path and query, such as "
                "https://agents.example.com, or an empty string."
            )
        self._check_cluster()

    @property
    def history_seconds(self) -> float:
        """Seconds for which the history of a tree is kept."""
        if self.history is not None:
            return float(self.history)
        return CLUSTER_HISTORY if self.durability == Durability.REPLICATED else 0.0

    def _check_cluster(self) -> None:
        for name in ("cluster", "node"):
            value: str = getattr(self, name)
            if (name == "cluster" or value) and not NAME.fullmatch(value):
                raise UsageError(
                    f"Settings({name}={value!r}): expected at most 64 letters, digits, hyphens and underscores."
                )
        where = {"nats": "nats://one,nats://two", "archive": "s3://bucket/prefix"}
        for name, example in where.items():
            if self.durability == Durability.REPLICATED and not getattr(self, name):
                raise UsageError(
                    f"Settings(durability='replicated') stores all data in NATS and in object storage. "
                    f"Set {name}={example!r}, or SAPWOOD_{name.upper()}."
                )
            if self.durability != Durability.REPLICATED and getattr(self, name):
                raise UsageError(f"Settings({name}=…) requires durability='replicated'. Set both, or neither.")


def check_setting(name: str, kind: str, value: Any) -> None:
    """Refuse a value that a setting with this annotation cannot have."""
    kinds, what = KINDS[kind]
    fits = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
    bound = ""
    if kind in NUMBERS and value is not None:
        least: float = dict[str, float](LEAST).get(name, 0)
        bound = " above 0" if name in ABOVE_ZERO else f" of at least {least}"
        fits = fits and (value > 0 if name in ABOVE_ZERO else value >= least)  # what is not a number is neither
    if not fits:
        noun, comma, rest = what.partition(", ")
        shown = "…" if name in SECRET else repr(value)
        raise UsageError(f"Settings({name}={shown}): expected {noun}{bound}{comma}{rest}.")


def _periods(part: object) -> str:
    """Return what to write for a limit per period that was written as a text, such as "5/month"."""
    return ', or a limit per period, such as Per("month", 5)' if isinstance(part, str) else ""


def _is_price(price: Any) -> bool:
    try:
        reads, writes = price
        return 0 <= reads < inf and 0 <= writes < inf
    except (TypeError, ValueError):
        return False


KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str | os.PathLike[str]": ((str, os.PathLike), "a path"),
    "Durability | str": ((str,), "a Durability or its value"),
    "Limits": ((Limits,), "Limits(…)"),
    "float": ((float, int), "a number"),
    "float | None": ((float, int, NoneType), "a number, or None"),
    "int": ((int,), "an integer"),
    "str": ((str,), "a string"),
    "tuple[str, ...]": ((tuple,), "a tuple of strings"),
    "int | None": ((int, NoneType), "an integer, or None"),
    "bool": ((bool,), "True or False"),
    "Mapping[str, tuple[float, float]]": ((Mapping,), "prices by model, such as {'my-model': (0.5, 2.0)}"),
}
"""What the fields of `Settings` may hold, by their annotation: unchecked programs exist."""
NUMBERS = frozenset({"int", "float", "float | None", "int | None"})
LEAST: dict[str, int] = dict.fromkeys(
    (
        *("open_databases", "strikes", "threads", "model_requests_at_once", "model_requests_per_minute"),
        *("frame_bytes", "outgoing_bytes"),
        *("connections", "connections_per_address", "connections_per_agent", "connections_per_user"),
    ),
    1,
)
"""The lowest value of a setting that is a number. Others may be 0."""
SECRET = frozenset({"secret_keys"})
"""Settings whose values no error shows."""
SECRET_KEY = 32
"""Characters of a secret key at least."""
ABOVE_ZERO = frozenset(
    {"slow_after", "stuck_after", "fatal_after", "sql_timeout", "recovery_timeout", "run_idle_timeout"}
)
"""Durations that cannot be 0."""
