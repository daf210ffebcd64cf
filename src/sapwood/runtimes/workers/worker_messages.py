"""What a worker and its supervisor say to each other, over the line between them."""

from __future__ import annotations

READY, ALIVE, CLOSED, DRAINED, END = b"ready", b"alive", b"closed", b"drained", b"end"
PREPARED = b"prepared"
"""A worker has imported the app, and waits for the one that it takes over from."""
GO = b"go"
"""The old workers run nothing any more: a prepared one may start."""
UPGRADE = b"upgrade"
"""An operator wants the server to be replaced. With JSON behind it: what came of that."""
HAND_OVER = b"hand over"
"""A worker has to hand everything to its successor."""
HANDED_OVER = b"handed over"
"""It has: it runs nothing any more, and can serve again."""
RESUME = b"resume"
"""It has to serve again: the successor has ended."""
