"""The same app on a machine whose wall clock can be set: the file `BLACKBOX_CLOCK` holds the seconds to add."""

import os
import time
from pathlib import Path

from tests.blackbox.app import app

CLOCK = Path(os.environ["BLACKBOX_CLOCK"])
true_time = time.time


def shifted_time() -> float:
    return true_time() + float(CLOCK.read_text())


time.time = shifted_time

__all__ = ["app"]
