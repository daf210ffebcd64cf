"""Messages whose inline files are being stored: they are accepted in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.transcript import UIMessage
from sapwood.errors import Refused
from sapwood.kernel.actors.actor import Actor


class UploadCancelled(Refused):
    """A message was cancelled before its files were stored."""


class MessageUploads:
    """Stores the files of messages, one message after the other."""

    def __init__(self, actor: Actor) -> None:
        self._files = actor.of(ConversationRecord).files
        self._lock = asyncio.Lock()
        self._waiting: dict[object, str | None] = {}
        """Each message that is not accepted yet, with the id of its request."""
        self._cancelled: set[object] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a message that arrives now has to wait for an earlier one."""
        return bool(self._waiting)

    async def store(
        self, messages: Sequence[UIMessage], attached: Mapping[str, bytes], id: str | None
    ) -> list[UIMessage]:
        """Return messages with the URLs of their files, once all earlier ones were accepted."""
        upload = object()
        self._waiting[upload] = id
        try:
            async with self._lock:
                self._check(upload)
                stored = await self._files.take(messages, attached)
                self._check(upload)
                return stored
        finally:
            del self._waiting[upload]
            self._cancelled.discard(upload)

    def _check(self, upload: object) -> None:
        if upload in self._cancelled:
            raise UploadCancelled(f"{UploadCancelled.__doc__}")

    def cancel(self, id: str | None = None) -> bool:
        """Do not accept a message, or `None`, all that are being received; return `False` if there is none."""
        found = [upload for upload, one in self._waiting.items() if id is None or one == id]
        self._cancelled.update(found)
        return bool(found)
