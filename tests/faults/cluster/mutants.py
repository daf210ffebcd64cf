"""Ways to break what a cluster promises on purpose, so that the tests can show that they would notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FENCE = "Nats-Expected-Last-Subject-Sequence"


def no_fence() -> None:
    """Whoever writes to the log does not say which ownership it writes under."""
    from nats.aio.client import Client

    publish = Client.publish

    async def publish_unfenced(
        self: Any,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, Any] | None = None,
    ) -> None:
        if headers and ".log." in subject and not subject.endswith(".owner"):
            headers = {name: value for name, value in headers.items() if not name.startswith(FENCE)}
        await publish(self, subject, payload, reply, headers)

    Client.publish = publish_unfenced


MUTANTS: dict[str, Callable[[], None]] = {
    "no-fence": no_fence,
}


def apply(name: str | None) -> None:
    if name:
        MUTANTS[name]()
