"""Random numbers, from a source that a test can seed.

Code that a node runs does not draw them itself: it is handed a `Random`, for ids, tokens and jitter.
"""

from __future__ import annotations

from random import Random, SystemRandom

SYSTEM: Random = SystemRandom()
"""The operating system's source. Its numbers cannot be guessed, so they may be secrets."""


def new_id(random: Random, size: int = 16) -> str:
    """Return this number of random bytes, in hexadecimal digits."""
    return random.randbytes(size).hex()


__all__ = ["SYSTEM", "Random", "new_id"]
