"""The tour of the studio is an animation that can be seen in a minute, and is small."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest
from scripts.animation import animation, chunks, durations

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs/how-to/pictures/studio-tour.webp"
DOT = b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")
"""A picture of one pixel."""


def test_an_animation_has_the_pictures_and_their_times() -> None:
    file = animation([(DOT, 700), (DOT, 70_000)], 1, 1)

    (_, dot), *_ = chunks(DOT)
    assert durations(file) == [700, 70_000]
    assert [name for name, _ in chunks(file)] == [b"VP8X", b"ANIM", b"ANMF", b"ANMF"]
    assert [list(chunks(b"RIFF\0\0\0\0WEBP" + data[16:])) for name, data in chunks(file) if name == b"ANMF"] == [
        [(b"VP8 ", dot)],
        [(b"VP8 ", dot)],
    ]
    assert int.from_bytes(file[4:8], "little") == len(file) - 8


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="no WebP"):
        animation([(b"\x89PNG", 1)], 1, 1)


def test_the_tour_is_short_and_small() -> None:
    file = TOUR.read_bytes()

    assert len(file) <= 2_000_000
    assert 20_000 <= sum(durations(file)) <= 60_000
    for page in ("README.md", "docs/how-to/studio.md"):
        assert TOUR.name in (ROOT / page).read_text()
