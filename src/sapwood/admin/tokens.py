"""Tokens of the admin API: what their bearer may do, signed with a key in the data folder.

A token is not stored anywhere. It ends when it expires, or when the key is replaced.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from pathlib import Path

import msgspec

from sapwood.address import Address
from sapwood.admin.access import OWNER, SCOPES, Access, Scope
from sapwood.errors import InvalidName, UsageError

FILE = "admin.key"
PREFIX = "sapwood_"
"""How tokens begin, so that scanners of secrets know them."""
LONGEST = 4096


class TokenContent(msgspec.Struct, forbid_unknown_fields=True, rename={"expires_at": "until"}):
    """What is signed."""

    name: str
    may: list[Scope]
    expires_at: float
    below: str | None = None


class TokenKey:
    """The key of one data folder. It is read again when its file has changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._read_at: tuple[int, int, int] | None = None
        self._key = b""

    def sign(self, access: Access) -> str:
        """Return a token. The first one creates the key."""
        assert access.expires_at is not None
        key = self._current() or self._create()
        below = None if access.below is None else str(access.below)
        content = TokenContent(access.name, [one for one in SCOPES if one in access.scopes], access.expires_at, below)
        body = _text(msgspec.json.encode(content))
        return f"{PREFIX}{body}.{_text(_signature(key, body))}"

    def access_of(self, token: str, now: float) -> Access | None:
        """Return what a token allows; `None` if it is wrong or has expired."""
        if not token.startswith(PREFIX) or len(token) > LONGEST or not (key := self._current()):
            return None
        body, _, signature = token.removeprefix(PREFIX).partition(".")
        try:
            if not hmac.compare_digest(_bytes(signature), _signature(key, body)):
                return None
            content = msgspec.json.decode(_bytes(body), type=TokenContent)
            below = None if content.below is None else Address.parse(content.below)
        except (binascii.Error, ValueError, msgspec.DecodeError, InvalidName):
            return None
        if now >= content.expires_at:
            return None
        return Access(content.name, frozenset(content.may), below, content.expires_at)

    def rotate(self) -> None:
        """Replace the key. All tokens that it has signed are refused from now on."""
        self._written().rename(self._path)

    def _create(self) -> bytes:
        written = self._written()
        try:
            with contextlib.suppress(FileExistsError):  # by another command at the same time
                os.link(written, self._path)
        finally:
            written.unlink()
        return self._current()

    def _written(self) -> Path:
        """Return a file with a new key beside that of the folder, which is never there in part."""
        path = self._path.with_name(f"{FILE}.{os.getpid()}")
        path.unlink(missing_ok=True)
        _write(path)
        return path

    def _current(self) -> bytes:
        """Return the key; nothing if there is none, or if other users of the machine could read it."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return b""
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"{str(self._path)!r} must be readable only by its owner. Run `chmod 600` on it.")
        version = found.st_mtime_ns, found.st_ino, found.st_size
        if version != self._read_at:
            try:
                self._key = bytes.fromhex(json.loads(self._path.read_text())["key"])
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{str(self._path)!r} is damaged. Replace it with `sapwood token --rotate`.") from None
            self._read_at = version
        return self._key


def checked(name: str, may: list[str]) -> frozenset[Scope]:
    """Return the scopes of a new token. Raises `UsageError` for a name or a scope that cannot be."""
    if not name or name == OWNER or len(name) > 100 or not name.isprintable():
        raise UsageError(f"The name of a token must have 1 to 100 printable characters, and not be {OWNER!r}.")
    known: dict[str, Scope] = {scope: scope for scope in SCOPES}
    if wrong := [one for one in may if one not in known] or (["none"] if not may else []):
        raise UsageError(f"Expected scopes of {', '.join(SCOPES)}, got {', '.join(wrong)}.")
    return frozenset(known[one] for one in may if one in known)


def _write(path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"key": secrets.token_hex(32)}, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        path.unlink()
        raise


def _signature(key: bytes, body: str) -> bytes:
    return hmac.digest(key, body.encode("latin-1"), hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("latin-1") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
