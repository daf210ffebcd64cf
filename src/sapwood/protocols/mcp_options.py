"""How an MCP server is set up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from sapwood.protocols.mcp_tools import Catalog

TaskSupport = Literal["optional", "required", "forbidden"]


@dataclass(frozen=True, slots=True)
class McpOptions:
    """What `Mcp` was given."""

    catalog: Catalog
    task_support: Mapping[str, TaskSupport]
    name: str
    version: str
    instructions: str | None
    max_duration: timedelta | None
