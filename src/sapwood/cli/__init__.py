"""The command line: `sapwood`, or `python -m sapwood`."""

from __future__ import annotations

import sys

PACKAGES = {"cyclopts", "rich", "starlette", "uvicorn", "websockets"}


def main() -> None:
    """Run the command line and exit."""
    try:
        from sapwood.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        sys.exit(f"The command line needs {error.name}. Install it with: pip install 'sapwood[server]'")
    run()
