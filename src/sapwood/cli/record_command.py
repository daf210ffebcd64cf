"""`sapwood record`: a turn of a chat agent as a pytest file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sapwood.cli import remote
from sapwood.cli.parameters import Agent, Data
from sapwood.cli.terminal import say
from sapwood.errors import UsageError

PYTEST_INI = "Its pytest.ini needs `anyio_mode = auto` and `pythonpath = .` under [pytest]."


def record(
    address: Agent,
    turn: Annotated[str, Parameter(help="The id of a turn that has ended.")],
    /,
    *,
    run_tools: Annotated[
        bool, Parameter(negative="", help="Run the tools of the agents in the test, and compare what they return.")
    ] = False,
    out: Annotated[
        Path | None, Parameter(help="The file to write. In an existing folder, the file gets a name of its own.")
    ] = None,
    data: Data = "sapwood-data",
) -> None:
    """Print a turn of a chat agent as a pytest file, with scripted models and recorded tools. Wakes no agent.

    Sub-agents that the model used as tools run in the test, each with a script of its own.
    The ids of turns are listed by `sapwood explain ADDRESS`.
    """
    found = remote.answer_of(data, "record", address=address, turn=turn, run_tools=run_tools)
    if out is None:
        say(found["text"].removesuffix("\n"))
        return
    path = out / found["file"] if out.is_dir() else out
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(found["text"])
    except FileExistsError:
        raise UsageError(f"{str(path)!r} exists already. Choose another name.") from None
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}.") from None
    say(f"Wrote {path}. Run pytest in the folder of the app. {PYTEST_INI}", file=sys.stderr)
