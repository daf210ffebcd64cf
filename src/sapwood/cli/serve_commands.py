"""`serve` and `dev`: run the server of an app."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sapwood.cli import server_process
from sapwood.cli.app_loader import usual_target
from sapwood.cli.parameters import DataOfApp, Host, Insecure, Level, Log, Port, Studio, Target, whole_number
from sapwood.cli.serve_options import ServeOptions
from sapwood.errors import UsageError


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
