"""`Mcp`: agents as tools of an MCP server, for `App(protocols=…)`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import msgspec

from sapwood.address import checked_name
from sapwood.agent import Agent
from sapwood.chat.tools.agent_tools import AgentTool
from sapwood.errors import InvalidName, UsageError
from sapwood.kernel.marshal.agent_class import known
from sapwood.protocols.adapter import Adapter, Place
from sapwood.protocols.desk_user import desk_user
from sapwood.protocols.exchange import Exchange
from sapwood.protocols.mcp_desk import ANONYMOUS, McpDesk
from sapwood.protocols.mcp_options import McpOptions, TaskSupport
from sapwood.protocols.mcp_tools import AGENT, Catalog, MethodTool
from sapwood.wire.routing import relative

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

METADATA = "/.well-known/oauth-protected-resource"
PATH = "/mcp"
LONGEST_ID = 200
"""Bytes of the id of a user that is part of the name of a desk; a longer one is hashed."""
DAY = timedelta(days=1)


class Mcp(Adapter):
    """Serves agents as tools of an MCP server at `/mcp`: `App(protocols=[Mcp(tools=[Researcher])])`.

    `tools` are agent classes with `on_run`, chat agents, and `agent_tool(…)`, which sets the name, the description and
    the types of a tool. Each call is a run, which survives a crash of the server. `methods` are root classes whose
    exposed methods are tools. `task_support` says, by the name of a tool, whether its calls are tasks for clients with
    that extension: `optional`, which is the default, `required` or `forbidden`. A run that takes longer than
    `max_duration` is interrupted; `None` means no limit.

    `authorization_servers` are the URLs of the servers whose tokens `App(authenticate=…)` accepts: clients that are
    refused learn from the metadata of the protected resource where to sign in, and which `scopes` to ask for.
    `resource` is the public URL of the endpoint, if a proxy changes it.

    Clients of revision 2026-07-28 and of earlier ones are served. Needs the extra `mcp`.
    """

    agents: ClassVar = (McpDesk,)

    def __init__(
        self,
        *,
        tools: Sequence[type[Agent[Any]] | AgentTool] = (),
        methods: Sequence[type[Agent[Any]]] = (),
        task_support: Mapping[str, TaskSupport] | None = None,
        name: str = "sapwood",
        version: str = "",
        instructions: str | None = None,
        path: str = PATH,
        authorization_servers: Sequence[str] = (),
        scopes: Sequence[str] = (),
        resource: str | None = None,
        max_duration: timedelta | None = DAY,
    ) -> None:
        try:
            from sapwood.protocols.mcp_protocol import server_of
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
                raise
            raise UsageError("Mcp needs the package mcp. Install it with: pip install 'sapwood[mcp]'.") from None
        if not path.startswith("/") or path.endswith("/"):
            raise UsageError(f"Mcp(path={path!r}): expected a path such as '/mcp'.")
        catalog = Catalog(tools, methods)
        if not catalog.tools:
            raise UsageError("Mcp has no tools. Write Mcp(tools=[…]), with agent classes.")
        catalog.check()
        for tool, support in (task_support or {}).items():
            if tool not in catalog.tools or support not in get_args(TaskSupport):
                raise UsageError(
                    f"Mcp(task_support={{{tool!r}: {support!r}}}): expected the name of a tool, and one of "
                    f"{', '.join(get_args(TaskSupport))}."
                )
        self.options = McpOptions(
            catalog, dict(task_support or {}), name, version or _own_version(), instructions, max_duration
        )
        self.path = path
        self.roots = (path,)
        if scopes and not authorization_servers:
            raise UsageError(
                "Mcp(scopes=…) needs authorization_servers: clients ask them for tokens with these scopes."
            )
        self._signs_in, self._scopes, self._resource = tuple(authorization_servers), tuple(scopes), resource
        if self._signs_in:
            self.public = (f"{METADATA}{path}", *([METADATA] if path == PATH else []))
            self.roots = (path, *self.public)
        self.paths = (path,) if methods else ()
        self._server = server_of(self.options)

    async def locate(self, request: Request, agents: Sequence[type[Agent[Any]]]) -> Place | Response:
        """Return the desk of the user, or the root whose method is called."""
        from starlette.responses import JSONResponse, Response

        path = relative(request.scope["path"], request.scope.get("root_path", ""))
        if path in self.public:
            return JSONResponse(self._metadata(request))
        if path != self.path:
            return Response("Not Found", 404)
        tool, agent = await self._called(request)
        if tool is None:
            return Place(McpDesk, desk_of(request.scope.get("user")), self.path)
        if tool.cls not in agents:
            raise UsageError(f"Mcp(methods=[{tool.cls.__name__}]): add the class to App(agents=…).")
        return Place(tool.cls, agent, self.path)

    def challenge(self, request: Request) -> str | None:
        """Return where a client without a user learns how to sign in."""
        if not self._signs_in:
            return "Bearer"
        found = f'Bearer resource_metadata="{self._origin(request)}{METADATA}{self.path}"'
        return f'{found}, scope="{" ".join(self._scopes)}"' if self._scopes else found

    def _metadata(self, request: Request) -> dict[str, Any]:
        """Return the metadata of the protected resource (RFC 9728)."""
        told: dict[str, Any] = {
            "resource": self._resource or f"{self._origin(request)}{self.path}",
            "authorization_servers": list(self._signs_in),
            "bearer_methods_supported": ["header"],
            "resource_name": self.options.name,
        }
        return {**told, "scopes_supported": list(self._scopes)} if self._scopes else told

    def _origin(self, request: Request) -> str:
        if self._resource is not None:
            return self._resource.removesuffix(self.path)
        return f"{request.url.scheme}://{request.url.netloc}{request.scope.get('root_path', '').rstrip('/')}"

    async def _called(self, request: Request) -> tuple[MethodTool | None, str]:
        """Return the method that a request calls and the name of its root; `None` if it is for the desk."""
        body = await request.body()
        if request.method != "POST" or b"tools/call" not in body:
            return None, ""
        try:
            params = msgspec.json.decode(body, type=CalledMethod).params
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return None, ""
        tool, agent = self.options.catalog.tools.get(params.name), params.arguments.get(AGENT)
        if not isinstance(tool, MethodTool) or not isinstance(agent, str):
            return None, ""
        try:
            return tool, checked_name(agent)
        except InvalidName:
            return None, ""

    async def answer(self, request: Request, exchange: Exchange) -> Response | None:
        """Answer a call of a method inside its root."""
        from sapwood.protocols.mcp_endpoint import respond_at_root

        if not any(exchange.address.type in known(one).type_ids for one in self.options.catalog.methods):
            return None
        return await respond_at_root(request, exchange, self.options, self._server)

    async def respond(self, request: Request, desk: McpDesk) -> Response:
        """Answer a request inside the desk."""
        from sapwood.protocols.mcp_endpoint import respond_at_desk
        from sapwood.protocols.mcp_work import DeskWork

        return await respond_at_desk(DeskWork(self.options, desk, request), self._server)


class CalledTool(msgspec.Struct):
    """What a call names."""

    name: str = ""
    arguments: dict[str, Any] = {}


class CalledMethod(msgspec.Struct):
    """A request, as far as it says which root it is for."""

    params: CalledTool


def desk_of(user: Any) -> str:
    """Return the name of the desk of a user."""
    id = desk_user(user, "Mcp")
    if id is None:
        return ANONYMOUS
    try:
        content = id.encode()
    except UnicodeEncodeError:
        raise InvalidName("The id of the user must be valid Unicode.") from None
    is_long = len(content) > LONGEST_ID or "\0" in id
    return f"user#{hashlib.sha256(content).hexdigest()}" if is_long else f"user:{id}"


def _own_version() -> str:
    from importlib.metadata import version

    return version("sapwood")
