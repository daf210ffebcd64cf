"""Messages as a segment holds them: of a page that was written before, only what changed in it.

A page is combined with its last image in the same segment by XOR: what did not change becomes zeros, which compress to
nearly nothing. A reader goes through a segment from its beginning, so it knows the last images. The digest of each
message shows whether it was put together as it was written.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict

import msgspec

from sapwood.kernel.log.records import DIGEST, ChainBroken, Change, Message, seal
from sapwood.storage.image import PAGE_SIZE

MOST_IMAGES = 8192
"""Images that a writer remembers, of all trees: 16 MB. A page whose image it forgot is stored as it is."""


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    message: Message
    """With the differences in place of images."""
    deltas: list[bytes]
    """For each change, a byte for each of its pages: 1 means that it is a difference."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


class PageImages:
    """The last images of pages, of the segments that are written to."""

    def __init__(self, most: int = MOST_IMAGES) -> None:
        self._most = most
        self._images: OrderedDict[tuple[object, str, int], bytes] = OrderedDict()

    def encode(self, segment: object, message: Message, digest: bytes) -> bytes:
        """Return a message as it is stored in a segment. `digest` is that of the message as it is."""
        changes: list[Change] = []
        deltas: list[bytes] = []
        for change in message.changes:
            pages: list[bytes] = []
            kinds = bytearray()
            for at, number in enumerate(change.numbers):
                image = change.images[at * PAGE_SIZE : (at + 1) * PAGE_SIZE]
                key = (segment, change.file, number)
                before = self._images.pop(key, None)
                self._images[key] = image
                pages.append(image if before is None else _combined(image, before))
                kinds.append(before is not None)
            changes.append(msgspec.structs.replace(change, images=b"".join(pages)))
            deltas.append(bytes(kinds))
        while len(self._images) > self._most:
            self._images.popitem(last=False)
        return digest + zlib.compress(_encode(_Stored(msgspec.structs.replace(message, changes=changes), deltas)), 1)


class SegmentState:
    """The files of a tree, as the messages of a segment make them, from its first on."""

    def __init__(self) -> None:
        self._images: dict[tuple[str, int], bytes] = {}
        """The last image of each page, of files that are no more, too."""
        self._files: dict[str, dict[int, bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._last: bytes | None = None

    def apply(self, body: bytes) -> None:
        """Apply the next message; `ChainBroken` if it is not as it was written, or does not follow the last one."""
        try:
            stored = _decode(zlib.decompress(body[DIGEST:]))
        except (zlib.error, msgspec.DecodeError) as error:
            raise ChainBroken(f"A message of the history cannot be read: {error}") from error
        message = stored.message
        changes = [self._restored(change, kinds) for change, kinds in zip(message.changes, stored.deltas, strict=True)]
        _, digest = seal(msgspec.structs.replace(message, changes=changes))
        if digest != body[:DIGEST] or self._last not in (None, message.before):
            raise ChainBroken(f"Message {message.previous + 1} of the history is not as it was written.")
        self._last = digest
        for stem in message.removed:
            self._files.pop(stem, None)
        for change in changes:
            pages = self._files.setdefault(change.file, {})
            if change.is_new:
                pages.clear()
            pages.update((number, self._images[change.file, number]) for number in change.numbers)
            self._sizes[change.file] = change.size

    def _restored(self, change: Change, kinds: bytes) -> Change:
        pages: list[bytes] = []
        for at, (number, is_delta) in enumerate(zip(change.numbers, kinds, strict=True)):
            page = change.images[at * PAGE_SIZE : (at + 1) * PAGE_SIZE]
            key = change.file, number
            if is_delta and key not in self._images:
                raise ChainBroken(f"The history has a difference of page {number} of {change.file!r} to no image.")
            self._images[key] = _combined(page, self._images[key]) if is_delta else page
            pages.append(self._images[key])
        return msgspec.structs.replace(change, images=b"".join(pages))

    def files(self) -> dict[str, bytes]:
        """Return the files."""
        empty = bytes(PAGE_SIZE)
        return {
            stem: b"".join([pages.get(number, empty) for number in range(1, self._sizes[stem] + 1)])
            for stem, pages in self._files.items()
        }


def _combined(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(PAGE_SIZE, "little")
