"""Stores the messages with which a conversation begins in a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sapwood.chat.store.record import ConversationRecord
from sapwood.chat.store.user_messages import check, received, request_of
from sapwood.errors import InvalidArguments, UsageError
from sapwood.kernel.actors.actor import Actor


async def put_messages(actor: Actor, messages: Sequence[Any]) -> None:
    """Add messages to the conversation of a chat agent. The model gets their texts and files."""
    from pydantic_ai.messages import ModelResponse, TextPart

    if not hasattr(actor.agent, "conversation"):
        raise UsageError(f"{actor.address} is not a chat agent, so it has no conversation.")
    record = actor.of(ConversationRecord)
    for message in messages:
        check(message)
        if not message.get("id"):
            raise InvalidArguments("A message must have an `id` to be stored.")
    stored = await record.files.take(messages, {}, is_client=False)
    for message in stored:
        if message["role"] == "user":
            message = received(message, actor.host.settings.file_url_schemes, record.files)
            record.transcript.put(message)
            record.transcript.add(message["id"], request_of([message]))
            continue
        record.transcript.put(message)
        if text := "".join(part["text"] for part in message["parts"] if part["type"] == "text"):
            record.transcript.add(message["id"], ModelResponse(parts=[TextPart(text)]))
    await actor.leave()
