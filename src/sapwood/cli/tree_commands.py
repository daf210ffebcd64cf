"""The commands that copy or delete an agent with all agents below it: as a new tree, to a file, back, and for good."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from sapwood.address import Address
from sapwood.admin.admin import Admin
from sapwood.cli import remote
from sapwood.cli.history_commands import AtOption, moment, tell_held
from sapwood.cli.parameters import Agent, Data, Yes
from sapwood.cli.quantities import counted
from sapwood.cli.terminal import confirm, say
from sapwood.errors import UsageError
from sapwood.kernel.actors.fork_origin import WorkRule

Work = Annotated[
    WorkRule, Parameter(help="What happens to unfinished work in the copy: hold it, drop it, or run it there too.")
]


def fork(
    address: Agent,
    name: Annotated[str, Parameter(help="The name of the new root.")],
    /,
    *,
    at: AtOption = None,
    work: Work = "hold",
    data: Data = "sapwood-data",
) -> None:
    """Copy an agent with all agents below it to a new root, as they are now or were `--at` a moment. They keep running.

    By default, unfinished work is held in the copy: `sapwood dead-letters` lists its calls, which can be replayed.
    """
    made = remote.answer_of(data, "fork", address=address, to=name, work=work, at=moment(at))
    _tell(made, work, "" if at is None else f" as it was at {made['at']}")


def move(
    address: Agent,
    to: Annotated[str, Parameter(help="The new name of the root, or the URL of another server.")],
    /,
    *,
    token_file: Annotated[
        Path | None,
        Parameter(
            help="For a URL: a file that contains a token of that server with the scope `admin`. `-` means stdin."
        ),
    ] = None,
    data: Data = "sapwood-data",
) -> None:
    """Give a root another name, or move it to another server. All agents below it and their work go with it.

    The old name leads to the new one, and the old server to the new one. Calls wait until it is done, and running
    calls are cancelled.
    """
    if "://" in to and token_file is None:
        raise UsageError(
            "A move to another server needs --token-file FILE: a token of that server with the scope `admin`. Make one "
            "there with `sapwood token`."
        )
    token = None if token_file is None else _token(token_file)
    asked = {"address": address, "to": to, "token": token}
    if "://" in to:
        remote.ask(data, "move", **asked)
        say(f"Moved {address} to {to}.")
    else:
        say(f"Moved {address} to {remote.answer_of(data, 'move', **asked)['address']}.")


def _token(file: Path) -> str:
    try:
        return (sys.stdin.read() if str(file) == "-" else file.read_text()).strip()
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}.") from None


def export(
    address: Agent,
    file: Annotated[Path, Parameter(help="The file to write. It must not exist.")],
    /,
    *,
    at: AtOption = None,
    data: Data = "sapwood-data",
) -> None:
    """Write an agent with all agents below it to a file, as they are now or were `--at` a moment. They keep running.

    The file has all that they have stored, and is not encrypted.
    """
    found = remote.answer_of(data, "export", address=address, file=str(file.resolve()), at=moment(at))
    say(f"Wrote {counted(found['agents'], 'agents')} to {file}.")


def import_(
    file: Annotated[
        Path, Parameter(help="A file that `sapwood export` has written. Import only files that you trust.")
    ],
    /,
    *,
    name: Annotated[str | None, Parameter(help="The name of the new root. Default: the one it had.")] = None,
    work: Work = "hold",
    data: Data = "sapwood-data",
) -> None:
    """Make a new root of an exported agent, after checks of the file.

    If no server runs on the data folder, it is created if it does not exist, and the file is not compared with the
    classes of the app.
    """
    if not file.is_file():
        raise UsageError(f"There is no file {str(file)!r}.")
    _tell(remote.answer_of(data, "import", file=str(file.resolve()), name=name, work=work), work)


def destroy(address: Agent, /, *, yes: Yes = False, data: Data = "sapwood-data") -> None:
    """Delete an agent and everything below it, such as a fork that is not needed any more.

    Forks, exports and backups of it stay. `sapwood erase` finds what else has its data, and prints a receipt.
    """
    subject = Address.parse(address)
    effect = _destroyed(data, subject, preview=True)["effect"]
    confirm(f"{effect} This cannot be undone. Continue?", "Nothing was deleted.", yes=yes)
    done = _destroyed(data, subject, name=subject.name)["done"]
    say(f"Deleted {counted(done, 'agents')}.")


def _destroyed(data: str, subject: Address, **more: Any) -> dict[str, Any]:
    async def here(operator: Admin) -> dict[str, Any]:
        if subject.parent is not None:
            raise UsageError("Without a server on the data folder, only roots can be deleted. Start one.")
        # In a task of its own: a tree is torn down once the task that destroys it has ended.
        return await asyncio.create_task(remote.answer_here("destroy", asked, operator))

    asked = {"address": str(subject), **more}
    return remote.ask_or_open(data, "destroy", here, **asked)


def _tell(found: dict[str, Any], work: WorkRule, then: str = "") -> None:
    say(f"Made {found['address']}, a copy of {found['source']}{then} with {counted(found['agents'], 'agents')}.")
    tell_held(found["held"], work)
