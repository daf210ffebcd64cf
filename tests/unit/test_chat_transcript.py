"""A conversation as the model sees it: read once, in pieces if it is long, and never out of date."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart
from tests.unit.helpers import a_database

from sapwood.chat.store.transcript import AT_ONCE, Transcript
from sapwood.storage.database import Database
from sapwood.testing import FakeClock

MANY = 4 * AT_ONCE + 1


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = a_database(tmp_path / "chat.db")
    yield database
    database.rollback()
    database.close()


def asked(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def texts(transcript: Transcript) -> list[Any]:
    return [getattr(part, "content", None) for message in transcript.history() for part in message.parts]


def reopened(database: Database, messages: int) -> Transcript:
    """Return a conversation that somebody else has had."""
    before = Transcript(database, FakeClock())
    for number in range(messages):
        before.add(f"m{number}", asked(f"question {number}"))
    return Transcript(database, FakeClock())


async def turns_of_others(transcript: Transcript) -> int:
    """Return how often somebody else has a turn while a conversation is read."""
    reading = asyncio.ensure_future(transcript.load())
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_a_long_conversation_is_read_with_pauses(database: Database) -> None:
    transcript = reopened(database, MANY)

    turns = await turns_of_others(transcript)

    assert turns >= MANY // AT_ONCE
    assert texts(transcript) == [f"question {number}" for number in range(MANY)]
    assert await turns_of_others(transcript) <= 2


@pytest.mark.parametrize("messages", [0, 1, AT_ONCE])
async def test_a_short_conversation_is_read_in_one_go(database: Database, messages: int) -> None:
    transcript = reopened(database, messages)

    assert await turns_of_others(transcript) <= 2
    assert len(texts(transcript)) == messages


async def test_what_is_said_while_a_conversation_is_read_is_part_of_it(database: Database) -> None:
    transcript = reopened(database, MANY)
    reading = asyncio.ensure_future(transcript.load())
    await asyncio.sleep(0)

    transcript.add("new", asked("one more"))
    await reading

    assert texts(transcript)[-2:] == [f"question {MANY - 1}", "one more"]
    assert len(texts(transcript)) == MANY + 1


async def test_what_is_taken_back_while_a_conversation_is_read_is_not_part_of_it(database: Database) -> None:
    transcript = reopened(database, MANY)
    reading = asyncio.ensure_future(transcript.load())
    await asyncio.sleep(0)

    transcript.clear()
    await reading

    assert texts(transcript) == []


def test_what_was_undone_was_not_said(database: Database) -> None:
    transcript = reopened(database, 2)
    assert len(texts(transcript)) == 2

    with contextlib.suppress(RuntimeError), database.block():
        transcript.add("new", asked("one more"))
        raise RuntimeError

    assert texts(transcript) == ["question 0", "question 1"]


def test_the_ids_and_the_last_question_are_known(database: Database) -> None:
    transcript = Transcript(database, FakeClock())
    assert (transcript.known("ab"), transcript.last_said()) == (set(), [])

    for id, role in (("a", "user"), ("b", "assistant"), ("c", "user"), ("d", "assistant")):
        transcript.put({"id": id, "role": role, "parts": []})

    assert transcript.known(["d", "none", "a"]) == {"a", "d"}
    assert transcript.known([]) == set()
    assert transcript.last_said() == ["c"]


def test_a_message_is_as_stored_whatever_was_read_before(database: Database) -> None:
    transcript = Transcript(database, FakeClock())
    assert transcript.get("a") is None

    transcript.put({"id": "a", "role": "user", "parts": []})
    with contextlib.suppress(RuntimeError), database.block():
        transcript.put({"id": "a", "role": "user", "parts": [{"type": "text", "text": "changed"}]})
        raise RuntimeError

    assert transcript.get("a") == {"id": "a", "role": "user", "parts": []}
    found = transcript.get("a")
    assert found is not None
    found["parts"].append("a change by the reader")
    assert transcript.get("a") == {"id": "a", "role": "user", "parts": []}
    transcript.remove(["a"])
    assert transcript.get("a") is None
