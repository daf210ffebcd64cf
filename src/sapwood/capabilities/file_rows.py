"""The files of an agent as rows: what is stored, and who needs it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from sapwood.address import Address
from sapwood.errors import UsageError
from sapwood.storage.blobs import PART
from sapwood.storage.database import Database
from sapwood.storage.migrations import Schema
from sapwood.wire.files import PATH
from sapwood.wire.routing import path_to

FILES = Schema("sapwood.capabilities", "files")
COLUMNS = "number, digest, size, media_type, name, created_at, object, body IS NULL"
CODE = "code"
"""The holder of what the agent's own code has stored or kept."""
UPLOAD = "upload"
"""The holder of what a client has uploaded, for a while."""
MOST_NAME = 255
"""Characters in the name of a file."""
UPLOAD_PART = "upload-"
"""How the names of the files begin that have the bytes of uploads that can be resumed."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of an agent: what is known of it without reading it. It can be an argument or a result of a call."""

    digest: str
    """The SHA-256 of its content, hexadecimal. It identifies the file."""
    name: str | None
    """The name that it was stored with."""
    media_type: str
    """Its media type, verified from its content."""
    size: int
    """Its size in bytes."""
    url: str
    """The path of its URL; empty if the agent has no URL."""
    created_at: datetime
    """When it was first stored."""


class FileRow(NamedTuple):
    """One stored file."""

    number: int
    digest: str
    size: int
    media_type: str
    name: str | None
    created_at: float
    object: str | None
    """In a cluster, the key of a larger file in the archive."""
    is_large: bool
    """Whether its content is not in the row."""


class UploadRow(NamedTuple):
    """An upload that its client may resume."""

    id: str
    size: int
    name: str | None
    media_type: str | None
    """The type that the client claims."""
    boot: int
    """The boot of the machine in which it began; in a cluster, also the node."""
    digest: str | None = None
    """Once it is complete, the file."""

    @property
    def part(self) -> str:
        """The name of the file with what was received so far."""
        return f"{UPLOAD_PART}{self.id}{PART}"


class FilesTable:
    """The tables of files of one agent. All writes belong to the slice that makes them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def exists(self) -> bool:
        return self._database.has(FILES)

    def make(self) -> None:
        self._database.ensure(FILES)

    def get(self, digest: str) -> FileRow | None:
        rows = self._rows("WHERE digest = ?", digest)
        return rows[0] if rows else None

    def page(self, after: int, limit: int) -> list[FileRow]:
        return self._rows("WHERE number > ? ORDER BY number LIMIT ?", after, limit)

    def _rows(self, where: str, *arguments: str | int) -> list[FileRow]:
        if not self.exists:
            return []
        rows = self._database.execute(f"SELECT {COLUMNS} FROM sapwood_files {where}", *arguments)  # noqa: S608 - ours
        return [FileRow(*row[:-1], is_large=bool(row[-1])) for row in rows]

    def body(self, digest: str) -> bytes | None:
        """Return the content of a small file."""
        rows = self._database.execute("SELECT body FROM sapwood_files WHERE digest = ?", digest)
        return rows[0][0] if rows else None

    def names(self, name: str) -> bool:
        """Return whether a row names something in the folder of files: a file, or the beginning of an upload."""
        if not self.exists:
            return False
        if name.startswith(UPLOAD_PART):
            return self.upload(name.removeprefix(UPLOAD_PART).removesuffix(PART)) is not None
        return bool(self._database.execute("SELECT 1 FROM sapwood_files WHERE digest = ? AND body IS NULL", name))

    def total(self) -> int:
        """Return the size of all files, uploads that can be resumed included."""
        if not self.exists:
            return 0
        ((total,),) = self._database.execute(
            "SELECT (SELECT ifnull(sum(size), 0) FROM sapwood_files) +"
            " (SELECT ifnull(sum(size), 0) FROM sapwood_uploads WHERE digest IS NULL)"
        )
        return total

    def add(self, row: FileRow, body: bytes | None) -> None:
        self._database.execute(
            "INSERT INTO sapwood_files (digest, size, media_type, name, created_at, body, object)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            row.digest,
            row.size,
            row.media_type,
            row.name,
            row.created_at,
            body,
            row.object,
        )

    def set_object(self, digest: str, key: str) -> None:
        """A file has another object in the archive from now on."""
        self._database.execute("UPDATE sapwood_files SET object = ? WHERE digest = ?", key, digest)

    def hold(self, digest: str, holder: str, now: float) -> None:
        """Add a reference; if there is one, it counts from now on."""
        self._database.execute(
            "INSERT INTO sapwood_file_references VALUES (?, ?, ?)"
            " ON CONFLICT (digest, holder) DO UPDATE SET created_at = excluded.created_at",
            digest,
            holder,
            now,
        )

    def drop(self, digest: str, *holders: str) -> None:
        """Remove references to a file."""
        for holder in holders:
            self._database.execute(
                "DELETE FROM sapwood_file_references WHERE digest = ? AND holder = ?", digest, holder
            )

    def held_by(self, holder: str, before: float | None = None) -> list[str]:
        """Return what a holder refers to; with `before`, only the references that are older."""
        rows = self._database.execute(
            "SELECT digest FROM sapwood_file_references WHERE holder = ?1 AND (?2 IS NULL OR created_at < ?2)",
            holder,
            before,
        )
        return [digest for (digest,) in rows]

    def delete_unheld(self, digest: str) -> FileRow | None:
        """Delete a file that no reference needs; return its row, or `None` if it stays."""
        row = self.get(digest)
        if row is None or self._database.execute(
            "SELECT 1 FROM sapwood_file_references WHERE digest = ? LIMIT 1", digest
        ):
            return None
        self._database.execute("DELETE FROM sapwood_files WHERE digest = ?", digest)
        return row

    def upload(self, id: str) -> UploadRow | None:
        """Return an upload that can be resumed."""
        if not self.exists:
            return None
        rows = self._database.execute(
            "SELECT id, size, name, media_type, boot, digest FROM sapwood_uploads WHERE id = ?", id
        )
        return UploadRow(*rows[0]) if rows else None

    def add_upload(self, upload: UploadRow, now: float) -> None:
        self._database.execute("INSERT INTO sapwood_uploads VALUES (?, ?, ?, ?, ?, ?, ?)", *upload, now)

    def complete_upload(self, id: str, digest: str) -> None:
        self._database.execute("UPDATE sapwood_uploads SET digest = ? WHERE id = ?", digest, id)

    def end_upload(self, id: str) -> None:
        self._database.execute("DELETE FROM sapwood_uploads WHERE id = ?", id)

    def uploads(self) -> int:
        """Return how many uploads can be resumed."""
        ((count,),) = self._database.execute("SELECT count(*) FROM sapwood_uploads WHERE digest IS NULL")
        return count

    def expire_uploads(self, before: float) -> None:
        self._database.execute("DELETE FROM sapwood_uploads WHERE created_at < ?", before)


def file_of(row: FileRow, address: Address, prefix: str) -> File:
    """Return a row as users see it."""
    created_at = datetime.fromtimestamp(row.created_at, UTC)
    return File(row.digest, row.name, row.media_type, row.size, url_of(row.digest, address, prefix) or "", created_at)


def url_of(digest: str, address: Address, prefix: str) -> str | None:
    """Return the path of the URL of a file, or `None` if its agent has no URL."""
    try:
        return path_to(address, prefix=prefix, rest=f"{PATH}/{digest}")
    except UsageError:
        return None


def check_name(name: object) -> None:
    """Refuse what cannot be the name of a file."""
    if name is None:
        return
    if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME or not name.isprintable() or set(name) & set("/\\"):
        raise UsageError(
            f"The name of a file must have 1 to {MOST_NAME} printable characters without slashes, got {name!r}."
        )
