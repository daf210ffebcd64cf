"""The command line: all commands, and those that serve an app, create one or check it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from sapwood.cli import agent_commands, backup_commands, deployment_check, render, spending_command
from sapwood.cli import doctor as doctors
from sapwood.cli import new as projects
from sapwood.cli.app_loader import EXTRA_OF, load, usual_target
from sapwood.cli.cluster import cluster
from sapwood.cli.docs_command import docs
from sapwood.cli.explain import explain
from sapwood.cli.mcp_command import mcp
from sapwood.cli.parameters import AsJson, DataOfApp, Host, Insecure, Level, Log, Port, Studio, Target, whole_number
from sapwood.cli.record_command import record
from sapwood.cli.serve_options import ServeOptions
from sapwood.cli.shell import interact
from sapwood.cli.terminal import error_line, say
from sapwood.cli.token_command import token
from sapwood.errors import SapwoodError, UsageError
from sapwood.settings import Settings

INTERRUPTED = 130

cli = App(
    name="sapwood",
    help="Durable AI agents that branch: create a project, serve it, inspect it.",
    version=lambda: version("sapwood"),
    result_action="return_value",
)


def run() -> None:
    """Run the command line and exit: 0 on success, 1 with an error message on failure."""
    try:
        code = cli()
    except SapwoodError as error:
        sys.exit(error_line(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has closed it
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


@cli.command
def serve(
    target: Target,
    /,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    data: DataOfApp = None,
    insecure: Insecure = False,
    studio: Studio = False,
    access_log: Annotated[bool, Parameter(help="Log every request and socket.")] = False,
    log: Log = "text",
    log_level: Level = "info",
    workers: Annotated[
        int | None,
        Parameter(
            converter=whole_number, help="Number of worker processes that share the agents, such as one per core."
        ),
    ] = None,
    pool: Annotated[
        list[str] | None,
        Parameter(negative="", help="Additional worker processes for a pool, as `name=count`. Repeatable."),
    ] = None,
    nats: Annotated[
        str | None, Parameter(help="The NATS servers of the cluster that this node joins, separated by commas.")
    ] = None,
    archive: Annotated[
        str | None, Parameter(help="The object storage of the cluster, as `s3://bucket/prefix`.")
    ] = None,
    cluster: Annotated[str | None, Parameter(help="The name of the cluster. Default: `sapwood`.")] = None,
    node: Annotated[str | None, Parameter(help="The name of this node, unique in the cluster.")] = None,
    grace: Annotated[float, Parameter(help="Seconds that requests have to finish after SIGTERM.")] = 10.0,
) -> None:
    """Serve an app until SIGTERM or Ctrl-C. Settings are read from `SAPWOOD_*` variables."""
    from sapwood.cli import server_process  # here, because no other command needs a server

    told = {"nats": nats, "archive": archive, "cluster": cluster, "node": node}
    server_process.serve(
        ServeOptions(
            target,
            host,
            port,
            insecure=insecure,
            data=data,
            studio=studio,
            access_log=access_log,
            log=log,
            log_level=log_level,
            grace=grace,
            workers=workers,
            pools=_pools(pool or ()),
            cluster={name: value for name, value in told.items() if value is not None},
        )
    )


def _pools(texts: Iterable[str]) -> dict[str, int]:
    pools: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal():
            raise UsageError(f"--pool must be name=count, such as --pool heavy=2, got {text!r}.")
        if name in pools:
            raise UsageError(f"--pool {name!r} is given twice. Pass each pool once.")
        pools[name] = int(number)
    return pools


@cli.command
def dev(
    target: Annotated[str | None, Parameter(help="As for `serve`. Default: app.py or main.py in this folder.")] = None,
    /,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    data: DataOfApp = None,
    insecure: Insecure = False,
    log: Log = "text",
    log_level: Level = "info",
    workers: Annotated[int | None, Parameter(show=False)] = None,
) -> None:
    """Serve an app for development: restart when a file changes, and log every request."""
    from sapwood.cli import server_process

    if workers is not None:
        raise UsageError("`sapwood dev` runs one process and takes no --workers. Use `sapwood serve … --workers N`.")
    where = target or usual_target(Path.cwd())
    options = ServeOptions(
        where,
        host,
        port,
        dev=True,
        insecure=insecure,
        data=data,
        access_log=True,
        log=log,
        log_level=log_level,
        grace=1.0,
    )
    server_process.develop(options, Path.cwd())


for command in (
    agent_commands.tree,
    agent_commands.top,
    agent_commands.state,
    agent_commands.methods,
    agent_commands.sql,
    agent_commands.call,
    agent_commands.dead_letters,
    agent_commands.questions,
    agent_commands.decisions,
    agent_commands.runs,
    spending_command.spending,
    explain,
    record,
    agent_commands.release,
    backup_commands.backup,
    backup_commands.restore,
    backup_commands.verify,
):
    cli.command(command)
cli.command(cluster)
cli.command(docs)
cli.command(mcp)
cli.command(token)
temporal = App(name="temporal", help="Run the turns of an app as Temporal workflows.")
cli.command(temporal)


@temporal.command
def worker(
    target: Target,
    /,
    *,
    url: Annotated[
        str | None,
        Parameter(env_var="SAPWOOD_URL", help="The URL of the server. Default: the URL in the data folder."),
    ] = None,
    data: DataOfApp = None,
    log: Log = "text",
    log_level: Level = "info",
) -> None:
    """Run a Temporal worker that executes the steps of an app's agents, until SIGTERM or Ctrl-C.

    Start any number of workers, on any machine. Workers are stateless, and use only the driver of the app.
    """
    from sapwood.cli import temporal_worker  # here, because no other command needs Temporal

    temporal_worker.work(target, url, data, log, log_level)


NEW = (
    "Create a project that runs at once, without an API key: agents, a page, tests and a container.\n\nTemplates:\n\n"
    + "\n".join(f"* `{name}`: {about.what}" for name, about in projects.TEMPLATES.items())
)


@cli.command(help=NEW)
def new(
    name: Annotated[Path, Parameter(help="The folder to create. Its last part is the name of the project.")],
    /,
    *,
    template: Annotated[projects.Template, Parameter(help="The template to start from.")] = "lobby",
) -> None:
    files = projects.make(name, template)
    about = projects.TEMPLATES[template]
    say(f"Created {name} with {', '.join(files)}.")
    if any(extra in about.extras.split(",") and find_spec(module) is None for module, extra in EXTRA_OF.items()):
        say(f"First: pip install 'sapwood[{about.extras}]'")
    say(f"Next:  cd {shlex.quote(str(name))} && sapwood dev")
    say(f"Then:  {about.first}")


@cli.command
def shell(target: Target, /, *, data: DataOfApp = None) -> None:
    """Start an interactive Python with the app running as `app`; `await` works at the prompt."""
    asyncio.run(interact(load(target, data)))


@cli.command
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


@cli.command
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
