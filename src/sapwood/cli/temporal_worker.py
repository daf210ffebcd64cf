"""`temporal worker`: executes the steps of agents for Temporal until it is stopped."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from sapwood.app import App
from sapwood.cli.app_loader import load
from sapwood.cli.json_log import JsonFormatter, log_uncaught
from sapwood.cli.operator_file import FILE
from sapwood.cli.serve_options import LogFormat
from sapwood.cli.terminal import log_to_stderr
from sapwood.drivers.temporal import TemporalDriver
from sapwood.errors import UsageError
from sapwood.escapes import LineFormatter

log = logging.getLogger("sapwood.worker")

USUAL_URL = "http://127.0.0.1:8000"


def work(target: str, url: str | None, data: str | None, log: LogFormat, log_level: str) -> None:
    """Work for the driver of an app until a signal arrives."""
    if log == "json":
        log_to_stderr(log_level, JsonFormatter())
        log_uncaught()
    else:
        log_to_stderr(log_level, LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    if log_level != "debug":
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it has a line for every step
        logging.getLogger("temporalio.activity").setLevel(logging.ERROR)  # and this a traceback for one that is stopped
    app = load(target, data).app
    if not isinstance(app.driver, TemporalDriver):
        raise UsageError(f"{target} has no TemporalDriver. Set App(…, driver=TemporalDriver(token=…)).")
    where = url or _url_of(app)
    if not _is_url(where):
        raise UsageError(f"--url must be the URL of a server, such as {USUAL_URL}, got {where!r}.")
    asyncio.run(_work(app.driver, where, None if url else lambda: _url_of(app)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of Temporal's client may end the interpreter with an error otherwise


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        return False


def _url_of(app: App) -> str:
    """Return where the app is served on this machine, if it is; else where it would be."""
    try:
        return str(json.loads((Path(app.settings.data) / FILE).read_text())["url"])
    except (OSError, ValueError, KeyError):
        return USUAL_URL


async def _work(driver: TemporalDriver, url: str, find: Callable[[], str] | None) -> None:
    try:
        from sapwood.drivers.temporal.worker import work
    except ModuleNotFoundError as error:
        raise UsageError(
            f"A Temporal worker needs {error.name}. Install it with: pip install 'sapwood[temporal]'."
        ) from error
    until = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, until.set)
    log.info("worker started, server %s", url)
    await work(driver, url, until, find)
    log.info("worker stopped")
