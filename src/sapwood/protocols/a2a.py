"""A2A 1.0: agents of other systems give tasks to agents of this app, over JSON-RPC."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sapwood.address import kebab
from sapwood.errors import UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_desk import EVERYONE, USER, A2aDesk
from sapwood.protocols.adapter import Adapter, Place
from sapwood.protocols.desk_user import desk_user
from sapwood.runs.execution.run_hooks import class_hooks
from sapwood.wire.routing import relative

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from sapwood.agent import Agent

PATH = "/a2a"
CARD = "/.well-known/agent-card.json"


class A2a(Adapter):
    """Publishes agent classes to other agents by the protocol A2A 1.0.

    Each class of `agents` is an agent at `/a2a/{class}`, such as `/a2a/news-desk`, with its card at
    `/a2a/{class}/.well-known/agent-card.json`. The card of the first is also at `/.well-known/agent-card.json`. A task
    is a run, and a context is a conversation.

    `url` is the address of the server for the cards, such as `https://agents.example.com`; without it, the one that a
    client used. `security` are the `securitySchemes` of the cards. `push_hosts` are hosts of private networks that
    clients may have notifications sent to; public hosts are always allowed. A message with the `messageId` of an
    earlier one joins its task; with `joins_repeated=False`, only while that task is not over.
    """

    agents = (A2aDesk,)

    def __init__(
        self,
        agents: Sequence[type[Agent[Any]]],
        *,
        version: str = "1.0.0",
        url: str | None = None,
        security: Mapping[str, Any] | None = None,
        push_hosts: Sequence[str] = (),
        joins_repeated: bool = True,
    ) -> None:
        if isinstance(agents, type):
            raise UsageError(f"A2a(agents=…) must be a list of agent classes. Write A2a([{agents.__name__}]).")
        if not agents:
            raise UsageError("A2a(agents=…) must name at least one agent class.")
        for cls in agents:
            _check_runnable(cls)
        self._version = version
        self._url = None if url is None else url.rstrip("/")
        self._security = dict(security or {})
        self.push_hosts = frozenset(host.lower() for host in push_hosts)
        self.joins_repeated = joins_repeated
        self.published: dict[str, type[Agent[Any]]] = {f"{PATH}/{kebab(known(cls).type)}": cls for cls in agents}
        """The classes, by the path of each."""
        self.public = (CARD, *(f"{path}{CARD}" for path in self.published))
        self.roots = (CARD, PATH)

    async def locate(self, request: Request, agents: Sequence[type[Agent[Any]]]) -> Place | Response:
        """Answer a request for a card, or lead a request to the desk of its user."""
        from starlette.responses import JSONResponse, Response

        path = relative(request.scope["path"], request.scope.get("root_path", "")).rstrip("/")
        if path.endswith(CARD):
            found = next(iter(self.published)) if path == CARD else path.removesuffix(CARD)
            if request.method not in ("GET", "HEAD") or found not in self.published:
                return Response("Not Found", 404)
            base = str(request.base_url.replace(path=request.scope.get("root_path", "")))
            response = JSONResponse(self.card(found, base), headers={"cache-control": "max-age=300"})
            tag = f'"{hashlib.sha256(bytes(response.body)).hexdigest()[:32]}"'
            response.headers["etag"] = tag
            is_known = tag in request.headers.get("if-none-match", "")
            return Response(status_code=304, headers={"etag": tag}) if is_known else response
        if path not in self.published:
            names = ", ".join(self.published)
            return Response(f"There is no A2A agent at this path. The agents of this server: {names}.", 404)
        if request.method != "POST":
            return Response("Send JSON-RPC requests by POST.", 405, headers={"allow": "POST"})
        return Place(A2aDesk, _desk_of(request.scope.get("user")), path)

    def challenge(self, request: Request) -> str | None:
        """Return how a client signs in, as far as that is known: the cards have the schemes."""
        return "Bearer"

    def card(self, path: str, base: str) -> dict[str, Any]:
        """Return the card of one agent."""
        kind = known(self.published[path])
        name, text = kind.cls.__name__, (kind.cls.__doc__ or kind.cls.__name__).strip()
        modes = ["text/plain", "application/json"]
        card: dict[str, Any] = {
            "name": name,
            "description": text,
            "version": self._version,
            "supportedInterfaces": [
                {
                    "url": f"{self._url or base.rstrip('/')}{path}",
                    "protocolBinding": "JSONRPC",
                    "protocolVersion": wire.VERSION,
                }
            ],
            "capabilities": {"streaming": True, "pushNotifications": True, "extendedAgentCard": False},
            "defaultInputModes": modes,
            "defaultOutputModes": modes,
            "skills": [{"id": path.rpartition("/")[2], "name": name, "description": text, "tags": ["sapwood"]}],
        }
        if self._security:
            card["securitySchemes"] = self._security
            card["securityRequirements"] = [{"schemes": {name: {"list": []}}} for name in self._security]
        return card


def _check_runnable(cls: object) -> None:
    """Refuse what can do no task."""
    kind = known(cls) if isinstance(cls, type) else None
    if kind is None or not (class_hooks(kind).has_conversation or kind.overrides("on_run")):
        name = getattr(cls, "__name__", repr(cls))
        raise UsageError(f"A2a(agents=…): {name} must be a chat agent class, or an agent class with on_run().")


def _desk_of(user: Any) -> str:
    """Return the name of the desk of a user."""
    id = desk_user(user, "A2a")
    return EVERYONE if id is None else f"{USER}{id}"
