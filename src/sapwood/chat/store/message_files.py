"""The files of a conversation: stored when a message with bytes arrives, read when a model is to see them.

A message holds its files from the commit that stores it, or the turn that it waits for, to the commit that deletes
it. Until then a file counts as an upload, which is deleted after a day if nothing uses it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sapwood.capabilities.file_rows import UPLOAD, FileRow
from sapwood.capabilities.file_writer import INLINE
from sapwood.capabilities.files import FileStore
from sapwood.capabilities.media_types import matches
from sapwood.chat.store.file_references import (
    READABLE,
    REFERENCE,
    UNADDRESSED,
    contents_of,
    digest_in,
    digests_in,
    reference,
    replaced,
    url_in,
)
from sapwood.chat.store.transcript import Transcript, UIMessage
from sapwood.chat.store.turns import TurnsTable
from sapwood.errors import InvalidArguments, NotFound, StoredDataError, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.aio import to_the_end
from sapwood.namespaces.files import check_name
from sapwood.wire.inline_files import decoded

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

log = logging.getLogger(__name__)

HOLDER = "message:"
"""How the holders of files begin that are messages; their id follows."""
LOST = "[A file could not be read and was left out: {}]"


class MessageFiles:
    """The files of the messages of one chat agent."""

    def __init__(self, actor: Actor, transcript: Transcript, turns: TurnsTable) -> None:
        self._actor = actor
        self._store = actor.of(FileStore)
        self._transcript = transcript
        self._turns = turns
        self._changed: set[str] = set()
        """The ids of messages that may hold what they do not name any more."""

    # What arrives

    async def take(
        self, messages: Sequence[UIMessage], attached: Mapping[str, bytes], *, is_client: bool = True
    ) -> list[UIMessage]:
        """Return messages of clients with their inline files stored, and their URLs in the place of the bytes.

        `attached` has the bytes of inline files that were decoded when the frame arrived, by what stands for them. Of
        messages that are stored already, only the last counts: what a client resends is not stored again. If the class
        sets `accept_files`, files of a client must be of a type and size that it allows.
        """
        known = self._transcript.known(str(one["id"]) for one in messages[:-1] if one.get("id"))
        accepted: Mapping[str, int] = self._actor.agent.accept_files if is_client else {}
        return [one if one.get("id") in known else await self._taken(one, attached, accepted) for one in messages]

    async def _taken(self, message: UIMessage, attached: Mapping[str, bytes], accepted: Mapping[str, int]) -> UIMessage:
        if message["role"] != "user":
            return message
        parts = [await self._taken_part(part, attached, accepted) for part in message["parts"]]
        return message if parts == message["parts"] else {**message, "parts": parts}

    async def _taken_part(
        self, part: dict[str, Any], attached: Mapping[str, bytes], accepted: Mapping[str, int]
    ) -> dict[str, Any]:
        url = part.get("url")
        if part["type"] != "file" or not isinstance(url, str):
            return part
        content = attached.get(url)
        claimed = part.get("mediaType")
        if content is None:
            if url[:5].lower() != "data:":
                return part
            content = await to_the_end(decoded, url) if len(url) > INLINE else decoded(url)
        if content is None or not isinstance(claimed, str):
            return part  # it is refused where all parts are checked
        row = await self.put(content, claimed, part.get("filename"), accepted)
        return {**part, "mediaType": row.media_type, "url": self.url(row.digest)}

    async def put(
        self,
        content: bytes,
        claimed: str | None,
        name: object = None,
        accepted: Mapping[str, int] = MappingProxyType({}),
    ) -> FileRow:
        """Store a file, and keep it until a message holds it in a slice to come; refuse one that is not accepted."""
        try:
            check_name(name)
        except UsageError:
            name = None
        writer = self._store.writer(claimed, size=len(content))
        try:
            await writer.write(content)
            await writer.end()
            if accepted:
                _check_accepted(writer.media_type, len(content), accepted)
            return await writer.finish(cast("str | None", name), UPLOAD)
        finally:
            writer.close()

    def url(self, digest: str) -> str:
        """Return what clients and messages call a file."""
        return self._store.file(self._store.row(digest)).url or f"{UNADDRESSED}{digest}"

    def row_at(self, url: str) -> FileRow | None:
        """Return the file of this agent that a URL names; `None` if it names another or none."""
        digest = digest_in(url)
        row = None if digest is None else self._store.table.get(digest)
        return row if row is not None and self.url(row.digest) == url else None

    # Who holds it

    def hold(self, message: UIMessage) -> None:
        """Let a message hold the files that it names, in this slice."""
        self._hold(message["id"], digests_in(message["parts"]))

    def hold_in_history(self, id: str, message: ModelMessage) -> None:
        """Let a message hold the files that a part of the model's history names, which belongs to it."""
        urls = [url_in(one) for one in _contents(message)]
        self._hold(id, [digest for url in urls if (digest := digest_in(url)) is not None])

    def _hold(self, id: str, digests: Iterable[str]) -> None:
        for digest in set(digests):
            if self._store.table.get(digest) is not None:
                self._store.hold(digest, f"{HOLDER}{id}")
                self._store.release(digest, UPLOAD)

    def changed(self, ids: Collection[str]) -> None:
        """These messages were deleted or changed in this slice: end what they hold no more, before its commit."""
        if not ids or not self._store.table.exists:
            return
        self._changed.update(ids)
        slices = self._actor.home.slices
        slices.join_next_commit(self._actor.database, f"files {self._actor.stem}", self._settle)

    def _settle(self) -> None:
        changed, self._changed = self._changed, set()
        if self._actor.dropped is not None:
            return
        named: dict[str, set[str]] = {}
        for row in self._turns.open():
            for message in msgspec.json.decode(row.new_messages) or ():
                named.setdefault(message["id"], set()).update(digests_in(message["parts"]))
        for id in changed:
            stored = self._transcript.get(id)
            if stored is not None and stored["role"] != "user":
                continue  # the model's history may name more
            if stored is not None:
                named.setdefault(id, set()).update(digests_in(stored["parts"]))
            for digest in self._store.table.held_by(f"{HOLDER}{id}"):
                if digest not in named.get(id, ()):
                    self._store.release(digest, f"{HOLDER}{id}")

    # What tools and models make

    async def stored_bytes(self, value: Any) -> Any:
        """Return the result of a tool, with references in the place of bytes. Bytes that are text stay text."""
        stored: dict[int, Any] = {}
        for one in contents_of(value):
            stored[id(one)] = one if url_in(one) is not None else await self._stored(one)
        return replaced(value, lambda one: stored[id(one)]) if stored else value

    async def _stored(self, content: Any) -> Any:
        if isinstance(content, bytes):
            try:
                return content.decode()
            except UnicodeDecodeError:
                row = await self.put(content, None)
        else:
            row = await self.put(content.data, content.media_type)
        return reference(self.url(row.digest), row.media_type)

    async def stored_response(self, response: Any) -> tuple[Any, list[dict[str, Any]]]:
        """Return a response with references to the files that the model made, and the chunks that show them."""
        chunks: list[dict[str, Any]] = []
        parts: list[Any] = []
        for part in response.parts:
            if part.part_kind == "file" and url_in(part.content) is None:
                row = await self.put(part.content.data, part.content.media_type)
                url = self.url(row.digest)
                part = replace(part, content=reference(url, row.media_type))
                chunks.append({"type": "file", "url": url, "mediaType": row.media_type})
            parts.append(part)
        return (replace(response, parts=parts) if chunks else response), chunks

    async def stored_chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Return a chunk of an agent's own answer, with the URL of its file stored in the place of a `data:` URL."""
        url = chunk.get("url")
        if chunk.get("type") != "file" or not isinstance(url, str) or url[:5].lower() != "data:":
            return chunk
        content = await to_the_end(decoded, url)
        if content is None:
            return chunk
        row = await self.put(content, chunk.get("mediaType"))
        return {**chunk, "url": self.url(row.digest), "mediaType": row.media_type}

    # What a model is to see

    async def filled(self, history: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Return what a model is sent: the bytes of files in the place of references. Do not keep it.

        In the place of a file that cannot be had, the model gets a note.
        """
        known: dict[str, Any] = {}
        for message in history:
            for one in _contents(message):
                if (url := url_in(one)) is not None and url not in known:
                    known[url] = await self._read(one, url)
        if not known:
            return list(history)
        return [_filled(message, known) for message in history]

    async def _read(self, content: Any, url: str) -> Any:
        """Return the content of a file, or a note."""
        from pydantic_ai.messages import BinaryContent

        try:
            row = self._store.row(digest_in(url) or "")
            data = await self._store.read(row)
        except (NotFound, StoredDataError) as error:
            log.warning("file of a message not sent to the model address=%s: %s", self._actor.address, error)
            return LOST.format(content.media_type)
        metadata = {key: value for key, value in content.vendor_metadata.items() if key != REFERENCE}
        found = BinaryContent(
            data, media_type=row.media_type, identifier=content.identifier, vendor_metadata=metadata or None
        )
        found = BinaryContent.narrow_type(found)
        object.__setattr__(found, REFERENCE, row.digest)  # for the record of what was sent
        return found

    def emptied(self, changed: Any, sent: Any, stored: Any) -> Any:
        """Return a request whose prompts were changed when it was sent, with references in the place of bytes."""
        parts: list[Any] = []
        for new, old, kept in zip(changed.parts, sent.parts, stored.parts, strict=True):
            is_changed = new.part_kind == "user-prompt" and new != old
            parts.append(replace(new, content=replaced(new.content, self._emptied)) if is_changed else kept)
        return replace(stored, parts=parts)

    def _emptied(self, content: Any) -> Any:
        digest = getattr(content, REFERENCE, None)
        return content if digest is None else reference(self.url(digest), content.media_type)


def _check_accepted(kind: str, size: int, accepted: Mapping[str, int]) -> None:
    """Refuse a file of a client whose type or size the class does not accept."""
    fitting = [pattern for pattern in accepted if matches(kind, pattern)]
    if not fitting:
        raise InvalidArguments(f"This agent accepts files of type {', '.join(accepted)}, got {kind}.")
    most = accepted[min(fitting, key=lambda pattern: (pattern == "*/*", "*" in pattern))]
    if size > most:
        raise InvalidArguments(f"A file of type {kind} must have at most {most} bytes, got {size}.")


def _contents(message: Any) -> list[Any]:
    """Return the files in a message of the model's history."""
    found: list[Any] = []
    for part in message.parts:
        if part.part_kind in ("user-prompt", "tool-return", "file") and not isinstance(part.content, str):
            found += contents_of(part.content)
    return found


def _filled(message: Any, known: Mapping[str, Any]) -> Any:
    """Return a message with what is known in the place of references."""
    from pydantic_ai.messages import TextPart

    parts: list[Any] = []
    for part in message.parts:
        if part.part_kind in ("user-prompt", "tool-return", "file") and not isinstance(part.content, str):
            is_returned = part.part_kind == "tool-return"
            content = replaced(part.content, lambda one: _known(one, known, only_readable=is_returned))  # noqa: B023
            if part.part_kind == "file" and isinstance(content, str):
                part = TextPart(content)
            elif content is not part.content:
                part = replace(part, content=content)
        parts.append(part)
    return replace(message, parts=parts)


def _known(content: Any, known: Mapping[str, Any], *, only_readable: bool) -> Any:
    url = url_in(content)
    if url is None:
        return content
    found = known[url]
    if only_readable and not isinstance(found, str) and not found.media_type.startswith(READABLE):
        return f"[A file of type {found.media_type} with {len(found.data)} bytes: {url}]"
    return found
