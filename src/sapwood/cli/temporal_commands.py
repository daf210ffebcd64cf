"""`temporal`: run the turns of an app as Temporal workflows."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from sapwood.cli.parameters import DataOfApp, Level, Log, Target

temporal = App(name="temporal", help="Run the turns of an app as Temporal workflows.")


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
    from sapwood.cli import temporal_worker  # here, because the help is shown without Temporal too

    temporal_worker.work(target, url, data, log, log_level)
