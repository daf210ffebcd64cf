"""All endpoints of the admin API."""

from __future__ import annotations

from typing import Any

from sapwood.admin.agents import AGENTS
from sapwood.admin.commands import COMMANDS
from sapwood.admin.endpoint import Endpoint
from sapwood.admin.find import FIND
from sapwood.admin.watch import WATCH

ENDPOINTS: dict[str, Endpoint[Any]] = {one.name: one for one in (AGENTS, FIND, WATCH, *COMMANDS)}
"""The endpoints by name."""
