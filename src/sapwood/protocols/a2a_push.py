"""Where clients want to be notified of a task, and the notifications: none is sent to a private network."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import msgspec

from sapwood.client.public_hosts import HostRules, address_of, host_of
from sapwood.errors import Refused, Unavailable
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_wire import A2aError

if TYPE_CHECKING:
    from sapwood.agent import Agent

TIMEOUT = 20.0
"""Seconds for one notification, with the search for its host."""
LONGEST_URL, LONGEST_ID, LONGEST_SECRET = 2048, 200, 8192
VISIBLE = re.compile(r"[!-~]+")
SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


MOST_CONFIGS = 10
"""Push notification configurations of one task."""
CONFIG_METHODS = frozenset(
    {"GetTaskPushNotificationConfig", "ListTaskPushNotificationConfigs", "DeleteTaskPushNotificationConfig"}
)
PUSH_CONFIGS = """CREATE TABLE push_configs (
    task TEXT NOT NULL,
    id   TEXT NOT NULL,
    body TEXT NOT NULL,                  -- JSON
    PRIMARY KEY (task, id)
) STRICT, WITHOUT ROWID"""


class PushConfigs:
    """The push notification configurations of one task of a desk."""

    def __init__(self, desk: Agent[Any], task: str) -> None:
        self._desk, self._task = desk, task

    def add(self, config: wire.PushConfig) -> None:
        """Add or replace a configuration. Raises `A2aError` if the task has too many."""
        known = self.ids()
        if config.id not in known and len(known) >= MOST_CONFIGS:
            raise A2aError(wire.INVALID_PARAMS, f"A task has at most {MOST_CONFIGS} push notification configurations.")
        body = msgspec.json.encode(config).decode()
        self._desk.sql("INSERT OR REPLACE INTO push_configs VALUES (?, ?, ?)", self._task, config.id, body)

    def ids(self) -> list[str]:
        """Return the ids of the configurations."""
        return [str(row["id"]) for row in self._desk.sql("SELECT id FROM push_configs WHERE task = ?", self._task)]

    def same_as(self, config: wire.PushConfig) -> str | None:
        """Return the id of the configuration that is the same but for an id it was given here; `None` without one."""
        for id in self.ids():
            known = self.get(id)
            if known is not None and config.id in ("", id) and msgspec.structs.replace(config, id=id) == known:
                return id
        return None

    def get(self, id: str) -> wire.PushConfig | None:
        """Return a configuration, if the task has it."""
        rows = self._desk.sql("SELECT body FROM push_configs WHERE task = ? AND id = ?", self._task, id)
        return msgspec.json.decode(str(rows[0]["body"]), type=wire.PushConfig) if rows else None

    def answer(self, method: str, id: str) -> Any:
        """Return the result of a method about configurations."""
        if method == "ListTaskPushNotificationConfigs":
            found = [self.get(one) for one in sorted(self.ids())]
            return {"configs": msgspec.to_builtins(found), "nextPageToken": ""}
        if method == "DeleteTaskPushNotificationConfig":
            self._desk.sql("DELETE FROM push_configs WHERE task = ? AND id = ?", self._task, id)
            return None
        if (config := self.get(id)) is None:
            raise A2aError(wire.NO_TASK, f"The task has no push notification configuration {id[:80]!r}.")
        return msgspec.to_builtins(config)


async def check_config(config: wire.PushConfig, allowed: Container[str]) -> None:
    """Raise `A2aError` if notifications may not be sent as a client wants it."""
    if not config.url:
        raise A2aError(wire.INVALID_PARAMS, "The push notification configuration has no url.")
    if len(config.url) > LONGEST_URL or not VISIBLE.fullmatch(config.url):
        raise A2aError(wire.INVALID_PARAMS, f"The url must be ASCII, with at most {LONGEST_URL} characters.")
    if len(config.id) > LONGEST_ID:
        raise A2aError(wire.INVALID_PARAMS, f"The id of a configuration has at most {LONGEST_ID} characters.")
    asked = config.authentication
    secrets = (config.token, "" if asked is None else asked.credentials)
    if asked is not None and not SCHEME.fullmatch(asked.scheme):
        raise A2aError(wire.INVALID_PARAMS, "The scheme of the authentication must be a word, such as Bearer.")
    if any(len(one) > LONGEST_SECRET or not (one.isascii() and one.isprintable()) for one in secrets):
        raise A2aError(
            wire.INVALID_PARAMS,
            f"The token and the credentials must be printable ASCII, with at most {LONGEST_SECRET} characters.",
        )
    await refuse_private(config.url, allowed)


async def refuse_private(url: str, allowed: Container[str]) -> None:
    """Raise `A2aError` if notifications may not be sent to a URL. A host that cannot be found now may be later."""
    try:
        await address_of(url, _rules(allowed))
    except Refused as error:
        raise A2aError(wire.INVALID_PARAMS, str(error)) from None
    except Unavailable:
        pass


def _rules(allowed: Container[str]) -> HostRules:
    remedy = "An operator can allow it with A2a(push_hosts=…)."
    return HostRules("Push notifications", remedy, allowed)


async def deliver(config: wire.PushConfig, body: Any, allowed: Container[str]) -> None:
    """Send a notification; raise if it was not accepted, so that it is sent again."""
    import httpx2

    from sapwood.client.checked_transport import CheckedTransport, ResponseLimits, trusted

    headers = {"content-type": "application/json"}
    if config.token:
        headers[wire.TOKEN_HEADER] = config.token
    if config.authentication is not None:
        headers["authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}".strip()
    host, _ = host_of(config.url, _rules(allowed))
    sent, known = msgspec.json.encode(body), await asyncio.to_thread(trusted)
    transport = CheckedTransport(_rules(allowed), ResponseLimits(seconds=None), verify=known)
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            httpx2.AsyncClient(transport=transport, timeout=TIMEOUT, follow_redirects=False) as client,
            client.stream("POST", config.url, content=sent, headers=headers) as response,
        ):
            status = response.status_code  # what it says is not read: it may never end
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
        raise Unavailable(f"{host} cannot be reached: {type(error).__name__}.") from None
    if status >= 300:
        raise Unavailable(f"{host} answered {status}.")
