"""One tree as a file that can be kept and imported elsewhere: a tar archive of its databases and files.

The first member is `manifest.json`, which names all others with their sizes and digests. A reader believes nothing
that the manifest does not name.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from sapwood.address import Address
from sapwood.errors import StoredDataError, UsageError
from sapwood.kernel.log.records import program
from sapwood.kernel.trees.tree_files import LABEL
from sapwood.storage.blobs import blobs_in
from sapwood.storage.files import make_private_folder, open_private

FORMAT = 1
MANIFEST = "manifest.json"
FOLDER = "files/"
LARGEST_MANIFEST = 64 * 1024 * 1024
CHUNK = 1024 * 1024
STEM = r"(root|[0-9a-f]{24}-[0-9]+)"
NAME = re.compile(rf"{STEM}\.db|{STEM}\.files/[0-9a-f]{{64}}")
"""The names of members, below `FOLDER`: none of them leads elsewhere."""


class FileEntry(msgspec.Struct, frozen=True):
    """One file of a tree."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of a tree says about it."""

    format: int = FORMAT
    sapwood: str
    """The version of sapwood that wrote it."""
    source: str
    """The address of the agent that was exported."""
    at: float
    """The moment that it shows, in seconds since the epoch, UTC."""
    agents: int
    files: dict[str, FileEntry]

    @property
    def address(self) -> Address:
        return Address.parse(self.source)

    @property
    def root(self) -> Address:
        """The address that the agent has as a root."""
        return Address.root_of(self.address.type, self.address.name)


_read_manifest = msgspec.json.Decoder(Manifest).decode


def write_tree_file(folder: Path, target: Path, source: Address, at: float, agents: int) -> Manifest:
    """Write the files of a folder, which no process has open, to a new file. Takes a while: not for the event loop."""
    paths = sorted([*folder.glob("*.db"), *blobs_in(folder)])
    files = {str(path.relative_to(folder)): _entry(path) for path in paths}
    manifest = Manifest(sapwood=program(), source=str(source), at=at, agents=agents, files=files)
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    # A name of its own: if two exports write to one target, the one that ends first counts. Only this user may read it.
    descriptor, name = tempfile.mkstemp(".part", f"{target.name}.", target.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as tar:
                _add(tar, MANIFEST, text)
                for path in paths:
                    tar.add(path, f"{FOLDER}{path.relative_to(folder)}", recursive=False, filter=_plain)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, target)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise UsageError(f"{str(target)!r} exists already. Choose another name.") from None
    finally:
        part.unlink(missing_ok=True)
    return manifest


def manifest_of(source: Path) -> Manifest:
    """Return what a file of a tree says about it."""
    with _reading(source) as tar:
        return _manifest(source, tar, tar.next())


@contextmanager
def _reading(source: Path) -> Generator[tarfile.TarFile, None, None]:
    try:
        with source.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            yield tar
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"{str(source)!r} is not a file.") from None
    except (tarfile.TarError, EOFError) as error:
        raise StoredDataError(f"{str(source)!r} is not an exported tree, or is damaged: {error}.") from None


def read_tree_file(source: Path, folder_of: Callable[[Address], Path]) -> Manifest:
    """Unpack a file of a tree into the new folder of its root; `StoredDataError` if it is damaged.

    Takes a while: not for the event loop.
    """
    with _reading(source) as tar:
        members = iter(tar)
        manifest = _manifest(source, tar, next(members, None))
        folder = folder_of(manifest.root)
        make_private_folder(folder)
        found = set(_unpacked(tar, members, manifest, folder))
    if missing := sorted(set(manifest.files) - found):
        raise StoredDataError(f"{str(source)!r} is incomplete: {missing[0]} is missing.")
    (folder / LABEL).write_text(str(manifest.root))
    return manifest


def _manifest(source: Path, tar: tarfile.TarFile, member: tarfile.TarInfo | None) -> Manifest:
    if member is None or member.name != MANIFEST or not member.isreg() or member.size > LARGEST_MANIFEST:
        raise StoredDataError(f"{str(source)!r} is not an exported tree: it has no manifest.")
    file = tar.extractfile(member)
    assert file is not None
    try:
        manifest = _read_manifest(file.read())
        _ = manifest.root, datetime.fromtimestamp(manifest.at, UTC)
    except (msgspec.DecodeError, ValueError, OverflowError, OSError) as error:
        raise StoredDataError(f"The manifest of {str(source)!r} is damaged: {error}.") from None
    if manifest.format > FORMAT:
        raise UsageError(
            f"{str(source)!r} was written by sapwood {manifest.sapwood}, in a newer format. Import it with that "
            "version."
        )
    for name in manifest.files:
        if not NAME.fullmatch(name):
            raise StoredDataError(f"The manifest of {str(source)!r} names {name!r}, which is no file of a tree.")
    return manifest


def _unpacked(
    tar: tarfile.TarFile, members: Iterator[tarfile.TarInfo], manifest: Manifest, folder: Path
) -> Iterator[str]:
    """Write each member that the manifest names, and yield its name."""
    for member in members:
        name = member.name.removeprefix(FOLDER)
        entry = manifest.files.get(name)
        if entry is None or not member.isreg() or member.issparse() or member.size != entry.bytes:
            raise StoredDataError(f"{member.name!r} is not what the manifest says.")
        content = tar.extractfile(member)
        assert content is not None
        target = folder / name
        make_private_folder(target.parent)
        with open_private(target, "xb") as copy:
            if _copied(content, copy) != entry.sha256:
                raise StoredDataError(f"{member.name!r} is damaged: it does not have its digest.")
        yield name


def _copied(content: IO[bytes], copy: IO[bytes] | None) -> str:
    """Copy a file; return its digest."""
    digest = hashlib.sha256()
    while data := content.read(CHUNK):
        digest.update(data)
        if copy is not None:
            copy.write(data)
    return digest.hexdigest()


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        return FileEntry(path.stat().st_size, _copied(file, None))


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(_plain(member), io.BytesIO(content))


def _plain(member: tarfile.TarInfo) -> Any:
    """Leave out who wrote a file and when."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode, member.mtime = 0o600, 0
    return member
