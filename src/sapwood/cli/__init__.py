"""The command line: `sapwood`, or `python -m sapwood`."""

from __future__ import annotations

import sys

PACKAGES = {"cyclopts", "rich", "starlette", "uvicorn", "websockets"}


def main() -> None:
    """Run the command line and exit."""
    try:
        from sapwood.cli.commands import run

        run()
    except ImportError as error:
        missing = error.name or getattr(error.__cause__, "name", None)  # a command is imported when it is called
        if missing not in PACKAGES:
            raise
        sys.exit(f"The command line needs {missing}. Install it with: pip install 'sapwood[server]'")
