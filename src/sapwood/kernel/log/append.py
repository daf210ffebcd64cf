"""Appends what trees send to the log, in as many batches as it takes."""

from __future__ import annotations

from collections.abc import Collection

from sapwood.errors import Unavailable
from sapwood.kernel.log.writer import InFlight
from sapwood.kernel.ports.log import FencedLog, Full


async def append(stored: FencedLog, sendings: Collection[InFlight], batch: int) -> list[int]:
    """Store what trees send, and return the places. At most `batch` entries go together."""
    entries = [entry for sending in sendings for entry in sending.entries]
    # The epochs in which the entries were made, even if a shard was lost and acquired again since.
    epochs = {sending.shard: sending.epoch for sending in sendings}
    if len(entries) <= batch:
        return await stored.append(entries, epochs)
    # A commit of one tree: parts of it do not count until the last one is there.
    sequences: list[int] = []
    for at in range(0, len(entries), batch):
        try:
            sequences += await stored.append(entries[at : at + batch], epochs)
        except Full as error:
            if not at:
                raise
            raise Unavailable(str(error)) from None  # some of it is stored
    return sequences
