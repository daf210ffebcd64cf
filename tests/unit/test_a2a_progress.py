"""Tasks of other systems as they are told: long ones cost little, and there is a limit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from sapwood.errors import RemoteRefused
from sapwood.protocols import a2a_progress
from sapwood.protocols.a2a_progress import TaskView
from sapwood.protocols.a2a_replies import Artifact, ArtifactUpdate, Reply, Status, Task
from sapwood.protocols.a2a_transport import TaskNews
from sapwood.protocols.a2a_wire import A2aPart


class Nothing:
    """A memo of a run that has just begun."""

    text = None

    async def store(self, text: str) -> None:
        raise AssertionError

    def chunks(self) -> Sequence[Any]:
        return []


def working() -> TaskView:
    view = TaskView()
    view.reset(Task("t", Status("TASK_STATE_WORKING")))
    return view


def more(*parts: A2aPart, artifact: str = "a", append: bool = True) -> Reply:
    return Reply(artifact_update=ArtifactUpdate("t", Artifact(artifact, list(parts)), append=append))


@pytest.mark.slow
def test_a_text_that_comes_word_by_word_is_put_together_once() -> None:
    view = working()
    news = TaskNews(view, Nothing())
    began = time.process_time()
    for _ in range(16_000):
        view.take(more(A2aPart(text="word ")))
        news.told()
    assert view.texts() == {"a": "word " * 16_000}
    assert time.process_time() - began < 3, "what came is put together again and again"


def test_only_texts_without_anything_else_are_joined() -> None:
    view = working()
    parts = [A2aPart(text="a"), A2aPart(text="b"), A2aPart(text="c", filename="x"), A2aPart(text="d"), A2aPart(data=1)]
    for part in parts:
        view.take(more(part))
    view.take(Reply(status_update=None, task=None, artifact_update=more(A2aPart(text="e")).artifact_update))
    assert view.texts() == {"a": "abcde"}
    view.take(more(A2aPart(text="new"), append=False))
    assert view.texts() == {"a": "new"}


def take(view: TaskView, *told: Reply) -> None:
    for one in told:
        view.take(one)


@pytest.mark.parametrize(
    "part",
    [
        A2aPart(text="x" * 600),
        A2aPart(data=["x" * 600]),
        A2aPart(raw="x" * 600),
        A2aPart(text="", metadata={"x": "y" * 600}),
    ],
)
def test_a_task_cannot_become_longer_than_its_limit(part: A2aPart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a2a_progress, "LONGEST", 2000)
    view = working()
    take(view, *[more(part, append=False)] * 9)  # it is replaced, and as long as before
    with pytest.raises(RemoteRefused, match="more than 1000 artifacts or 2,000 characters"):
        take(view, *[more(part)] * 9)


def test_a_task_has_at_most_so_many_artifacts() -> None:
    with pytest.raises(RemoteRefused, match="more than 1000 artifacts"):
        take(working(), *(more(artifact=f"a{number}") for number in range(1001)))
