"""Draws the memory and the descriptors of a server under a steady load, from the samples of `tests.blackbox.steady`.

    python -m tests.blackbox.steady --minutes 40 --folder calls
    python -m tests.blackbox.steady --minutes 40 --runs --folder runs
    python benchmarks/steady.py calls/samples.jsonl runs/samples.jsonl

It writes one sample per minute to `benchmarks/steady.jsonl`, and the picture to the documentation. Without arguments,
it draws the picture again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MEASURED = HERE / "steady.jsonl"
PICTURE = HERE.parent / "docs/explanation/pictures/steady.svg"
NAMES = ("calls", "calls, runs and fibers")
COLORS = ("#4d7a47", "#b98a3c")
WIDTH, LEFT, TOP, HEIGHT, GAP = 680, 60, 40, 150, 50
RIGHT = WIDTH - 20
PANELS = (("resident", "memory in MB", 1024), ("descriptors", "open files and sockets", 1))
STYLE = ".back{fill:#fbfaf7;stroke:#d9d5cb}.grid{stroke:#d9d5cb}text{font:13px sans-serif;fill:#3d3a33}"

Sample = dict[str, Any]


def thin_out(file: Path, name: str) -> list[Sample]:
    """Return the first sample of each minute."""
    chosen: dict[int, Sample] = {}
    for line in file.read_text().splitlines():
        sample = json.loads(line)
        chosen.setdefault(int(sample["seconds"] // 60), {"load": name, **sample})
    return list(chosen.values())


def picture(samples: Sequence[Sample]) -> str:
    """Return the plot: a panel for each measure, a line for each load."""
    height = TOP + len(PANELS) * (HEIGHT + GAP)
    minutes = max(sample["seconds"] for sample in samples) / 60
    title = "Memory and open files of a server under a steady load, by time"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">',
        f'<title id="title">{title}</title><style>{STYLE}</style>',
        f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
    ]
    for number, (name, color) in enumerate(zip(NAMES, COLORS, strict=True)):
        parts.append(f'<rect x="{LEFT + number * 120}" y="14" width="14" height="4" fill="{color}"/>')
        parts.append(f'<text x="{LEFT + number * 120 + 20}" y="20">{name}</text>')
    for number, (measure, label, unit) in enumerate(PANELS):
        parts += _panel(samples, measure, label, unit, TOP + number * (HEIGHT + GAP), minutes)
    return "\n".join([*parts, "</svg>", ""])


def _panel(samples: Sequence[Sample], measure: str, label: str, unit: int, top: int, minutes: float) -> list[str]:
    most = max(sample[measure] for sample in samples) / unit * 1.15
    bottom = top + HEIGHT
    parts = [f'<text x="{LEFT}" y="{top + 12}">{label}</text>']
    for part in range(3):
        y, value = bottom - part * HEIGHT / 2.5, most * part / 2.5
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.0f}" y2="{y:.0f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{value:.0f}</text>')
    for minute in range(0, int(minutes) + 1, 10):
        x = LEFT + (RIGHT - LEFT) * minute / minutes
        parts.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle">{minute} min</text>')
    for name, color in zip(NAMES, COLORS, strict=True):
        places = [(one["seconds"] / 60 / minutes, one[measure] / unit / most) for one in samples if one["load"] == name]
        points = " ".join(f"{LEFT + (RIGHT - LEFT) * x:.1f},{bottom - HEIGHT * y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
    return parts


def main() -> None:
    if files := sys.argv[1:]:
        thinned = [sample for name, file in zip(NAMES, files, strict=True) for sample in thin_out(Path(file), name)]
        MEASURED.write_text("".join(f"{json.dumps(sample)}\n" for sample in thinned))
    PICTURE.write_text(picture([json.loads(line) for line in MEASURED.read_text().splitlines()]))


if __name__ == "__main__":
    main()
