"""What a data folder keeps of its erasures: those that are unfinished, the receipts of the others, and the key.

Each erasure is one file. While it is unfinished, the file has the address and what was done so far, and is replaced
after each step. Afterwards it is the receipt, without the address.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.errors import Unavailable, UsageError
from sapwood.kernel.erasure.receipt import ErasedPlace, ErasureReceipt, private_key
from sapwood.kernel.erasure.stores import NEW, FolderStore, RecordStore
from sapwood.storage.availability import refusals
from sapwood.storage.files import Files

KEY = "erasure.key"
UNFINISHED, RECEIPT = ".unfinished", ".json"
KEY_BYTES = 32


class ErasureRecord(msgspec.Struct, kw_only=True):
    """One erasure that is not finished."""

    id: str
    address: str
    """The address that was asked for."""
    names: list[str] = []
    """All addresses that the agent has had, the present one first."""
    salt: str
    by: str
    asked_at: float
    agents: int = 0
    files: int = 0
    bytes: int = 0
    stems: list[str] = []
    """The file stems of a subtree: once its parent has forgotten it, nothing else names them."""
    generation: int = 0
    """Which child of its parent the subtree is. 0 means a whole tree."""
    created_at: float = 0.0
    """When the subtree was created. A tree that was created again has other children of the same numbers."""
    types: list[str] = []
    """The type ids that a parent may have noted a subtree under."""
    log_ends: dict[str, int] = {}
    """In a cluster, by address: the last place in the stream that may have messages of the tree."""
    done: dict[str, list[ErasedPlace]] = {}
    """What each finished step has removed."""

    @property
    def subject(self) -> Address:
        """The agent that is erased, at its present address."""
        return self.subjects[0]

    @property
    def subjects(self) -> list[Address]:
        """The same, at all addresses that it has had."""
        return [Address.parse(name) for name in self.names or [self.address]]


class ErasureRecords:
    """The erasures of one data folder, or of one cluster, and the key that signs their receipts."""

    def __init__(self, data: Path, files: Files, store: RecordStore | None = None) -> None:
        self._data = data
        self._files = files
        self._store = store or FolderStore(data, files)

    async def unfinished(self) -> list[ErasureRecord]:
        """Return the erasures that a crash or a failure interrupted, oldest first."""
        names = await self._store.names()
        found: list[ErasureRecord] = []
        for name in names:
            id, dot, suffix = name.rpartition(".")
            if dot + suffix != UNFINISHED:
                continue
            if f"{id}{RECEIPT}" in names:
                await self._store.remove(name)
            elif (content := await self._store.get(name)) is not None:
                found.append(msgspec.json.decode(content, type=ErasureRecord))
        return sorted(found, key=lambda record: record.asked_at)

    async def receipt(self, id: str) -> ErasureReceipt | None:
        """Return the receipt of a finished erasure, or `None` if there is none of this id."""
        content = await self._store.get(f"{id}{RECEIPT}")
        return None if content is None else msgspec.json.decode(content, type=ErasureReceipt)

    async def write(self, record: ErasureRecord) -> None:
        """Store what is known of an unfinished erasure, durably."""
        await self._store.put(f"{record.id}{UNFINISHED}", msgspec.json.encode(record))

    async def withdraw(self, record: ErasureRecord) -> None:
        """Forget an erasure that could not be stored: nothing was removed."""
        with suppress(Unavailable, OSError):
            await self._store.remove(f"{record.id}{UNFINISHED}")

    async def finish(self, receipt: ErasureReceipt) -> None:
        """Store a receipt, durably, and forget what the erasure needed."""
        await self._store.put(f"{receipt.id}{RECEIPT}", receipt.json().encode())
        await self._store.remove(f"{receipt.id}{UNFINISHED}")

    def key(self, setting: str = "") -> bytes:
        """Return the private key that signs receipts: that of the settings, or that of the data folder.

        The first call makes the latter.
        """
        path = self._data / KEY
        if not setting and not path.exists():
            with refusals():
                self._make_key(path)
        text = setting or path.read_text().strip()
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            where = "Settings(erasure_key=…)" if setting else str(path)
            raise UsageError(f"{where} must be {KEY_BYTES} bytes, hexadecimal.")
        private_key(key)  # or it is missing what signs: before anything is removed
        return key

    def _make_key(self, path: Path) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ImportError:
            private_key(b"")
            raise
        new = self._files.unused_path(path, NEW)
        self._files.close(self._files.create(new, Ed25519PrivateKey.generate().private_bytes_raw().hex().encode()))
        self._files.sync_file(new)
        try:
            path.hardlink_to(new)  # unlike a rename, it does not replace the key of another process
        except FileExistsError:
            pass
        finally:
            self._files.remove(new)
        self._files.sync_folder(self._data)
