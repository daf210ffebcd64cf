"""The file in the data folder that tells commands where the running server is, and its token."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from sapwood.randomness import SYSTEM, new_id
from sapwood.storage.availability import StorageUnavailable, refusals

FILE = "operator.json"


def write_operator_file(folder: Path, url: str, token: str) -> None:
    """Write the file, which only its owner can read, whole or not at all."""
    path = folder / FILE
    half = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with refusals():
            half.unlink(missing_ok=True)
            descriptor = os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w") as file:
                start = new_id(SYSTEM)
                json.dump({"url": url, "token": token, "pid": os.getpid(), "start": start}, file)
            half.rename(path)
    except StorageUnavailable as error:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise StorageUnavailable(f"The file {str(path)!r} cannot be written. {error}", error.reason) from error
