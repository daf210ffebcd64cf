"""`sapwood token`: a token for an operator or a program, with a part of the rights."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sapwood.address import Address
from sapwood.admin.access import Access
from sapwood.admin.tokens import TokenKey, checked
from sapwood.cli.parameters import Data
from sapwood.cli.terminal import say
from sapwood.errors import UsageError

UNITS = {"m": 60, "h": 3600, "d": 86400}
LONGEST = 366 * 86400


def token(
    *,
    name: Annotated[str | None, Parameter(help="The name in the audit log.")] = None,
    may: Annotated[str, Parameter(help="The scopes, separated by commas.")] = "look",
    valid: Annotated[str, Parameter(name="--for", help="How long it is valid, such as 30m, 8h or 7d.")] = "8h",
    under: Annotated[str | None, Parameter(help="Limit it to this agent and those under it.")] = None,
    rotate: Annotated[bool, Parameter(negative="", help="Revoke all tokens that were created before.")] = False,
    data: Data = "sapwood-data",
) -> None:
    """Print a token for the admin API, with some of the rights and for some time.

    It is valid on servers of this data folder, and needs no restart.
    """
    if not Path(data).is_dir():
        raise UsageError(f"There is no data folder {data!r}. Pass the one of the server with --data.")
    key = TokenKey(Path(data))
    if rotate:
        key.rotate()
        if name is None:
            say("All tokens were revoked.")
            return
    if name is None:
        raise UsageError("A token needs a name for the audit log: sapwood token --name ann")
    scopes = checked(name, [one.strip() for one in may.split(",") if one.strip()])
    below = None if under is None else Address.parse(under)
    say(key.sign(Access(name, scopes, below, time.time() + _seconds(valid))))


def _seconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    seconds = 0 if found is None else int(found[1]) * UNITS[found[2]]
    if not 0 < seconds <= LONGEST:
        raise UsageError(f"--for must be a time such as 30m, 8h or 7d, at most a year, got {text!r}.")
    return seconds
