"""The receipt of an erasure: what was removed from each place, what is still there, and a signature over all of it.

It has no address in it, only a salted hash: a person who knows the address can check that the receipt is about it, and
others learn no name from it. A receipt is checked without a data folder and without a network.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from sapwood.errors import Refused, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT = 1
KNOWN_AS = "ed25519:"
INSTALL = "Erasure needs the package cryptography. Run: pip install 'sapwood[erase]'."

PlaceState: TypeAlias = Literal["erased", "still there", "unknown", "kept"]
"""Whether a place has data of the erased agents: none, some, possibly some, or some on purpose."""


class ErasedPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One place that had data of the erased agents, or could have."""

    place: str
    """What kind of place: files, archive, log, indexes, parents, backup, …"""
    state: PlaceState
    node: str = ""
    """The node, if there are several."""
    where: str = ""
    """The path of a backup."""
    count: int = 0
    """How many files, rows, objects or records were removed."""
    bytes: int = 0
    """Their size, where it is known."""
    until: str = ""
    """When data that is still there goes at the latest: a time, ISO 8601, in UTC."""
    note: str = ""
    """What else there is to say, as a sentence."""
    done_at: str = ""
    """When the place was finished: a time, ISO 8601, in UTC."""


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure did, signed by the server that did it."""

    receipt: int = FORMAT
    """The version of the format."""
    id: str
    """The id of the erasure: the same id returns the same receipt."""
    salt: str
    subject: str
    """SHA-256 of the salt and the address of the erased agent, hexadecimal."""
    is_subtree: bool
    """Whether a sub-agent was erased, and not a whole tree."""
    by: str
    """Who asked for it: the name of a token, or what the program passed."""
    asked_at: str
    """When it was asked for: ISO 8601, in UTC."""
    finished_at: str
    """When the last place was finished: ISO 8601, in UTC."""
    agents: int
    """How many agents had files."""
    places: list[ErasedPlace]
    not_covered: list[str]
    """Where data may be that sapwood cannot reach, in sentences."""
    public_key: str
    """The key that checks the signature: `ed25519:` and 32 bytes, base64."""
    fingerprint: str
    """SHA-256 of the public key, hexadecimal. Compare it with the one that the operator publishes."""
    signature: str = ""
    """Over all other fields: `ed25519:` and 64 bytes, base64."""

    @property
    def remains(self) -> list[ErasedPlace]:
        """The places that have data of the erased agents, or could have."""
        return [place for place in self.places if place.state != "erased"]

    def is_about(self, address: str) -> bool:
        """Return whether this is the receipt of an agent, such as `Desk:main` or `Desk:main/Chat:a`."""
        return subject_of(self.salt, address) == self.subject

    @staticmethod
    def verify(text: str | bytes, *, fingerprint: str | None = None) -> ErasureReceipt:
        """Return the receipt in a file if its signature is valid; raise `Refused` if it was changed.

        Anyone can sign a receipt with a key of their own: pass the `fingerprint` that the operator publishes, or
        compare it with that of the result.
        """
        return verify_receipt(text, fingerprint=fingerprint)

    def json(self) -> str:
        """Return the receipt as a file has it."""
        return json.dumps(msgspec.to_builtins(self), indent=2, ensure_ascii=False) + "\n"


def subject_of(salt: str, address: str) -> str:
    """Return what stands for an address in a receipt."""
    return hashlib.sha256(f"{salt}\n{address}".encode()).hexdigest()


def time_text(at: float) -> str:
    """Return a time as a receipt has it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def signed(receipt: ErasureReceipt, key: bytes) -> ErasureReceipt:
    """Return the receipt with the public key that belongs to a private one of 32 bytes, and with its signature."""
    private = private_key(key)
    public = private.public_key().public_bytes_raw()
    named = msgspec.structs.replace(receipt, public_key=_text(public), fingerprint=fingerprint_of(public), signature="")
    return msgspec.structs.replace(named, signature=_text(private.sign(_payload(msgspec.to_builtins(named)))))


def private_key(key: bytes) -> Ed25519PrivateKey:
    """Return what signs with a private key of 32 bytes; `UsageError` if the package for it is missing."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise UsageError(INSTALL) from None
    return Ed25519PrivateKey.from_private_bytes(key)


def fingerprint_of(public: bytes) -> str:
    """Return the fingerprint of a public key."""
    return hashlib.sha256(public).hexdigest()


def verify_receipt(text: str | bytes, *, fingerprint: str | None = None) -> ErasureReceipt:
    """Return the receipt in a file if its signature is valid, and by this key; raise `Refused` otherwise."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise UsageError(INSTALL) from None
    try:
        fields: dict[str, Any] = json.loads(text, object_pairs_hook=_once)
    except (ValueError, TypeError) as error:
        raise Refused(f"This is not a receipt of an erasure: {error}") from None
    try:
        receipt = msgspec.convert(fields, ErasureReceipt)
        public, signature = _bytes(receipt.public_key), _bytes(receipt.signature)
    except (ValueError, TypeError) as error:
        if not isinstance(fields, dict) or "signature" not in fields:  # pyright: ignore[reportUnnecessaryIsInstance] - any JSON
            raise Refused(f"This is not a receipt of an erasure: {error}") from None
        raise Refused(f"The receipt was changed after it was signed, or is damaged: {error}") from None
    if receipt.receipt != FORMAT:
        raise Refused(f"The receipt has the format {receipt.receipt}, and this version reads {FORMAT}.")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _payload(fields))
    except (InvalidSignature, ValueError):
        raise Refused("The signature does not fit: the receipt was changed after it was signed.") from None
    if fingerprint_of(public) != receipt.fingerprint:
        raise Refused("The fingerprint in the receipt is not that of its public key.")
    if fingerprint is not None and fingerprint.lower().replace(":", "") != receipt.fingerprint:
        raise Refused(f"The receipt is signed by another key: expected {fingerprint}, got {receipt.fingerprint}.")
    return receipt


def _payload(fields: dict[str, Any]) -> bytes:
    """Return what is signed: all fields but the signature, as JSON with sorted keys and no spaces."""
    named = {name: value for name, value in fields.items() if name != "signature"}
    return json.dumps(named, sort_keys=True, separators=(",", ":")).encode()


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field occurs twice")
    return found


def _text(raw: bytes) -> str:
    return KNOWN_AS + base64.b64encode(raw).decode()


def _bytes(text: str) -> bytes:
    if not text.startswith(KNOWN_AS):
        raise ValueError(f"expected a key or signature that starts with {KNOWN_AS!r}")
    return base64.b64decode(text.removeprefix(KNOWN_AS), validate=True)
