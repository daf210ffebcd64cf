"""Encrypts what Temporal keeps of a workflow: it has the text, and you have the key."""

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
class Sealing(PayloadCodec):
    """Seals with the first key, and opens with any: so keys can be changed."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = MultiFernet([Fernet(key) for key in keys])

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._sealed(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [self._opened(payload) for payload in payloads]

    def _sealed(self, payload: Payload) -> Payload:
        data = self._keys.encrypt(payload.SerializeToString())
        return Payload(metadata={"encoding": ENCODING}, data=data)

    def _opened(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload  # from before there was a key
        return Payload.FromString(self._keys.decrypt(payload.data))


def sealed(keys: Sequence[str]) -> DataConverter:
    """Return how an app and its workers write to Temporal, and read from it."""
    return replace(
        DataConverter.default,
        payload_codec=Sealing(keys),
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes,
    )


# --8<-- [end:codec]
