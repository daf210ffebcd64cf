"""Finds files of agents that a row names and that are missing or damaged. No process may change them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from sapwood.capabilities.file_rows import FILES
from sapwood.storage.blobs import blob_folder
from sapwood.storage.file_reader import FileReader


def named_files(file: FileReader) -> list[str]:
    """Return the digests of the larger files of an agent."""
    if not file.has(FILES):
        return []
    return [str(digest) for (digest,) in file.rows("SELECT digest FROM sapwood_files WHERE body IS NULL")]


def damaged_files(file: FileReader) -> Iterator[str]:
    """Yield what is wrong with the larger files of an agent, in sentences."""
    if not file.has(FILES):
        return
    folder = blob_folder(file.path)
    rows = file.rows("SELECT digest, size FROM sapwood_files WHERE body IS NULL ORDER BY number")
    for digest, size in rows:
        path = folder / digest
        where = f"The file {digest} in {folder.name}"
        try:
            if (found := path.stat().st_size) != size:
                yield f"{where} is damaged: it has {found} bytes instead of {size}."
                continue
            with path.open("rb") as content:
                is_whole = hashlib.file_digest(content, "sha256").hexdigest() == digest
        except FileNotFoundError:
            yield f"{where} is missing."
        except OSError as error:
            yield f"{where} cannot be read: {error.strerror}."
        else:
            if not is_whole:
                yield f"{where} is damaged: its content does not have its digest."
