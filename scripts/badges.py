"""Write the badges of the README from pyproject.toml: `python scripts/badges.py`. They depend on no host."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/pictures"
SPACE = 6
"""Pixels beside a text."""
NARROW = " .,|il"
"""Letters of 4 pixels. The others have about 7; `textLength` makes every font as wide as this says."""


def facts() -> dict[str, tuple[str, str]]:
    """Return the label and the value of each badge."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classifiers = "\n".join(project["classifiers"])
    status = re.findall(r"^Development Status :: \d - (.+)$", classifiers, re.MULTILINE)
    pythons = re.findall(r"^Programming Language :: Python :: (\d\.\d+)$", classifiers, re.MULTILINE)
    return {
        "license": ("License", project["license"]),
        "python": ("Python", " | ".join(pythons)),
        "status": ("Status", status[0].lower()),
    }


def badge(label: str, value: str) -> str:
    """Return a badge as SVG."""
    widths = [sum(4 if letter in NARROW else 7 for letter in text) for text in (label, value)]
    left, right = (width + 2 * SPACE for width in widths)
    texts = "".join(
        f'    <text x="{x}" y="14" textLength="{width}">{text}</text>\n'
        for x, width, text in zip((SPACE, left + SPACE), widths, (label, value), strict=True)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{label}: {value}">
  <clipPath id="round"><rect width="{left + right}" height="20" rx="4"/></clipPath>
  <g clip-path="url(#round)">
    <rect width="{left}" height="20" fill="#4b5563"/>
    <rect x="{left}" width="{right}" height="20" fill="#277b54"/>
  </g>
  <g fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11">
{texts}  </g>
</svg>
"""


def main() -> None:
    for name, (label, value) in facts().items():
        (FOLDER / f"badge-{name}.svg").write_text(badge(label, value))


if __name__ == "__main__":
    main()
