"""`sapwood mcp`: an app's MCP server on standard input and output, for clients that start it themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from sapwood.cli.app_loader import LoadedApp, load
from sapwood.cli.parameters import DataOfApp, Level, Target
from sapwood.cli.terminal import log_to_stderr
from sapwood.errors import UsageError
from sapwood.protocols.mcp_stdio import StdioBridge, endpoint_of


def mcp(
    target: Target,
    /,
    *,
    header: Annotated[
        list[str] | None,
        Parameter(negative="", help="A header for `authenticate`, as `Name: value`. Repeatable."),
    ] = None,
    data: DataOfApp = None,
    log_level: Level = "warning",
) -> None:
    """Serve the MCP server of an app on standard input and output, until the input ends."""
    headers = dict(_header(one) for one in header or ())
    log_to_stderr(log_level, logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")

    def write(line: bytes) -> None:
        output.write(line)
        output.flush()

    with contextlib.redirect_stdout(sys.stderr):  # what the app prints is no message
        asyncio.run(_serve(load(target, data), headers, write))


async def _serve(loaded: LoadedApp, headers: dict[str, str], write: Callable[[bytes], None]) -> None:
    path = endpoint_of(loaded.app.protocols)
    async with loaded.app as app:
        bridge = StdioBridge(app, path, write, headers)
        await bridge.serve(lambda: asyncio.to_thread(sys.stdin.buffer.readline))


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise UsageError(f"--header must be `Name: value`, such as 'Authorization: Bearer …', got {text!r}.")
    return name.strip(), value.strip()
