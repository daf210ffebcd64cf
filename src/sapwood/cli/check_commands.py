"""`doctor` and `upgrade-check`: whether a machine, a data folder and a new version are in order."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from sapwood.cli import deployment_check, render
from sapwood.cli import doctor as doctors
from sapwood.cli.app_loader import load
from sapwood.cli.parameters import AsJson
from sapwood.cli.terminal import say
from sapwood.settings import Settings


def upgrade_check(
    target: Annotated[str, Parameter(help="The app, as for `serve`, with the new code.")],
    /,
    *,
    as_json: AsJson = False,
    data: Annotated[
        str | None, Parameter(env_var="SAPWOOD_DATA", help="The data folder or a backup. Default: the app's own.")
    ] = None,
) -> int:
    """Check before an upgrade that a new version of an app, and of sapwood, can read all stored data.

    Every problem comes with a remedy. Changes nothing.
    """
    console = Console(soft_wrap=True, highlight=False)
    app = load(target, data).app
    counts: Counter[str] = Counter()
    with Console(stderr=True).status(render.CheckProgress(counts)):
        report = deployment_check.examine(Path(app.settings.data), app, counts)
    if as_json:
        say(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        for line in render.report(report, target):
            console.print(line)
    return 0 if report.fits else 1


def doctor(
    *,
    as_json: AsJson = False,
    data: Annotated[str | None, Parameter(env_var="SAPWOOD_DATA", help="The data folder or a backup.")] = None,
) -> int:
    """Check this machine and the data folder.

    Every warning comes with a remedy. Changes nothing.
    """
    console = Console(soft_wrap=True, highlight=False)
    found = list(doctors.examine(Path(data or Settings().data)))
    if as_json:
        say(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
    else:
        for one in found:
            console.print(render.finding(one))
    return 1 if any(one.fatal for one in found) else 0
