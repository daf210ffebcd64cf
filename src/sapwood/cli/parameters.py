"""Parameters that several commands have, with their help texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import Parameter, Token

from sapwood.cli.serve_options import LogFormat

Target = Annotated[str, Parameter(help="The app, as `module:name` or `file.py:name`. The name defaults to `app`.")]
Agent = Annotated[str, Parameter(help="The address of an agent, as `Type:name/Type:name`, root first.")]
Data = Annotated[str, Parameter(env_var="SAPWOOD_DATA", help="The data folder of the server.")]
DataOfApp = Annotated[str | None, Parameter(help="The data folder. Overrides SAPWOOD_DATA and the app's settings.")]
Host = Annotated[str, Parameter(env_var="SAPWOOD_HOST", help="The address to listen on.")]
Port = Annotated[int, Parameter(env_var="SAPWOOD_PORT", help="The port to listen on. 0 picks a free port.")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]
Yes = Annotated[bool, Parameter(negative="", help="Do not ask.")]
Insecure = Annotated[bool, Parameter(negative="", help="Allow a public address without `authenticate`.")]
Studio = Annotated[bool, Parameter(env_var="SAPWOOD_STUDIO", negative="", help="Serve the studio at `/studio/`.")]
Log = Annotated[
    LogFormat, Parameter(env_var="SAPWOOD_LOG", help="Format of the log: one JSON object per line, or text.")
]
Level = Annotated[Literal["debug", "info", "warning", "error"], Parameter(help="Minimum level to log.")]


def whole_number(kind: object, tokens: Sequence[Token]) -> int:
    """Read a number that cannot be rounded: half a process is a mistake."""
    text = tokens[0].value
    if not text.removeprefix("-").isdecimal():
        raise ValueError(f"Expected a whole number, got {text!r}.")
    return int(text)
