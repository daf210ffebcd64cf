"""Encrypts secrets before they are stored: a copy of a database has no token that can be used.

A secret can be opened only in the agent and for the server that it belongs to.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from sapwood.errors import UsageError
from sapwood.kernel.actors.actor import Actor

FORMAT = b"\x01"
NONCE = 12


class UnreadableSecrets(Exception):
    """No key opens what is stored."""


class Seal:
    """The secrets of one agent."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._keys = [
            hashlib.sha256(b"sapwood mcp\0" + key.encode()).digest() for key in actor.host.settings.secret_keys
        ]

    def check(self) -> None:
        """Raise if no secret can be stored."""
        if not self._keys:
            raise UsageError(
                "Secrets of MCP servers are stored encrypted, and there is no key. Set Settings(secret_keys=…), or "
                'SAPWOOD_SECRET_KEYS. Write a key with: python -c "import secrets; print(secrets.token_urlsafe(32))"'
            )

    def seal(self, secrets: Any, purpose: str) -> bytes:
        """Return secrets as they are stored, encrypted with the first key."""
        self.check()
        nonce = self._actor.host.random.randbytes(NONCE)
        box = _cipher(self._keys[0]).encrypt(nonce, msgspec.json.encode(secrets), self._bound_to(purpose))
        return FORMAT + nonce + box

    def open(self, sealed: bytes, purpose: str) -> Any:
        """Return what was sealed. Raises `UnreadableSecrets` if no key opens it."""
        from cryptography.exceptions import InvalidTag

        for key in self._keys:
            try:
                text = _cipher(key).decrypt(sealed[1 : NONCE + 1], sealed[NONCE + 1 :], self._bound_to(purpose))
            except (InvalidTag, ValueError):
                continue
            return msgspec.json.decode(text)
        raise UnreadableSecrets

    def _bound_to(self, purpose: str) -> bytes:
        return f"{self._actor.address}\0{purpose}".encode()


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError("Secrets require cryptography. Run: pip install 'sapwood[mcp]'.") from None
    return AESGCM(key)
