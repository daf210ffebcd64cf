"""Object storage: S3 and what speaks like it, a folder that several machines share, or memory for tests."""

# obstore's stubs leave some of its values unknown.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from sapwood.errors import Unavailable, UsageError
from sapwood.storage.files import make_private_folder
from sapwood.timings import DEFAULTS, Timings

if TYPE_CHECKING:
    from obstore.exceptions import BaseError

PATIENCE = 30.0
"""Seconds after which an object store that does not answer times out; the caller may retry."""
ATTEMPT = 10.0
BULK_ATTEMPT = 120.0
"""Seconds for one part of a file, also over a slow line."""
PROGRESS = 150.0
"""Seconds in which an upload has to get one part further."""
PART = 5 * 1024 * 1024
"""Bytes of a file that are uploaded at once; more if S3 would count too many parts."""
PIECE = 1024 * 1024
"""Bytes that are read of it at once."""
MOST_PARTS = 9000
"""S3 takes ten thousand."""
PARTS_AT_ONCE = 2
UPLOADS_AT_ONCE = 4
"""Uploads of one process; each has a few parts in memory."""
PAGE = 1000
TRIED = re.compile(r"^(?:Generic S3 error: )?Error performing (\w+ \S+) in .*? - ")

T = TypeVar("T")


class ArchiveRefused(Unavailable):
    """The archive answers, and refuses: an operator has to change the settings or the permissions."""


class ObjectArchive:
    """The objects below one URL: `s3://bucket/prefix`, `file:///folder` or `memory:///`.

    What S3 has to know beside it is taken from the environment, as by any program: `AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL`, or the role of the machine. Trouble that passes
    is waited for, up to 30 seconds.
    """

    def __init__(self, url: str, *, timings: Timings = DEFAULTS) -> None:
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, from_url

        self.url = url
        parts = urlsplit(url)
        self._store: Any
        self._bulk: Any = None
        """The same objects, with more time for each request."""
        self._uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self._ending: set[asyncio.Future[None]] = set()
        """Uploads that were given up."""
        try:
            if parts.scheme == "file":
                folder = Path(unquote(parts.path))
                make_private_folder(folder)  # objects get the umask's mode, below a folder that others cannot enter
                self._store = LocalStore(str(folder), automatic_cleanup=False, mkdir=True)
            elif parts.scheme == "memory":
                self._store = from_url(url)
            elif parts.scheme in ("s3", "s3a"):
                self._store, self._bulk = (_s3(url, timings, attempt) for attempt in (ATTEMPT, BULK_ATTEMPT))
            else:
                raise UsageError(f"The archive must be s3://bucket/prefix or file:///folder, got {url!r}.")
        except (BaseError, ValueError, OSError) as error:
            raise UsageError(f"The archive {url!r} cannot be used: {_first_line(error)}") from None
        self._bulk = self._bulk or self._store

    async def put(self, key: str, data: bytes, *, only_new: bool = False) -> bool:
        """Store an object; False: `only_new` was asked for and there is one."""
        from obstore import put_async
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            # In one piece: only so it is stored on a condition, and whole or not at all.
            await self._ask(
                put_async(self._store, key, data, mode="create" if only_new else "overwrite", use_multipart=False)
                if only_new
                else put_async(self._store, key, data)
            )
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    async def get(self, key: str) -> bytes | None:
        """Return an object, or `None` if there is none."""
        from obstore import get_async

        async def whole() -> bytes:
            return bytes(await (await get_async(self._store, key)).bytes_async())

        try:
            return await self._ask(whole())
        except FileNotFoundError:
            return None

    async def put_file(self, key: str, path: Path) -> None:
        """Store a file as an object, in parts. What does not get further for too long is `Unavailable`.

        If this is cancelled, the upload ends soon after, so that the store does not keep its parts.
        """
        is_given_up = asyncio.Event()
        upload = asyncio.ensure_future(self._put_parts(key, path, is_given_up))
        try:
            await asyncio.shield(upload)
        except asyncio.CancelledError:
            is_given_up.set()
            self._ending.add(upload)
            upload.add_done_callback(self._ended)
            raise

    def _ended(self, upload: asyncio.Future[None]) -> None:
        self._ending.discard(upload)
        if not upload.cancelled():
            upload.exception()  # no caller waits for it

    async def _put_parts(self, key: str, path: Path, is_given_up: asyncio.Event) -> None:
        from obstore import put_async

        size = await asyncio.to_thread(lambda: path.stat().st_size)
        part = max(PART, size // MOST_PARTS + 1)
        async with self._uploads:
            try:
                async with asyncio.timeout(PROGRESS) as progress:

                    async def pieces() -> AsyncIterator[bytes]:
                        for place in range(0, size, PIECE):
                            if is_given_up.is_set():
                                raise Unavailable("The upload was given up.")  # the store removes its parts then
                            progress.reschedule(asyncio.get_running_loop().time() + PROGRESS)
                            yield await asyncio.to_thread(_piece_of, path, place)

                    if not is_given_up.is_set():
                        await self._ask(
                            put_async(self._bulk, key, pieces(), chunk_size=part, max_concurrency=PARTS_AT_ONCE), None
                        )
            except TimeoutError:
                raise Unavailable(
                    f"The archive {self.url} took nothing of a file for {PROGRESS:.0f} seconds."
                ) from None

    async def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes of an object from `start` to before `end`, or `None` if there is no such object."""
        from obstore import get_range_async

        try:
            question = get_range_async(self._bulk, key, start=start, end=end)
            return bytes(await self._ask(question, BULK_ATTEMPT + PATIENCE))
        except FileNotFoundError:
            return None

    async def size(self, key: str) -> int | None:
        """Return how many bytes an object has, or `None` if there is none."""
        from obstore import head_async

        try:
            return int((await self._ask(head_async(self._store, key)))["size"])
        except FileNotFoundError:
            await self.get_range(key, 0, 1)  # unlike this answer, its own tells whether the bucket is missing
            return None

    async def keys(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Return the keys that begin so, in order, those after `after`."""
        import obstore

        # S3 gives them in order. A folder does not, so there they are put in order first.
        found = obstore.list(self._store, prefix=prefix.rstrip("/"), offset=after or None, chunk_size=PAGE)
        pages = aiter(found)
        if self.url.startswith("s3"):
            while (page := await self._ask(_next(pages))) is not None:
                for entry in page:
                    yield entry["path"]
            return
        every: list[str] = []
        while (page := await self._ask(_next(pages))) is not None:
            every.extend(entry["path"] for entry in page)
        for key in sorted(every):
            if key > after:
                yield key

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are gone already are no trouble."""
        from obstore import delete_async

        for at in range(0, len(keys), PAGE):
            some = list(keys[at : at + PAGE])
            try:
                await self._ask(delete_async(self._store, some))
            except FileNotFoundError:
                for key in some:
                    try:
                        await self._ask(delete_async(self._store, key))
                    except FileNotFoundError:
                        continue

    async def _ask(self, question: Awaitable[T], patience: float | None = PATIENCE * 2) -> T:
        """Return the answer of the store; what is no answer is `Unavailable`. `patience`: seconds to wait for it."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            async with asyncio.timeout(patience):
                return await question
        except (AlreadyExistsError, PreconditionError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise self._trouble(error) from None
            raise
        except (BaseError, OSError, TimeoutError) as error:
            raise self._trouble(error) from None

    def _trouble(self, error: BaseError | Exception) -> Unavailable:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        text = str(error)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or any(
            word in text for word in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "ExpiredToken")
        ):
            return ArchiveRefused(
                f"The archive {self.url} refused the credentials. Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY "
                f"and their permissions: {_first_line(error)}"
            )
        if "NoSuchBucket" in text:
            return ArchiveRefused(f"The archive {self.url} cannot be used: the bucket does not exist.")
        return Unavailable(f"The archive {self.url} does not answer: {_first_line(error)}")


def _s3(url: str, timings: Timings, attempt: float) -> Any:
    from obstore.store import from_url

    return from_url(
        url,
        client_options={
            "timeout": timedelta(seconds=attempt),
            "connect_timeout": timedelta(seconds=5),
            "allow_http": _speaks_plainly(os.environ),
        },
        retry_config={
            "max_retries": timings.archive_retries,
            "retry_timeout": timedelta(seconds=PATIENCE),
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5)},
        },
    )


def _piece_of(path: Path, place: int) -> bytes:
    """Return bytes of a file. Takes a while."""
    with path.open("rb") as file:
        file.seek(place)
        return file.read(PIECE)


def _speaks_plainly(environment: Mapping[str, str]) -> bool:
    """Return whether S3 may be spoken to without encryption: an endpoint says so itself."""
    endpoint = environment.get("AWS_ENDPOINT_URL") or environment.get("AWS_ENDPOINT") or ""
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"AWS_ENDPOINT_URL must be http://host:port or https://host, got {endpoint!r}.")
    return endpoint.startswith("http://") or environment.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")


async def _next(pages: Any) -> Any:
    return await anext(pages, None)


def _first_line(error: BaseException) -> str:
    """Return what went wrong, and not how often and how long it was tried."""
    lines = str(error).strip().splitlines()
    return TRIED.sub(r"\1: ", lines[0])[:300] if lines else type(error).__name__
