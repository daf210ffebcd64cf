"""A task of another server as the caller sees it: its text as chunks, what it asks, and how it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from sapwood.errors import RemoteRefused, UsageError
from sapwood.kernel.marshal.json_schemas import check_schema
from sapwood.protocols.a2a_replies import INPUT_REQUIRED, Artifact, Reply, Status, Task
from sapwood.protocols.a2a_wire import A2aMessage, A2aPart
from sapwood.runs.remote.transport import RemoteQuestion, RemoteStatus

MESSAGE = "message"
"""What stands for the artifact of a task that ends with a message only."""
LONGEST, MOST_ARTIFACTS = 16 * 1024 * 1024, 1000
"""Characters of all artifacts of a task, and how many of them there may be: they are in memory while it is followed."""
PART = 100
"""Characters that each part counts beside its own."""
VALUE_KINDS = frozenset({"choice", "text", "form"})


class Answered(msgspec.Struct):
    """The last answer that was sent to a task."""

    message: str
    """The id of its message."""
    asked_at: str | None = None
    """The timestamp of the state that it answered."""
    asked_by: str | None = None
    """The id of the message of that state."""
    is_taken: bool = False
    """Whether the server has told another state in reply to it."""


class TaskView:
    """A task, as far as the server has told of it."""

    def __init__(self, answered: Callable[[], Answered | None] = lambda: None) -> None:
        self._answered = answered
        self._artifacts: dict[str, list[A2aPart]] = {}
        self._sizes: dict[str, int] = {}
        """Characters of each artifact."""
        self._status = Status("TASK_STATE_SUBMITTED")
        self._history: list[A2aMessage] = []
        self.id = ""

    def take(self, told: Reply) -> None:
        """Take an event of a stream. Raises `RemoteRefused` if the task has become too long."""
        if told.task is not None:
            self.reset(told.task)
        elif told.status_update is not None:
            self._status = told.status_update.status
        elif told.artifact_update is not None:
            artifact, known = told.artifact_update.artifact, self._artifacts
            if not told.artifact_update.append:
                known.pop(artifact.artifact_id, None)
                self._sizes.pop(artifact.artifact_id, None)
            self._append(artifact)

    def _append(self, artifact: Artifact) -> None:
        id, size = artifact.artifact_id, sum(map(_size, artifact.parts))
        self._sizes[id] = self._sizes.get(id, len(id)) + size
        if len(self._sizes) > MOST_ARTIFACTS or sum(self._sizes.values()) > LONGEST:
            raise RemoteRefused(
                f"The task {self.id[:100]!r} has more than {MOST_ARTIFACTS} artifacts or {LONGEST:,} characters."
            )
        parts = self._artifacts.setdefault(id, [])
        for part in artifact.parts:
            if parts and _is_plain(part) and _is_plain(parts[-1]):
                parts[-1] = A2aPart(text=f"{parts[-1].text}{part.text}")  # a word at a time would be very many parts
            else:
                parts.append(part)

    def reset(self, task: Task) -> None:
        """Take a task as it is now."""
        self.id, self._status, self._history = task.id, task.status, task.history or []
        self._artifacts = {one.artifact_id: one.parts for one in task.artifacts or []}
        self._sizes = {id: len(id) + sum(map(_size, parts)) for id, parts in self._artifacts.items()}

    def reset_to(self, message: A2aMessage) -> None:
        """Take a message that the server has sent instead of a task."""
        self.reset(Task("", Status("TASK_STATE_COMPLETED"), artifacts=[Artifact(MESSAGE, message.parts)]))

    @property
    def is_over(self) -> bool:
        """Whether the caller has nothing to wait for."""
        return Task(self.id, self._status).is_over

    @property
    def waits(self) -> bool:
        """Whether the task waits for an answer."""
        return self.asks and not self._has_answer()

    @property
    def asks(self) -> bool:
        """Whether the task is in the state of asking, even if the server has the answer."""
        return self._status.state == INPUT_REQUIRED

    def answered_by(self, message: str) -> Answered:
        """Return what is stored when an answer to the state is sent."""
        return Answered(message, self._status.timestamp, _asked_by(self._status))

    def is_same_state(self, status: Status) -> bool:
        """Return whether a status is the one that is known."""
        known = self._status
        return (status.state, status.timestamp, _asked_by(status)) == (known.state, known.timestamp, _asked_by(known))

    def _has_answer(self) -> bool:
        """Return whether the server has the last answer, and the agent there has not continued yet.

        The official SDK then has what was asked in the history only, and tells the same state without it. A state that
        was read before the answer was sent may arrive after it.
        """
        answered = self._answered()
        if answered is None or self._status.timestamp != answered.asked_at:
            return False
        if self._status.message is not None:
            return answered.is_taken and answered.asked_by == _asked_by(self._status)
        return bool(self._history) and self._history[-1].message_id == answered.message

    @property
    def needs_sign_in(self) -> bool:
        """Whether the task waits until its caller signs in somewhere."""
        return self._status.state == "TASK_STATE_AUTH_REQUIRED"

    @property
    def message(self) -> str:
        """What the server says of the state."""
        return _text(self._status.message.parts) if self._status.message is not None else ""

    def texts(self) -> dict[str, str]:
        """Return the text of each artifact."""
        return {id: text for id, parts in self._results().items() if (text := _text(parts))}

    def questions(self) -> list[RemoteQuestion]:
        """Return what the task asks now."""
        if not self.waits:
            return []
        parts = [] if self._status.message is None else self._status.message.parts
        for part in parts:
            asked: Any = _fields(part.data).get("questions")
            if isinstance(asked, list) and (found := [_question(one) for one in cast("list[Any]", asked)]):
                return [one for one in found if one is not None]
        key = msgspec.json.encode([self.id, self._status])
        prompt = "\n".join(filter(None, (self.message, *map(_data, parts)))) or "The agent asks for input."
        return [RemoteQuestion(f"input-{hashlib.sha256(key).hexdigest()[:32]}", prompt=prompt)]

    def status(self, seq: int) -> RemoteStatus:
        """Return how the task stands; `seq` is the number of its chunks."""
        match self._status.state:
            case "TASK_STATE_COMPLETED":
                output, summary = self._output()
                return RemoteStatus("completed", seq, output=output, summary=summary)
            case "TASK_STATE_CANCELED":
                return RemoteStatus("cancelled", seq, reason=self.message or "cancelled by the other server")
            case "TASK_STATE_REJECTED":
                return RemoteStatus("failed", seq, error=_with("The agent has rejected the task", self.message))
            case "TASK_STATE_AUTH_REQUIRED":
                text = "The agent needs an authentication that this run cannot give"
                return RemoteStatus("failed", seq, error=_with(text, self.message))
            case "TASK_STATE_FAILED":
                return RemoteStatus("failed", seq, error=self.message or "The task has failed.")
            case _:
                return RemoteStatus("running", seq, waits=self.waits)

    def _results(self) -> dict[str, list[A2aPart]]:
        """Return the parts of the result: those of the artifacts, or of the last message if there are none."""
        if self._artifacts or self._status.state != "TASK_STATE_COMPLETED":
            return self._artifacts
        said = self._status.message or next((one for one in reversed(self._history) if one.role == "ROLE_AGENT"), None)
        return {} if said is None else {MESSAGE: said.parts}

    def _output(self) -> tuple[Any, str | None]:
        """Return the result, and its text: a text, the one value, or all parts."""
        results = self._results()
        parts = [part for one in results.values() for part in one]
        text = "\n\n".join(self.texts().values()) or None
        if all(part.text is not None for part in parts):
            return text, text
        if len(parts) == 1 and parts[0].data is not msgspec.UNSET:
            return parts[0].data, None
        return msgspec.to_builtins(parts), text


class TextChunks:
    """The text of a task as chunks, which have numbers: what was once told is continued, or closed and told again."""

    def __init__(self, stored: Sequence[Any]) -> None:
        self.length = len(stored)
        self._told: dict[str, str] = {}
        """By the id of a text: what was told of it."""
        self._open: dict[str, str] = {}
        """The ids of texts that were not ended, by artifact."""
        self._begun: dict[str, int] = {}
        """How many texts each artifact has begun."""
        for chunk in map(_fields, stored):
            match chunk.get("type"):
                case "text-start":
                    self._note_start(str(chunk["id"]))
                case "text-delta":
                    self._told[str(chunk["id"])] += str(chunk["delta"])
                case "text-end":
                    self._open.pop(_artifact_of(str(chunk["id"])), None)
                case _:
                    pass

    def more(self, texts: dict[str, str], *, is_whole: bool) -> list[dict[str, Any]]:
        """Return the chunks that tell what is new in the texts of the artifacts."""
        chunks: list[dict[str, Any]] = []
        for artifact, text in texts.items():
            id = self._open.get(artifact)
            told = "" if id is None else self._told[id]
            if text == told or (id is None and self._has_told(artifact, text)):
                continue
            if not is_whole and told.startswith(text):
                continue  # a server that repeats what it has said
            if id is None or not text.startswith(told):
                chunks += [] if id is None else [{"type": "text-end", "id": id}]
                id, told = f"{artifact}~{self._begun.get(artifact, 0) + 1}", ""
                self._note_start(id)
                chunks.append({"type": "text-start", "id": id})
            chunks.append({"type": "text-delta", "id": id, "delta": text[len(told) :]})
            self._told[id] = text
        self.length += len(chunks)
        return chunks

    def close(self) -> list[dict[str, Any]]:
        """Return the chunks that end all texts."""
        chunks = [{"type": "text-end", "id": id} for id in self._open.values()]
        self._open.clear()
        self.length += len(chunks)
        return chunks

    def _note_start(self, id: str) -> None:
        artifact = _artifact_of(id)
        self._open[artifact], self._told[id] = id, ""
        self._begun[artifact] = self._begun.get(artifact, 0) + 1

    def _has_told(self, artifact: str, text: str) -> bool:
        """Return whether a text that was ended is the last one of an artifact."""
        return self._told.get(f"{artifact}~{self._begun.get(artifact, 0)}") == text


def _asked_by(status: Status) -> str | None:
    return None if status.message is None else status.message.message_id


def _artifact_of(id: str) -> str:
    return id.rpartition("~")[0]


def _question(told: Any) -> RemoteQuestion | None:
    """Return a question in the form in which sapwood's own server tells it; `None` if it is none."""
    asked = _fields(told)
    id, kind = str(asked.get("id", "")), asked.get("kind")
    if kind == "approval":
        return RemoteQuestion(id, str(asked.get("tool", "")), asked.get("arguments"))
    if kind not in VALUE_KINDS:
        return None
    options: Any = asked.get("options")
    schema = _fields(asked.get("schema")) or None
    try:
        check_schema(schema or {})
    except UsageError:
        schema = None
    chosen = tuple(map(str, cast("list[Any]", options))) if isinstance(options, list) else None
    return RemoteQuestion(id, prompt=str(asked.get("prompt", "")), options=chosen, schema=schema)


def _is_plain(part: A2aPart) -> bool:
    """Return whether a part is a text and nothing else."""
    return part.text is not None and part.metadata is None and part.filename is None and part.media_type is None


def _size(part: A2aPart) -> int:
    if part.text is not None and _is_plain(part):
        return PART + len(part.text)
    return PART + len(msgspec.json.encode(part))


def _text(parts: Sequence[A2aPart]) -> str:
    return "".join(part.text for part in parts if part.text is not None)


def _data(part: A2aPart) -> str:
    return "" if part.data is msgspec.UNSET else msgspec.json.encode(part.data).decode()


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _with(text: str, more: str) -> str:
    return f"{text}: {more}" if more else f"{text}."
