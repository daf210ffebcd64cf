"""Sends push notifications to URLs that clients gave, and to no host of a private network that they chose."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container
from typing import Any

import msgspec

from sapwood.client.public_hosts import HostRules, address_of, host_of
from sapwood.errors import Refused, Unavailable
from sapwood.protocols import a2a_wire as wire
from sapwood.protocols.a2a_wire import A2aError

TIMEOUT = 20.0
"""Seconds for one notification, with the search for its host."""
LONGEST_URL, LONGEST_ID, LONGEST_SECRET = 2048, 200, 8192
VISIBLE = re.compile(r"[!-~]+")
SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


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
