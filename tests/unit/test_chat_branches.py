"""A branch that is made active again is as it was left, for clients and the model, whatever happened in others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from tests.cases import slow
from tests.unit.helpers import a_database

from sapwood.chat.store.transcript import Transcript
from sapwood.storage.database import Database
from sapwood.testing import FakeClock

ACTS = 120


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = a_database(tmp_path / "chat.db")
    yield database
    database.rollback()
    database.close()


class Talk:
    """A conversation in which users edit, regenerate and go back, and which is compacted now and then."""

    def __init__(self, database: Database, random: Random) -> None:
        self._random = random
        self.transcript = Transcript(database, FakeClock())
        self._number = 0
        self.left: dict[str, tuple[list[str], list[Any]]] = {}
        """How each branch was left, by the id of its last message."""

    def seen(self) -> tuple[list[str], list[Any]]:
        """Return the ids of the messages that clients see, and the texts that the model sees."""
        history = self.transcript.history()
        return [id for id, _ in self.transcript.ids()], [getattr(one.parts[0], "content", None) for one in history]

    def leave(self) -> None:
        ids, texts = self.seen()
        self.left[ids[-1]] = (ids, texts)

    def say(self) -> None:
        """Let the user say something, and the model answer."""
        self._number += 1
        self._put(f"u{self._number}", "user")
        self.answer()

    def say_two(self) -> None:
        """Let the user say two things that one turn answers, and the model answer."""
        self._number += 1
        both: dict[str, str] = {}
        for id in (f"u{self._number}", f"v{self._number}"):
            self._number += 1
            both[id] = f"user {self._number}"
            self.transcript.put({"id": id, "role": "user", "parts": [{"type": "text", "text": both[id]}]})
        whole = ModelRequest([UserPromptPart(" and ".join(both.values()))])
        self.transcript.add([*both][-1], whole, {id: ModelRequest([UserPromptPart(one)]) for id, one in both.items()})
        self.answer()

    def answer(self) -> None:
        self._number += 1
        self._put(f"a{self._number}", "assistant")

    def _put(self, id: str, role: str) -> None:
        self._number += 1
        text = f"{role} {self._number}"
        self.transcript.put({"id": id, "role": role, "parts": [{"type": "text", "text": text}]})
        message = ModelRequest([UserPromptPart(text)]) if role == "user" else ModelResponse([TextPart(text)])
        self.transcript.add(id, message)

    def regenerate(self) -> None:
        self.leave()
        users = [id for id, role in self.transcript.ids() if role == "user"]
        self.transcript.go_back(self._random.choice(users))
        self.answer()

    def edit(self) -> None:
        self.leave()
        self._number += 1
        edited = self._random.choice([id for id, role in self.transcript.ids() if role == "user"])
        old = f"old{self._number}"
        self.left = {
            tip: ([old if id == edited else id for id in ids], texts) for tip, (ids, texts) in self.left.items()
        }
        self.transcript.replace_in_branch({edited: old})
        self._put(edited, "user")
        self.answer()

    def compact(self) -> None:
        """Replace the older half of what the model sees by a summary, or clear a result in it."""
        self._number += 1
        history = self.transcript.history()
        new = ModelRequest([UserPromptPart(f"summary {self._number}")])
        writes = self.transcript.ids()[-1][0]
        if self._random.random() < 0.5 and len(history) > 3:
            self.transcript.shorten(range(len(history) // 2), new, writes)
        else:
            self.transcript.clear_results({self._random.randrange(len(history)): new}, writes)

    def fail(self) -> None:
        """Answer a message again, compact what the model sees, and fail before anything was said."""
        users = [id for id, role in self.transcript.ids() if role == "user"]
        end, before = self.transcript.ids()[-1][0], self.seen()
        self.transcript.go_back(self._random.choice(users))
        self._number += 1
        new = ModelRequest([UserPromptPart(f"summary {self._number}")])
        count = len(self.transcript.history())
        self.transcript.shorten(range(self._random.randrange(count) + 1), new, f"never stored {self._number}")
        self.transcript.go_back(end)
        assert self.seen() == before

    def switch(self) -> None:
        found = self.transcript.tree.branches()
        if not found:
            return
        self.leave()
        chosen = self._random.choice(found)
        if not chosen.is_active:
            self.transcript.switch(chosen.message_id)
            ids, texts = self.seen()
            assert chosen.message_id in ids
            assert (ids, texts) == self.left[ids[-1]]


@pytest.mark.parametrize("seed", [0, *slow([1, 2, 3])])
def test_a_branch_that_is_made_active_again_is_as_it_was_left(database: Database, seed: int) -> None:
    random = Random(seed)
    talk = Talk(database, random)
    talk.say()
    for _ in range(ACTS):
        random.choice(
            [talk.say, talk.say_two, talk.regenerate, talk.edit, talk.compact, talk.fail, talk.switch, talk.switch]
        )()
        ids, texts = talk.seen()
        assert len(set(ids)) == len(ids)
        assert len(set(texts)) == len(texts)
        again = Transcript(database, FakeClock())
        assert (again.history(), again.ids()) == (talk.transcript.history(), talk.transcript.ids())


def test_the_only_way_to_continue_is_listed_if_the_active_path_ends_before_it(database: Database) -> None:
    talk = Talk(database, Random(0))
    talk.say()
    talk.say()
    (first, _), (answer, _), *_ = talk.transcript.ids()

    talk.transcript.go_back(first)

    (found,) = talk.transcript.tree.branches()
    assert (found.message_id, found.after, found.messages, found.is_active) == (answer, first, 3, False)


@pytest.mark.parametrize("seed", range(5))
def test_what_follows_deleted_messages_follows_the_last_one_before_them_that_is_left(
    database: Database, seed: int
) -> None:
    random = Random(seed)
    talk = Talk(database, random)
    talk.say()
    for _ in range(20):
        random.choice([talk.say, talk.regenerate, talk.edit, talk.switch])()
    before = {one.message["id"]: one.after for one in talk.transcript.tree.messages()}
    gone = set(random.sample(sorted(before), len(before) // 2))

    talk.transcript.remove(gone)

    def left(id: str | None) -> str | None:
        while id in gone:
            id = before[id]
        return id

    after = {one.message["id"]: one.after for one in talk.transcript.tree.messages()}
    assert after == {id: left(parent) for id, parent in before.items() if id not in gone}
    assert not gone & {id for (id,) in database.execute("SELECT message FROM sapwood_model_messages")}


def test_a_conversation_whose_messages_follow_each_other_in_a_cycle_can_be_used(database: Database) -> None:
    talk = Talk(database, Random(0))
    talk.say()
    talk.edit()
    database.execute("UPDATE sapwood_messages SET parent = (SELECT max(position) FROM sapwood_messages)")

    talk.transcript.go_back(talk.transcript.ids()[0][0])
    talk.say()
    talk.transcript.remove([talk.transcript.ids()[0][0]])

    assert talk.transcript.tree.branches()
    assert len(talk.transcript.ids()) == 2
