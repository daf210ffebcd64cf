"""All endpoints of the admin API."""

from __future__ import annotations

from typing import Any

from sapwood.admin.commands import COMMANDS
from sapwood.admin.endpoint import Endpoint

ENDPOINTS: dict[str, Endpoint[Any]] = {one.name: one for one in COMMANDS}
"""The endpoints by name."""
