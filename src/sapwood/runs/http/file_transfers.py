"""The files of an agent, over HTTP: `PUT …/files` uploads one, and `GET …/files/<digest>` downloads one.

An upload is checked before its bytes are read, as far as its headers tell, and again as they arrive: what the class
accepts, by the media type that the bytes prove, and what the agent, its tree and the disk have room for.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

import msgspec

from sapwood.capabilities.connections import Connection, HttpOnly
from sapwood.capabilities.file_rows import UPLOAD, FileRow, UploadRow, check_name
from sapwood.capabilities.file_writer import FileWriter
from sapwood.capabilities.files import FileStore
from sapwood.capabilities.media_types import HEAD, INLINE, is_textual, matches, plausible
from sapwood.errors import InvalidArguments, NotFound, OverLimit, UsageError
from sapwood.kernel.actors.actor import Actor
from sapwood.kernel.actors.sockets import Socket
from sapwood.runs.execution.access_gates import refused_to_watch
from sapwood.storage.blobs import DIGEST
from sapwood.wire.files import PATH, STREAM, ContentRange, byte_range, content_range, uploaded

UPLOADS = 100
"""Uploads of one agent that can be resumed at the same time."""
UPLOAD_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")
SWEEP_EVERY = 3600.0
"""Seconds between two looks for uploads that nothing has used, while clients upload."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
PDF_POLICY = "default-src 'none'; object-src 'self'; style-src 'unsafe-inline'"
"""Browsers do not show a PDF in a sandbox."""


class UploadRefused(Exception):
    """An upload is refused: a status and a sentence for the client."""

    def __init__(self, status: int, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.status = status
        self.facts = facts


@dataclass(frozen=True, slots=True)
class Upload:
    """What the headers of an upload say."""

    name: str | None
    claimed: str | None
    digest: str | None
    """The digest that the client expects."""
    length: int | None
    """Bytes of the body, if the client says how many."""
    id: str | None
    """The client's id of an upload that it may resume."""
    part: ContentRange | None
    """Which bytes of such an upload the body has."""

    @property
    def size(self) -> int | None:
        """The size of the whole file, if it is known."""
        return self.length if self.part is None else self.part.size


class FileTransfers(HttpOnly):
    """The files of one agent, for its HTTP clients."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    @property
    def _store(self) -> FileStore:
        return self._actor.of(FileStore)

    async def request(self, request: Any) -> Any:
        """Take or send a file; None if the request is for something else."""
        path = request.scope["path"]
        if path == PATH and request.method == "PUT":
            work = self._upload
        elif DIGEST.fullmatch(path.removeprefix(f"{PATH}/")) and request.method in ("GET", "HEAD"):
            work = self._download
        else:
            return None
        if (refused := await refused_to_watch(self._actor, request)) is not None:
            return refused
        return await work(request)

    # Uploads

    async def _upload(self, request: Any) -> Any:
        from starlette.requests import ClientDisconnect

        try:
            accepted = self._accepted(request)
            upload = _read_upload(request)
            most = max(accepted.values())
            if upload.size is not None and upload.size > most:
                raise UploadRefused(413, f"The file has {upload.size} bytes; this agent accepts at most {most}.")
            request.scope.get(STREAM, lambda: None)()
            if self._store.sweep_is_due(SWEEP_EVERY):
                self._store.sweep_later()
            if upload.id is not None:
                return await self._resumable(request, upload, accepted)
            return await self._whole(request, upload, accepted)
        except UploadRefused as no:
            return _json({"error": str(no), **no.facts}, no.status)
        except InvalidArguments as error:
            return _json({"error": str(error)}, 400)
        except OverLimit as error:
            return _json({"error": str(error)}, 507)
        except ClientDisconnect:
            return _json({"error": "The client disconnected."}, 400)

    def _accepted(self, request: Any) -> Mapping[str, int]:
        """Return what this agent accepts from this client; refuse it if that is nothing."""
        actor = self._actor
        accepted: Mapping[str, int] = actor.agent.accept_files
        if not accepted:
            raise UploadRefused(403, f"{actor.address.type} accepts no files: its accept_files is empty.")
        if actor.kind.overrides("is_watch_only") and actor.agent.is_watch_only(_connection(actor, request)):
            raise UploadRefused(403, "This client may only watch.")
        return accepted

    async def _whole(self, request: Any, upload: Upload, accepted: Mapping[str, int]) -> Any:
        """Take a file that is sent in one request."""
        writer = self._store.writer(upload.claimed, size=upload.length)
        try:
            await self._take(request, writer, accepted, upload.length)
            return self._created(await self._finish(writer, upload.name, upload.digest, accepted))
        finally:
            writer.close()

    async def _resumable(self, request: Any, upload: Upload, accepted: Mapping[str, int]) -> Any:
        """Take a part of a file."""
        store, wanted = self._store, upload.part
        assert wanted is not None
        row = self._upload_row(upload, wanted)
        if row.digest is not None:
            return self._created(store.hold(row.digest, UPLOAD))
        if row.part in store.writing:
            raise UploadRefused(409, "Another request sends bytes of this upload.")
        received = store.folder.size_of(row.part)
        if received is None:
            store.make_part(row.part)
            received = 0
        first = received if wanted.first is None else wanted.first
        if first != received:
            raise UploadRefused(409, f"Continue at byte {received}.", received=received)
        writer = store.writer(row.media_type, size=row.size - received, part=row.part)
        try:
            await writer.resume()
            if wanted.first is not None:
                await self._take_part(request, writer, accepted, wanted.end - first)
            if writer.size < row.size:
                return _json({"received": writer.size}, 202)
            stored = await self._finish(writer, row.name, upload.digest, accepted)
            store.table.complete_upload(row.id, stored.digest)
            writer.keeps_part = False  # it is still there if the content is small, or was stored before
            return self._created(stored)
        except UploadRefused:
            writer.keeps_part = False
            store.table.end_upload(row.id)
            raise
        finally:
            writer.close()

    def _upload_row(self, upload: Upload, wanted: ContentRange) -> UploadRow:
        """Return the upload of this id, which begins now if it is new."""
        store, id = self._store, upload.id
        assert id is not None
        row, boot = store.table.upload(id), self._store.boot
        if row is not None and row.digest is None and row.boot != boot:
            store.drop_part(row.part)  # a loss of power may have damaged it
            store.table.end_upload(id)
            row = None
        if row is not None and row.size != wanted.size:
            raise UploadRefused(409, f"This upload has {row.size} bytes, not {wanted.size}.")
        if row is None:
            if wanted.first:
                raise UploadRefused(409, "Continue at byte 0.", received=0)
            store.check_room(wanted.size)
            store.table.make()
            if store.table.uploads() >= UPLOADS:
                raise OverLimit(f"This agent has {UPLOADS} unfinished uploads.", limit="file_bytes")
            row = UploadRow(id, wanted.size, upload.name, upload.claimed, boot)
            if row.part not in store.writing:
                store.drop_part(row.part)  # of an earlier upload with this id
            store.table.add_upload(row, store.now())
        return row

    async def _take_part(self, request: Any, writer: FileWriter, accepted: Mapping[str, int], expected: int) -> None:
        """Take a part of a file, and keep what has arrived if the client disconnects."""
        from starlette.requests import ClientDisconnect

        try:
            await self._take(request, writer, accepted, expected)
        except ClientDisconnect:
            await writer.flush()
            raise
        await writer.flush()

    async def _take(self, request: Any, writer: FileWriter, accepted: Mapping[str, int], expected: int | None) -> None:
        """Take the body of a request, and stop as soon as it is more, or something else, than is accepted."""
        is_known, taken = writer.size >= HEAD, 0
        most = _limit_of(writer.media_type, accepted, is_end=False) if is_known else max(accepted.values())
        async for content in request.stream():
            taken += len(content)
            if expected is not None and taken > expected:
                raise UploadRefused(400, f"The body has more than the {expected} bytes that its headers announce.")
            await writer.write(content)
            if not is_known and writer.size >= HEAD:
                is_known = True
                most = _limit_of(writer.media_type, accepted, is_end=False)
            if writer.size > most:
                raise UploadRefused(413, f"The file has more than {most} bytes, the maximum that this agent accepts.")

    async def _finish(
        self, writer: FileWriter, name: str | None, digest: str | None, accepted: Mapping[str, int]
    ) -> FileRow:
        """Store a complete file, if it is what the client meant to send and what the class accepts."""
        await writer.end()
        if digest not in (None, writer.digest):
            raise UploadRefused(400, f"The bytes that arrived have the digest {writer.digest}, not {digest}.")
        most = _limit_of(writer.media_type, accepted, is_end=True)
        if writer.size > most:
            text = f"The file has {writer.size} bytes; this agent accepts at most {most} of {writer.media_type}."
            raise UploadRefused(413, text)
        return await writer.finish(name, UPLOAD)

    def _created(self, row: FileRow) -> Any:
        file = self._store.file(row)
        return _json(uploaded(file.digest, file.name, file.media_type, file.size, file.url), 201)

    # Downloads

    async def _download(self, request: Any) -> Any:
        from starlette.responses import Response, StreamingResponse

        row = self._store.table.get(request.scope["path"].removeprefix(f"{PATH}/"))
        if row is None:
            raise NotFound("Not Found", path=self._actor.address.segments)
        headers = _headers(row, self._actor.host.settings.frame_ancestors)
        if _names(request.headers.get("if-none-match", ""), headers["etag"]):
            return Response(status_code=304, headers=headers)
        start, end, status = 0, row.size, 200
        wanted = request.headers.get("range")
        if wanted is not None and request.headers.get("if-range", headers["etag"]) == headers["etag"]:
            found = byte_range(wanted, row.size)
            if found == "unsatisfiable":
                return Response(status_code=416, headers={**headers, "content-range": f"bytes */{row.size}"})
            if isinstance(found, tuple):
                (start, end), status = found, 206
                headers["content-range"] = f"bytes {start}-{end - 1}/{row.size}"
        headers["content-length"] = str(end - start)
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers, media_type=row.media_type)
        chunks = self._store.chunks(row, start, end)
        first = await anext(chunks, b"")  # damage is found before the response begins, where that is possible
        return StreamingResponse(_rest(first, chunks), status, headers, row.media_type)


async def _rest(first: bytes, chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for chunk in chunks:
            yield chunk
    finally:
        await chunks.aclose()


def _headers(row: FileRow, frame_ancestors: str) -> dict[str, str]:
    is_inline = row.media_type in INLINE
    policy = PDF_POLICY if row.media_type == "application/pdf" else POLICY
    name = "" if row.name is None else f"; filename*=UTF-8''{quote(row.name, safe='')}"
    return {
        "etag": f'"{row.digest}"',
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",  # whether a client may see it is asked each time
        "content-disposition": f"{'inline' if is_inline else 'attachment'}{name}",
        "content-security-policy": f"{policy}; frame-ancestors {frame_ancestors}" if frame_ancestors else policy,
        "x-content-type-options": "nosniff",
    }


def _names(listed: str, etag: str) -> bool:
    """Return whether `If-None-Match` names a version."""
    return any(one.strip().removeprefix("W/") in (etag, "*") for one in listed.split(","))


def _limit_of(kind: str, accepted: Mapping[str, int], *, is_end: bool) -> int:
    """Return how many bytes a file of this type may have, by the pattern that fits best; refuse it if none fits."""
    if not is_end and is_textual(kind):
        return max(accepted.values())  # it may turn out not to be text
    fitting = [pattern for pattern in accepted if matches(kind, pattern)]
    if fitting:
        return accepted[min(fitting, key=lambda pattern: (pattern == "*/*", "*" in pattern))]
    raise UploadRefused(415, f"This agent accepts {', '.join(accepted)}; these bytes are {kind}.")


def _read_upload(request: Any) -> Upload:
    asked, headers = request.query_params, request.headers
    name, id, length = asked.get("name"), asked.get("upload"), headers.get("content-length", "")
    try:
        check_name(name)
    except UsageError as error:
        raise InvalidArguments(str(error)) from None
    if id is not None and not UPLOAD_ID.fullmatch(id):
        raise InvalidArguments("`upload` must be an id of 16 to 64 letters, digits, hyphens and underscores.")
    part = content_range(headers["content-range"]) if "content-range" in headers else None
    if (part is None) != (id is None):
        raise InvalidArguments("An upload in parts needs both `?upload=<id>` and a Content-Range header.")
    claimed = plausible(headers.get("content-type"))
    size = int(length) if length.isdecimal() and len(length) < 20 else None
    return Upload(name, claimed, _digest(headers.get("repr-digest")), size, id, part)


def _digest(header: str | None) -> str | None:
    """Return the SHA-256 of a `Repr-Digest` header (RFC 9530)."""
    for one in (header or "").split(","):
        algorithm, _, value = one.strip().partition("=")
        if algorithm == "sha-256":
            try:
                return base64.b64decode(value.strip(":"), validate=True).hex()
            except binascii.Error:
                raise InvalidArguments("Repr-Digest has no valid SHA-256.") from None
    return None


def _connection(actor: Actor, request: Any) -> Connection:
    """Return the client of a request as a hook for connections sees it."""
    scope = request.scope
    query = scope.get("query_string", b"").decode("latin-1")
    nothing = cast(Any, None)  # nothing is sent to it
    user = scope.get("user")
    return Connection(
        actor,
        Socket("", actor.address, actor.kind, nothing, path=PATH, query=query, headers=request.headers, user=user),
    )


def _json(body: object, status: int) -> Any:
    from starlette.responses import Response

    return Response(msgspec.json.encode(body), status, media_type="application/json")
