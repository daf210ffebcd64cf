"""Reads the tools of a server, as far as models can be offered them."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from sapwood.capabilities.mcp_servers import StoredTool
from sapwood.errors import OverLimit
from sapwood.mcp_client import headers
from sapwood.mcp_client.http import McpHttp
from sapwood.mcp_client.text import cleaned, seconds_of, shown_name
from sapwood.mcp_client.tool_schemas import arguments_schema

MOST_TOOLS, MOST_BYTES, MOST_PAGES = 500, 512 * 1024, 50
"""Of one server: more would fill the context of every model."""
LONGEST_DESCRIPTION, LONGEST_TOOL = 4096, 128
LEAST_FRESH, FRESH, MOST_FRESH = 5.0, 300.0, 86_400.0
"""Seconds for which a list counts, if the server does not say, and at least and at most if it does."""


async def listed(http: McpHttp, server: str) -> tuple[list[StoredTool], float]:
    """Return the tools of a server, and for how many seconds the list counts."""
    found: dict[str, StoredTool] = {}
    names: set[str] = set()
    size, cursor = 0, None
    for _ in range(MOST_PAGES):
        page = await http.request("tools/list", {} if cursor is None else {"cursor": cursor})
        size += len(msgspec.json.encode(page))
        given: Any = page.get("tools")
        tools = cast("list[Any]", given) if isinstance(given, list) else []
        if size > MOST_BYTES or len(found) + len(tools) > MOST_TOOLS:
            raise OverLimit(
                f"The list of tools is too long: at most {MOST_TOOLS} tools with {MOST_BYTES:,} bytes are used."
            )
        for one in tools:
            tool = _tool(one, server, names)
            if tool is not None and tool.name not in found:
                found[tool.name] = tool
        if (cursor := page.get("nextCursor")) is None or not isinstance(cursor, str):
            return list(found.values()), seconds_of(page.get("ttlMs"), LEAST_FRESH, MOST_FRESH, FRESH)
    raise OverLimit(f"The list of tools has more than {MOST_PAGES} pages.")


def _tool(given: Any, server: str, names: set[str]) -> StoredTool | None:
    """Return a tool as it is stored; `None` if no model can be offered it."""
    if not isinstance(given, dict):
        return None
    tool = cast("dict[str, Any]", given)
    name, told = tool.get("name"), tool.get("annotations")
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_TOOL or not name.isprintable():
        return None
    arguments = arguments_schema(tool.get("inputSchema"))
    if arguments is None or (repeated := headers.declared(arguments)) is None:
        return None
    hints = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    return StoredTool(
        name=name,
        shown=shown_name(server, name, names),
        description=cleaned(tool.get("description"), LONGEST_DESCRIPTION),
        schema=arguments,
        reads_only=hints.get("readOnlyHint") is True and hints.get("destructiveHint") is not True,
        destroys=hints.get("destructiveHint") is not False,
        repeats=hints.get("idempotentHint") is True,
        headers=repeated,
    )
