"""How long a node waits, and how much it handles at once: plain values, handed in once.

These are internal. What users may change is in `Settings`; what is here is right for everybody, and only tests have
a reason to hand in something else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The timeouts, intervals and batch sizes that tests change."""

    checkpoint_frames: int = 1000
    """Frames to which the WAL of a database may grow before it is copied into the file: a checkpoint then costs well
    under 2 ms."""

    chunk_flush_delay: float = 0.03
    """Seconds for which the chunks of an answer are collected before they are stored and sent."""
    turn_end_delay: float = 0.03
    """Seconds between the last chunk and the end of a turn. Sooner, clients keep a continuation as a message of its
    own, and lose the last words before an error."""

    run_cancel_timeout: float = 5.0
    """Seconds that a sub-agent has to end a cancelled run by itself; then it is aborted."""
    run_cleanup_batch: int = 50
    """Finished runs that are read at once to be deleted, before other work has a turn."""
    event_queue: int = 4096
    """Events that may wait for a subscriber; a slower one reads those it missed from where they are stored."""
    event_cursor_chars: int = 1024
    """Characters of a cursor that each event may carry; a longer cursor is not in every event."""
    event_keepalive_interval: float = 15.0
    """Seconds of silence after which an event stream over HTTP sends a sign of life."""


DEFAULTS = Timings()
