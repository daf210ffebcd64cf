"""Encrypts the payloads of workflows: Temporal stores them, you have the key."""

from collections.abc import Sequence
from dataclasses import replace

from cryptography.fernet import Fernet, MultiFernet
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
)

ENCODING = b"binary/fernet"


# --8<-- [start:codec]
class EncryptionCodec(PayloadCodec):
    """Encrypts with the first key and decrypts with any, so that keys can rotate."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = MultiFernet([Fernet(key) for key in keys])

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._encrypt(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._decrypt(payload) for payload in payloads]

    def _encrypt(self, payload: Payload) -> Payload:
        data = self._keys.encrypt(payload.SerializeToString())
        return Payload(metadata={"encoding": ENCODING}, data=data)

    def _decrypt(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload  # written before the first key
        return Payload.FromString(self._keys.decrypt(payload.data))


def encrypting_converter(keys: Sequence[str]) -> DataConverter:
    """Return a data converter for the app and its workers."""
    return replace(
        DataConverter.default,
        payload_codec=EncryptionCodec(keys),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )


# --8<-- [end:codec]
