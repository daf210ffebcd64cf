"""What is compared of two conversations: their messages, by id, and which of their branches is active."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sapwood.chat.store.transcript import CHAT
from sapwood.kernel.ports.compared_parts import ComparedEntry, ComparedPart
from sapwood.storage.file_reader import FileReader


def _messages(file: FileReader) -> Iterator[ComparedEntry]:
    if not file.has(CHAT):
        return
    rows = file.rows("SELECT id, position, role, body, is_active FROM sapwood_messages ORDER BY id")
    for id, position, *message in rows:
        yield ComparedEntry(id, position, tuple(message))


def _shown_message(message: tuple[str, str, int]) -> dict[str, Any]:
    role, body, is_active = message
    return {"role": role, "is_active": bool(is_active), "parts": msgspec.json.decode(body).get("parts", [])}


COMPARED_MESSAGES = ComparedPart("messages", _messages, _shown_message)
