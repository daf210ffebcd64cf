"""Records what models are sent: each distinct text once, and the messages of a request as a continuation of others."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from sapwood.capabilities.redaction import Redaction
from sapwood.capabilities.spans import Spans
from sapwood.chat.store.sent_body import SentBody, split
from sapwood.errors import Unavailable
from sapwood.kernel.actors.actor import Actor
from sapwood.storage.migrations import Schema

T = TypeVar("T")

REQUESTS = Schema("sapwood.chat", "requests")
LONGEST = 1 << 20
"""Bytes of one text that are kept. Of a longer one, a picture for example, the digest and the size are."""
LEFT_OUT = "<{bytes} bytes left out, BLAKE2 {digest}>"
CHAIN = (
    "WITH RECURSIVE chain (number, previous, text, depth) AS ("
    " SELECT number, previous, text, 0 FROM sapwood_sent_messages WHERE number = ?"
    " UNION ALL SELECT m.number, m.previous, m.text, depth + 1 FROM sapwood_sent_messages m, chain"
    " WHERE m.number = chain.previous AND m.number < chain.number) SELECT number, text FROM chain ORDER BY depth DESC"
)
"""The messages of a request, in their order."""
AT_ONCE = 100
"""Rows that one statement writes."""
MOST_KNOWN = 1000
"""Digests that are remembered."""


FORM = ""
"""Stands for the URL of a request in the form of Pydantic AI."""


class Sent(NamedTuple):
    """A request that is not written yet."""

    span: int
    url: str
    body: bytes
    is_redacted: bool = False


class Form(Protocol):
    """A request to a model in the form of Pydantic AI: its messages are objects."""

    @property
    def messages(self) -> Sequence[Any]: ...

    def body(self) -> bytes: ...

    def frame(self) -> bytes: ...

    def message(self, message: Any, /) -> bytes: ...

    def has_frame_of(self, other: Any, /) -> bool: ...


class Asked(NamedTuple):
    """A request that is not written yet, in the form of Pydantic AI."""

    span: int
    form: Form


@dataclass(slots=True)
class Chain:
    """The messages of a request: the next one has most of them too."""

    digests: list[str]
    numbers: list[int]
    """In the table of messages."""


class RequestRecords:
    """The requests of one agent to models."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._database = actor.database
        self._spans = actor.of(Spans)
        self._redaction = actor.host.shared(Redaction)
        self._waiting: list[Sent | Asked] = []
        self._chains: dict[bool, Chain] = {}
        """The last request in the form of Pydantic AI (`True`), and the last as it was sent (`False`), if read."""
        self._formed: list[tuple[Any, str]] = []
        """The messages of the last request in the form of Pydantic AI, with their digests."""
        self._frame: tuple[Form, SentBody] | None = None
        """The last of these requests, without its messages."""
        self._known: set[str] = set()
        """Digests of texts that are stored."""
        self._timer: asyncio.TimerHandle | None = None
        self._spans.after_sweep.append(self._sweep)

    def sent(self, span: int, url: str, body: bytes) -> None:
        """Record, with the next commit, what a model is sent in a step; soon, even if nothing else is committed."""
        is_redacted = False
        if self._redaction.function is not None:
            text = body.decode(errors="replace")
            body = self._redaction.apply("request", text).encode()
            is_redacted = body != text.encode()
        self._add(Sent(span, url, body, is_redacted))

    def asked(self, span: int, form: Form) -> None:
        """Record the same request in the form of Pydantic AI, in which another model can be asked it."""
        if self._redaction.function is not None:
            self.sent(span, FORM, form.body())
        else:
            self._add(Asked(span, form))

    def _add(self, request: Sent | Asked) -> None:
        self._waiting.append(request)
        if self._timer is None:
            host = self._actor.host
            self._timer = host.loop.call_later(host.timings.record_delay, self._write_soon)
        self._actor.home.slices.join_next_commit(self._database, f"requests {self._actor.stem}", self._write)

    def _write_soon(self) -> None:
        """Write what no commit has taken along: if the process ends, it is known what the model was sent."""
        self._timer = None
        if self._waiting and self._actor.dropped is None:
            with suppress(Unavailable):  # the agent is about to end
                self._write()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not waiting or self._actor.dropped is not None:
            return
        self._database.ensure(REQUESTS)
        for one in waiting:
            self._write_one(one)

    def _write_one(self, sent: Sent | Asked) -> None:
        is_form = isinstance(sent, Asked) or sent.url == FORM
        if (chain := self._chains.get(is_form)) is None:
            chain = self._chains[is_form] = self._read_chain(is_form)
            self._formed = [] if is_form else self._formed
        if isinstance(sent, Sent):
            url, taken, is_redacted = sent.url, split(sent.body), sent.is_redacted
            digests = [_digest(message) for message in taken.messages]
            texts = dict(zip(digests, taken.messages, strict=True))
        else:
            url, taken, is_redacted = FORM, self._frame_of(sent.form), False
            digests, texts = self._texts_of(sent.form)
        # The first message is a text of its own: it may be instructions that change with every request.
        first, digests = digests[:1], digests[1:]
        same = _common(chain.digests, digests)
        fields = [_digest(text) for text in taken.texts]
        new = {digest: texts[digest] for digest in (*first, *digests[same:]) if digest in texts}
        new |= zip(fields, taken.texts, strict=True)
        if not self._spans.have_room(sum(len(text) for digest, text in new.items() if digest not in self._known)):
            self._formed = []
            return
        self._add_texts(new)
        self._extend(chain, digests, same)
        parts = list(_parts(taken, iter(fields), first, has_more=bool(digests)))
        self._database.execute(
            "INSERT INTO sapwood_model_requests (span, url, is_redacted, parts, separator, last)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            sent.span,
            url,
            is_redacted,
            msgspec.json.encode(parts).decode(),
            taken.separator.decode(),
            chain.numbers[-1] if digests else None,
        )

    def _frame_of(self, form: Form) -> SentBody:
        """Return the request without its messages. Most requests of an agent have the same tools and settings."""
        if self._frame is None or not form.has_frame_of(self._frame[0]):
            self._frame = form, split(form.frame())
        return self._frame[1]

    def _texts_of(self, form: Form) -> tuple[list[str], dict[str, bytes]]:
        """Return the digests of messages, and the texts of those that the last request did not have.

        A message of a conversation is the same object in the next request, and nobody changes it.
        """
        same = 0
        for message, (known, _) in zip(form.messages, self._formed, strict=False):
            if message is not known:
                break
            same += 1
        formed, texts = self._formed[:same], dict[str, bytes]()
        for message in form.messages[same:]:
            text = form.message(message)
            formed.append((message, digest := _digest(text)))
            texts[digest] = text
        self._formed = formed
        return [digest for _, digest in formed], texts

    def _add_texts(self, texts: dict[str, bytes]) -> None:
        """See that every text is stored."""
        new = {digest: text for digest, text in texts.items() if digest not in self._known}
        for some in _batches(list(new.items())):
            rows = [(digest, len(text), text.decode(errors="replace")) for digest, text in some]
            self._database.execute(
                f"INSERT INTO sapwood_sent_texts (digest, bytes, body) VALUES {_marks(3, len(rows))}"  # noqa: S608 - ours
                " ON CONFLICT (digest) DO NOTHING",
                *(value for digest, size, body in rows for value in (digest, size, body if size <= LONGEST else None)),
            )
        if len(self._known) >= MOST_KNOWN:
            self._known = set()
        self._known.update(texts)

    def _extend(self, chain: Chain, digests: list[str], same: int) -> None:
        """Add the messages that the last request did not have."""
        numbers = chain.numbers[:same]
        rows = list[tuple[int, int | None, str]]()
        if digests[same:]:
            ((last,),) = self._database.execute("SELECT ifnull(max(number), 0) FROM sapwood_sent_messages")
            for number, digest in enumerate(digests[same:], last + 1):
                rows.append((number, numbers[-1] if numbers else None, digest))
                numbers.append(number)
        for some in _batches(rows):
            self._database.execute(
                f"INSERT INTO sapwood_sent_messages (number, previous, text) VALUES {_marks(3, len(some))}",  # noqa: S608 - ours
                *(value for row in some for value in row),
            )
        chain.digests, chain.numbers = digests, numbers

    def _read_chain(self, is_form: bool) -> Chain:
        """Return the messages of the last request that is stored."""
        rows = self._database.execute(
            "SELECT last FROM sapwood_model_requests WHERE (url = '') = ? ORDER BY number DESC LIMIT 1", is_form
        )
        found = self._database.execute(CHAIN, rows[0][0]) if rows and rows[0][0] is not None else []
        return Chain([digest for _, digest in found], [number for number, _ in found])

    def delete_turns(self) -> None:
        """Delete the records of all turns that are over, in this slice: the conversation was cleared."""
        self._spans.delete_turns()

    def _sweep(self) -> None:
        """Delete the requests of steps whose records were deleted, and what no other request has."""
        if not self._database.has(REQUESTS):
            return
        self._database.execute(
            "DELETE FROM sapwood_model_requests WHERE span NOT IN (SELECT number FROM sapwood_spans)"
        )
        self._database.execute(
            "WITH RECURSIVE used (number) AS (SELECT last FROM sapwood_model_requests WHERE last IS NOT NULL"
            " UNION SELECT m.previous FROM sapwood_sent_messages m, used WHERE m.number = used.number"
            " AND m.previous IS NOT NULL)"
            " DELETE FROM sapwood_sent_messages WHERE number NOT IN (SELECT number FROM used)"
        )
        self._database.execute(
            "DELETE FROM sapwood_sent_texts WHERE digest NOT IN (SELECT text FROM sapwood_sent_messages)"
            " AND digest NOT IN (SELECT value ->> 0 FROM sapwood_model_requests, json_each(parts) WHERE type = 'array')"
        )
        self._chains, self._known = {}, set()


def _parts(
    taken: SentBody, fields: Iterator[str], first: Sequence[str], *, has_more: bool
) -> Iterator[str | list[str] | None]:
    """Yield the parts of a body as stored: literal texts, digests, and `None` for all messages but the first."""
    for part in taken.parts:
        if isinstance(part, bytes):
            yield part.decode()
        elif part is not None:
            yield [next(fields)]
        else:
            yield list(first)
            if has_more:
                yield taken.separator.decode()
                yield None


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _common(one: Sequence[str], two: Sequence[str]) -> int:
    """Return how many elements two lists have in common at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _batches(rows: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(rows), AT_ONCE):
        yield rows[start : start + AT_ONCE]


def _marks(columns: int, rows: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)
