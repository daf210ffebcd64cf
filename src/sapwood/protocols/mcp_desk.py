"""The root that works for one client of an MCP server: its runs are the client's tool calls."""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

import msgspec

from sapwood.agent import Agent
from sapwood.protocols.adapter import Adapters, adapter_of
from sapwood.randomness import new_id
from sapwood.retention import Retention
from sapwood.runs.default_hooks import DefaultHooks

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ANONYMOUS = "anonymous"
"""The name of the desk of all clients without a user."""
LOST = "The connection of the client was lost."
RETENTION = timedelta(days=7)
"""How long a tool call is kept after its end."""
TABLES = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, version TEXT NOT NULL, capabilities TEXT NOT NULL
) STRICT;
CREATE TABLE secrets (secret BLOB NOT NULL) STRICT;
CREATE TABLE owners (id TEXT NOT NULL) STRICT;
CREATE TABLE answers (run TEXT NOT NULL, question TEXT NOT NULL, PRIMARY KEY (run, question)) STRICT, WITHOUT ROWID;
CREATE TABLE held_runs (run TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
"""
SESSIONS = 10_000
"""Sessions of one desk. The oldest is forgotten for a new one."""


class Session(NamedTuple):
    """A client of a protocol revision with a handshake."""

    id: str
    version: str
    capabilities: dict[str, Any]

    @property
    def takes_forms(self) -> bool:
        """Whether the client shows forms to its user."""
        return takes_forms(self.capabilities)


def takes_forms(capabilities: Any) -> bool:
    """Return whether a client that declares these capabilities shows forms to its user."""
    found = cast("dict[str, Any]", capabilities).get("elicitation") if isinstance(capabilities, dict) else None
    return isinstance(found, dict) and ("form" in found or not found)


class DeskHooks(DefaultHooks):
    """The hooks of a desk: all that it does is done for its user, whose limits hold."""

    def owner(self) -> str | None:
        database = self._actor.user_database()
        rows = list(database.run("SELECT id FROM owners LIMIT 1", ()))
        return str(rows[0]["id"]) if rows else None


class Responder(Protocol):
    """The adapter that answers what a desk receives."""

    async def respond(self, request: Request, desk: McpDesk) -> Response: ...


class DeskBase(Agent, hooks=frozenset()):
    """An agent with the hooks of a desk."""

    _hooks_class = DeskHooks


class McpDesk(DeskBase):
    """Works for one user of an MCP server, or for all clients without a user. The id of a task is the id of a run."""

    migrations = (TABLES,)
    run_retention: ClassVar = Retention(age=RETENTION)
    send_identity = False

    async def on_start(self) -> None:
        """Cancel the runs of calls that were held, without an id that the client knows, when the process ended."""
        for row in self.sql("DELETE FROM held_runs RETURNING run"):
            self.runs.cancel(str(row["run"]), LOST)

    async def on_request(self, request: Request) -> Response:
        """Answer a request of the client."""
        adapters = self._actor.host.shared(Adapters).adapters
        return await cast("Responder", adapter_of(adapters, request.scope["path"])).respond(request, self)


class HeldRuns:
    """The runs of held calls that the client cannot join again: they end with their connection."""

    def __init__(self, desk: McpDesk) -> None:
        self._desk = desk

    def add(self, run: str) -> None:
        self._desk.sql("INSERT OR IGNORE INTO held_runs VALUES (?)", run)

    def remove(self, run: str) -> None:
        """The client has the result, or knows how to come again."""
        self._desk.sql("DELETE FROM held_runs WHERE run = ?", run)


class Answers:
    """The questions that clients have answered: the index of the tree may have them for a moment longer."""

    def __init__(self, desk: McpDesk) -> None:
        self._desk = desk

    def add(self, run: str, question: str) -> None:
        self._desk.sql("INSERT OR IGNORE INTO answers VALUES (?, ?)", run, question)

    def of(self, run: str) -> set[str]:
        return {str(row["question"]) for row in self._desk.sql("SELECT question FROM answers WHERE run = ?", run)}

    def forget(self, run: str) -> None:
        """The run is over."""
        if self.of(run):
            self._desk.sql("DELETE FROM answers WHERE run = ?", run)


class Sessions:
    """The sessions of one desk, which survive its process."""

    def __init__(self, desk: McpDesk) -> None:
        self._desk = desk

    def begin(self, version: str, capabilities: dict[str, Any]) -> Session:
        """Store a new session, in this slice."""
        id = new_id(self._desk._actor.host.random)  # pyright: ignore[reportPrivateUsage]
        text = msgspec.json.encode(capabilities).decode()
        self._desk.sql("INSERT INTO sessions (id, version, capabilities) VALUES (?, ?, ?)", id, version, text)
        self._desk.sql("DELETE FROM sessions WHERE number <= (SELECT max(number) FROM sessions) - ?", SESSIONS)
        return Session(id, version, capabilities)

    def get(self, id: str) -> Session | None:
        rows = list(self._desk.sql("SELECT version, capabilities FROM sessions WHERE id = ?", id))
        if not rows:
            return None
        return Session(id, str(rows[0]["version"]), msgspec.json.decode(str(rows[0]["capabilities"])))

    def end(self, id: str) -> None:
        self._desk.sql("DELETE FROM sessions WHERE id = ?", id)


class Seal:
    """Signs what a client is to send back, with a key that is stored with the desk and so outlives every process."""

    def __init__(self, desk: McpDesk) -> None:
        self._desk = desk

    def sealed(self, text: str, about: bytes) -> str:
        """Return a text with a signature of it and of what it is about."""
        return f"{text}.{self._signature(text, about)}"

    def opened(self, sealed: str, about: bytes) -> str | None:
        """Return the text; `None` if this desk has not signed it about this."""
        text, _, signature = sealed.rpartition(".")
        is_ours = hmac.compare_digest(signature.encode(), self._signature(text, about).encode())
        return text if is_ours else None

    def _signature(self, text: str, about: bytes) -> str:
        content = hashlib.sha256(about).digest() + text.encode(errors="surrogatepass")
        return hmac.new(self._key(), content, hashlib.sha256).hexdigest()

    def _key(self) -> bytes:
        rows = list(self._desk.sql("SELECT secret FROM secrets"))
        if rows:
            return cast("bytes", rows[0]["secret"])
        key = self._desk._actor.host.random.randbytes(32)  # pyright: ignore[reportPrivateUsage]
        self._desk.sql("INSERT INTO secrets VALUES (?)", key)
        return key
