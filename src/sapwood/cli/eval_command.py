"""`sapwood eval`: datasets of `pydantic_evals` against agents, with JUnit XML for CI."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators
from rich.console import Console
from rich.table import Table

from sapwood.chat.models.model_check import ModelUnusable
from sapwood.chat.models.named_models import model_of, names_of
from sapwood.cli.app_loader import import_file
from sapwood.cli.parameters import DataOfApp, whole_number
from sapwood.cli.terminal import Text, say
from sapwood.errors import UsageError
from sapwood.evals.junit import junit, problems_of
from sapwood.evals.turn_task import INSTALL, TurnTask, destroy_leftovers, model_of_class

TERMINATED = 128 + signal.SIGTERM
"""The exit code after SIGTERM."""
UNCUT = 10_000
"""Columns of a table in a file: nothing is cut."""

if TYPE_CHECKING:
    from pydantic_evals import Dataset
    from pydantic_evals.reporting import EvaluationReport


def eval_(
    file: Annotated[Path, Parameter(help="A Python file with a task, made by `turn_task`, and datasets.")],
    /,
    *,
    model: Annotated[
        Sequence[str],
        Parameter(
            negative="",
            show_default=False,
            help="A model for the class of the task. Repeatable: the datasets run once with each.",
        ),
    ] = (),
    concurrency: Annotated[
        int, Parameter(converter=whole_number, validator=validators.Number(gte=1), help="Cases at a time.")
    ] = 4,
    report: Annotated[Path | None, Parameter(name="--junit", help="Write a report as JUnit XML.")] = None,
    data: DataOfApp = None,
) -> int:
    """Run the datasets of a file against agents, each case in a tree of its own.

    The exit code is 1 if an assertion is false, or a case or an evaluator fails. Scores and labels are only shown.
    """
    task, datasets = _read(file)
    if report is not None and not report.parent.is_dir():  # before the models are asked
        raise UsageError(f"{str(report)!r} cannot be written: there is no folder {str(report.parent)!r}.")
    reports: list[EvaluationReport[Any, Any, Any]] = []
    with tempfile.TemporaryDirectory(prefix="sapwood-eval-") as folder:
        if task.name is None:
            task.app.configure(data=folder)  # its trees are made for the cases
        elif data is not None:
            task.app.configure(data=data)
        try:
            for name in model or (None,):
                reports += asyncio.run(_run(task, datasets, name, concurrency))
        except asyncio.CancelledError:
            return TERMINATED
    console = Console(width=None if sys.stdout.isatty() else UNCUT)
    for one in reports:
        one.print(console=console, include_averages=False)
    console.print(_summary(reports))
    problems = [(each.name, one) for each in reports for one in problems_of(each)]
    for name, one in problems:
        say(f"{name}, {one.case}: {one.text}", file=sys.stderr)
    if report is not None:
        _write(report, reports)
    return int(bool(problems))


def _summary(reports: Sequence[EvaluationReport[Any, Any, Any]]) -> Table:
    """Return the averages of all reports side by side."""
    averages = [(one, one.averages()) for one in reports]
    scores = dict.fromkeys(name for _, found in averages if found is not None for name in found.scores)
    metrics = dict.fromkeys(name for _, found in averages if found is not None for name in found.metrics)
    table = Table("averages", "passed", "assertions", *scores, *metrics, "time")
    for one, found in averages:
        cases = len(one.cases) + len(one.failures)
        failed = {problem.case for problem in problems_of(one)}
        passed = f"{'✗' if failed else '✔'} {max(cases - len(failed), 0)} of {cases}"
        row = [one.name, passed]
        if found is not None:
            row.append("" if found.assertions is None else f"{found.assertions:.1%}")
            numbers = [*(found.scores.get(name) for name in scores), *(found.metrics.get(name) for name in metrics)]
            row += ["" if number is None else f"{number:.{6 if number >= 100 else 3}g}" for number in numbers]
            row.append(f"{found.total_duration:.1f} s")
        table.add_row(*map(Text, row))
    return table


def _read(file: Path) -> tuple[TurnTask, list[Dataset[Any, Any, Any]]]:
    """Return the task and the datasets of a file."""
    try:
        from pydantic_evals import Dataset
    except ImportError as error:
        raise UsageError(f"`sapwood eval` needs pydantic_evals. {INSTALL}") from error
    names: dict[str, Any] = vars(import_file(str(file)))
    tasks = {id(one): one for one in names.values() if isinstance(one, TurnTask)}
    kind: type[Any] = Dataset
    datasets = {id(one): one for one in names.values() if isinstance(one, kind)}
    if len(tasks) != 1 or not datasets:
        raise UsageError(
            f"{str(file)!r} must define one task and at least one Dataset, but it defines {len(tasks)} tasks and "
            f"{len(datasets)} datasets. Write task = turn_task(app, Desk) and dataset = Dataset(…)."
        )
    if empty := [one.name for one in datasets.values() if not one.cases]:
        raise UsageError(f"The dataset {empty[0]!r} of {str(file)!r} has no cases, so it would pass. Add a Case.")
    return next(iter(tasks.values())), list(datasets.values())


async def _run(
    task: TurnTask, datasets: Sequence[Dataset[Any, Any, Any]], name: str | None, concurrency: int
) -> list[EvaluationReport[Any, Any, Any]]:
    """Run datasets with one model."""
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with ExitStack() as stack:
        if name is not None:
            try:
                stack.enter_context(model_of_class(task.cls, model_of(task.app.models.get(name, name))))
            except ModelUnusable as error:
                names = names_of(task.app.models)
                raise UsageError(f"The model {name!r} cannot be used: {str(error).rstrip('.')}. {names}") from None
        async with task.app as app:
            if task.name is not None:
                app.node.alarms.stop()  # the trees of the folder must not begin to work here
                await destroy_leftovers(task)  # of a process that was killed
            try:
                return [
                    await dataset.evaluate(
                        task,
                        name=dataset.name if name is None else f"{dataset.name} ({name})",
                        task_name=task.__name__,
                        max_concurrency=concurrency,
                        progress=False,
                    )
                    for dataset in datasets
                ]
            finally:
                if task.name is not None:
                    await destroy_leftovers(task)  # the cases that were interrupted


def _write(file: Path, reports: Sequence[EvaluationReport[Any, Any, Any]]) -> None:
    try:
        file.write_bytes(junit(reports))
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be written: {error.strerror}.") from None
