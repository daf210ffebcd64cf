"""The commands, their parameters and their help texts."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter, Token
from rich.console import Console, RenderableType

from sapwood.address import Address
from sapwood.cli import doctor as doctors
from sapwood.cli import fitting, remote, showing
from sapwood.cli import new as projects
from sapwood.cli.cluster import cluster
from sapwood.cli.loading import EXTRA_OF, load, usual_target
from sapwood.cli.shell import interact
from sapwood.cli.terminal import Text, error_line, say
from sapwood.cli.top import Top
from sapwood.cli.words import counted
from sapwood.errors import ForbiddenSql, Refused, SapwoodError, Unavailable, UsageError
from sapwood.runs.decisions import Decision, broken_at
from sapwood.settings import Settings
from sapwood.web.operator import Operator

INTERRUPTED = 130
BETWEEN_LOOKS = 0.5

cli = App(
    name="sapwood",
    help="Durable AI agents that branch: create a project, serve it, inspect it.",
    version=lambda: version("sapwood"),
    result_action="return_value",
)

Target = Annotated[str, Parameter(help="The app, as `module:name` or `file.py:name`. The name defaults to `app`.")]
Agent = Annotated[str, Parameter(help="The address of an agent, as `Type:name/Type:name`, root first.")]
Data = Annotated[str, Parameter(env_var="SAPWOOD_DATA", help="The data folder of the server.")]
DataOfApp = Annotated[str | None, Parameter(help="The data folder. Overrides SAPWOOD_DATA and the app's settings.")]
Host = Annotated[str, Parameter(env_var="SAPWOOD_HOST", help="The address to listen on.")]
Port = Annotated[int, Parameter(env_var="SAPWOOD_PORT", help="The port to listen on. 0 picks a free port.")]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]
Insecure = Annotated[bool, Parameter(negative="", help="Allow a public address without `authenticate`.")]
Level = Annotated[Literal["debug", "info", "warning", "error"], Parameter(help="Minimum level to log.")]


def run() -> None:
    """Run the command line and exit: 0 on success, 1 with an error message on failure."""
    try:
        code = cli()
    except SapwoodError as error:
        sys.exit(error_line(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read us has enough
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _whole(kind: object, tokens: Sequence[Token]) -> int:
    """Read a number that cannot be rounded: half a process is a mistake."""
    text = tokens[0].value
    if not text.removeprefix("-").isdecimal():
        raise ValueError(f"Expected a whole number, got {text!r}.")
    return int(text)


@cli.command
def serve(
    target: Target,
    /,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    data: DataOfApp = None,
    insecure: Insecure = False,
    access_log: Annotated[bool, Parameter(help="Log every request and socket.")] = False,
    log_level: Level = "info",
    workers: Annotated[
        int | None,
        Parameter(converter=_whole, help="Number of worker processes that share the agents, such as one per core."),
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
    from sapwood.cli import serving  # here, because no other command needs a server

    told = {"nats": nats, "archive": archive, "cluster": cluster, "node": node}
    serving.serve(
        serving.Options(
            target,
            host,
            port,
            insecure=insecure,
            data=data,
            access_log=access_log,
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
    log_level: Level = "info",
    workers: Annotated[int | None, Parameter(show=False)] = None,
) -> None:
    """Serve an app for development: restart when a file changes, and log every request."""
    from sapwood.cli import serving

    if workers is not None:
        raise UsageError("`sapwood dev` runs one process and takes no --workers. Use `sapwood serve … --workers N`.")
    where = target or usual_target(Path.cwd())
    options = serving.Options(
        where, host, port, dev=True, insecure=insecure, data=data, access_log=True, log_level=log_level, grace=1.0
    )
    serving.develop(options, Path.cwd())


cli.command(cluster)
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
    log_level: Level = "info",
) -> None:
    """Run a Temporal worker that executes the steps of an app's agents, until SIGTERM or Ctrl-C.

    Start any number of workers, on any machine. Workers are stateless, and use only the driver of the app.
    """
    from sapwood.cli import working  # here, because no other command needs Temporal

    working.work(target, url, data, log_level)


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
def tree(
    address: Annotated[str | None, Parameter(help="Show only this agent and the agents under it.")] = None,
    /,
    *,
    once: Annotated[bool, Parameter(negative="", help="Show it once and exit.")] = False,
    every: Annotated[float, Parameter(help="Seconds between two updates.")] = 1.0,
    agents: Annotated[int, Parameter(help="Maximum number of agents to show.")] = 500,
    children: Annotated[int, Parameter(help="Maximum number of children to show per agent.")] = 50,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show the agents: which are awake, what they do, and how large they are. Wakes no agent."""

    async def here(operator: Operator) -> dict[str, Any]:
        return await operator.tree(address, agents=agents, children=children)

    def look() -> dict[str, Any]:
        return remote.ask_or_open(data, "tree", here, address=address, agents=agents, children=children)

    console = Console()
    if as_json:
        say(json.dumps(look(), indent=2))
    elif once or not console.is_terminal:
        console.print(showing.picture(look()))
    else:
        showing.watch(console, lambda: showing.picture(look()), max(every, 0.1))


@cli.command
def top(
    *,
    once: Annotated[bool, Parameter(negative="", help="Show it once and exit.")] = False,
    every: Annotated[float, Parameter(help="Seconds between two updates.")] = 1.0,
    trees: Annotated[int, Parameter(help="Maximum number of trees to show.")] = 20,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show the load of a running server: processes, queues, the busiest trees, and agents that block the event loop."""

    def look() -> dict[str, Any]:
        return remote.ask_soon(data, "top", trees=trees)

    def look_again() -> RenderableType:
        try:
            return show(look())
        except (Refused, Unavailable) as error:  # it may come back, as it does when it is started anew
            return Text(f"{error} Retrying.", "bold red")

    console = Console()
    show = Top(trees, console.width)
    seen = look()
    if as_json:
        say(json.dumps(seen, indent=2))
        return
    show(seen)
    time.sleep(BETWEEN_LOOKS)  # how busy it is takes two looks to see
    if once or not console.is_terminal:
        console.print(show(look()))
    else:
        showing.watch(console, look_again, max(every, 0.1))


@cli.command
def state(address: Agent, /, *, data: Data = "sapwood-data") -> None:
    """Print the state of an agent as JSON. Wakes no agent."""

    async def here(operator: Operator) -> dict[str, Any]:
        return {"state": await operator.state(address)}

    answer = remote.ask_or_open(data, "state", here, address=address)
    say(json.dumps(answer["state"], indent=2, ensure_ascii=False))


@cli.command
def methods(address: Agent, /, *, as_json: AsJson = False, data: Data = "sapwood-data") -> None:
    """Show the methods that an agent exposes to clients: parameters, results and docstrings. Wakes no agent."""
    answer = remote.ask(data, "methods", address=address)
    if as_json:
        say(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in showing.methods(answer):
        console.print(line)
    if not answer["methods"]:
        say(f"{address} exposes no methods.")


@cli.command
def sql(
    address: Agent,
    statement: Annotated[str, Parameter(help="One SQL statement.")],
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, help="Values for the `?` placeholders, as JSON.")],
    write: Annotated[bool, Parameter(negative="", help="Allow writes. Wakes the agent.")] = False,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Run SQL on the database of an agent. Read-only unless --write is given."""
    given = [_value(text) for text in arguments]

    async def here(operator: Operator) -> dict[str, Any]:
        return await operator.sql(address, statement, given)

    asked = {"address": address, "sql": statement, "arguments": given, "write": write}
    try:
        answer = remote.ask(data, "sql", **asked) if write else remote.ask_or_open(data, "sql", here, **asked)
    except ForbiddenSql as error:
        if write:
            raise
        raise Refused(f"{str(error).rstrip(' ;')}. To change data, add --write.") from None
    if as_json:
        say(json.dumps([dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]], ensure_ascii=False))
    elif answer["columns"]:
        Console().print(showing.rows(answer))
    if answer["more"]:
        say(f"Only the first {len(answer['rows'])} rows are shown.", file=sys.stderr)


@cli.command
def call(
    address: Agent,
    method: Annotated[str, Parameter(help="A public method of the agent.")],
    /,
    *arguments: Annotated[
        str,
        Parameter(
            allow_leading_hyphen=True, help="Arguments as JSON; anything that is not valid JSON is passed as a string."
        ),
    ],
    data: Data = "sapwood-data",
) -> None:
    """Call a method of an agent and print the result as JSON. A stream prints one item per line."""
    for result in remote.ask_lines(
        data, "call", address=address, method=method, arguments=[_value(text) for text in arguments]
    ):
        say(json.dumps(result, ensure_ascii=False), flush=True)


@cli.command(name="dead-letters")
def dead_letters(
    address: Annotated[str | None, Parameter(help="Show only the dead letters of this agent.")] = None,
    /,
    *,
    under: Annotated[bool, Parameter(negative="", help="Include the agents under it.")] = False,
    replay: Annotated[str | None, Parameter(help="Call a dead letter again, by its id, or `all`.")] = None,
    delete: Annotated[str | None, Parameter(help="Delete a dead letter, by its id, or `all`.")] = None,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show dead letters: scheduled and queued calls whose retries failed. Wakes no agent unless you change them."""
    if address is None and (under or replay is not None or delete is not None):
        raise UsageError(
            "--under, --replay and --delete need the address of an agent: sapwood dead-letters Type:name …"
        )
    if replay is not None and delete is not None:
        raise UsageError(
            "--replay and --delete exclude each other: a replayed dead letter is deleted. Pass one of them."
        )
    if replay is not None or delete is not None:
        asked = {"address": address, "below": under, "replay": replay, "delete": delete}
        done = remote.ask(data, "dead-letters", **asked)["done"]
        say(json.dumps({"done": done}) if as_json else _acted(done, replayed=replay is not None))
        return

    async def here(operator: Operator) -> dict[str, Any]:
        return await operator.dead_letters(address, below=under)

    answer = remote.ask_or_open(data, "dead-letters", here, address=address, below=under)
    if as_json:
        say(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in showing.letters(answer):
        console.print(line)
    if answer["more"]:
        say(f"Only the first {len(answer['letters'])} are shown.", file=sys.stderr)
    for worker in answer.get("unanswered", ()):
        called = str(answer.get("called", "worker")).capitalize()
        say(f"{called} {worker} does not answer: the dead letters of its trees are missing.", file=sys.stderr)
    if not answer["letters"]:
        say("There are no dead letters" + ("." if address is None else f" of {address}{_or_below(under)}."))
    elif console.is_terminal:
        console.print("\nReplay one with: sapwood dead-letters AGENT --replay ID", style="dim")


@cli.command
def decisions(address: Agent, /, *, as_json: AsJson = False, data: Data = "sapwood-data") -> None:
    """Print the approvals and denials of tool calls of an agent and all agents under it, and verify the audit log.

    Exits with 1 if an entry does not follow from the one before it. Wakes no agent.
    """

    async def here(operator: Operator) -> dict[str, Any]:
        return await operator.decisions(address)

    answer = remote.ask_or_open(data, "decisions", here, address=address)
    chains = [(one["address"], [Decision(**row) for row in one["decisions"]]) for one in answer["agents"]]
    broken = {owner: number for owner, rows in chains if (number := broken_at(rows)) is not None}
    if as_json:
        told = [{"address": owner, "decisions": [row.told() for row in rows]} for owner, rows in chains]
        say(json.dumps({"agents": told, "broken": broken}, indent=2, ensure_ascii=False))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for owner, rows in chains:
            for line in showing.decisions(owner, rows):
                console.print(line)
        if not any(rows for _, rows in chains):
            say(f"{address} and the agents under it have no decisions.")
        elif not broken:
            count = sum(len(rows) for _, rows in chains)
            say(f"Verified {counted(count, 'entries')} of {counted(len(chains), 'agents')}: none was changed.")
    if answer["more"]:
        say("Not all decisions are shown. Pass the address of an agent further down.", file=sys.stderr)
    for owner, number in broken.items():
        say(f"Decision {number} of {owner} was changed, or one before it was removed.", file=sys.stderr)
    if broken:
        sys.exit(1)


@cli.command
def runs(
    address: Agent,
    /,
    *,
    status: Annotated[str | None, Parameter(help="Show only the runs with this status.")] = None,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show the stored runs that an agent has started: status, size, and whether each is pinned."""

    async def here(operator: Operator) -> dict[str, Any]:
        return await operator.runs(address, status)

    answer = remote.ask_or_open(data, "runs", here, address=address, status=status)
    if as_json:
        say(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    if answer["runs"]:
        Console().print(showing.runs(answer))
    held = sum(run["bytes"] for run in answer["runs"])
    say(f"{counted(len(answer['runs']), 'runs')}, {showing.size(held)}")
    if answer["more"]:
        say(f"Only the first {len(answer['runs'])} are shown.", file=sys.stderr)


@cli.command
def release(address: Agent, /, *, data: Data = "sapwood-data") -> None:
    """Release a tree from quarantine, where it is after it blocked its process too often. Resets its strikes."""

    async def here(operator: Operator) -> dict[str, Any]:
        operator.release(address)
        return {}

    remote.ask_or_open(data, "release", here, address=address)
    say(f"Released {Address.parse(address).root}: it starts at its next call.")


@cli.command
def backup(
    folder: Annotated[Path, Parameter(help="The destination: a new folder.")],
    address: Annotated[str | None, Parameter(help="Copy only the tree of this root.")] = None,
    /,
    *,
    data: Data = "sapwood-data",
) -> None:
    """Copy all data while the server keeps running. The copy is itself a data folder."""
    where = str(folder.resolve())

    async def here(operator: Operator) -> dict[str, Any]:
        return {"trees": await operator.backup(where, address)}

    answer = remote.ask_or_open(data, "backup", here, folder=where, address=address)
    say(f"Copied {counted(answer['trees'], 'trees')} to {folder}.")


@cli.command
def restore(
    folder: Annotated[Path, Parameter(help="A backup.")],
    address: Annotated[str | None, Parameter(help="Restore only the tree of this root.")] = None,
    /,
    *,
    data: Data = "sapwood-data",
) -> None:
    """Restore a backup over the current data. Trees that are not in the backup stay unchanged."""
    where = str(folder.resolve())

    async def here(operator: Operator) -> dict[str, Any]:
        return {"trees": await operator.restore(where, address)}

    answer = remote.ask_or_open(data, "restore", here, folder=where, address=address)
    say(f"Restored {counted(answer['trees'], 'trees')} from {folder}.")


@cli.command
def shell(target: Target, /, *, data: DataOfApp = None) -> None:
    """Start an interactive Python with the app running as `app`; `await` works at the prompt."""
    asyncio.run(interact(load(target, data)))


@cli.command
def doctor(
    target: Annotated[str | None, Parameter(help="An app, as for `serve`, to check the stored data against.")] = None,
    /,
    *,
    as_json: AsJson = False,
    data: Annotated[
        str | None, Parameter(env_var="SAPWOOD_DATA", help="The data folder or a backup. Default: the app's own.")
    ] = None,
) -> int:
    """Check this machine; or, with an app, check that the stored data fits the app.

    Every warning comes with a remedy. Changes nothing.
    """
    console = Console(soft_wrap=True, highlight=False)
    if target is not None:
        app = load(target, data).app
        counts: Counter[str] = Counter()
        with Console(stderr=True).status(showing.Progress(counts)):
            report = fitting.examine(Path(app.settings.data), app, counts)
        if as_json:
            say(json.dumps(asdict(report), indent=2, ensure_ascii=False))
        else:
            for line in showing.report(report, target):
                console.print(line)
        return 1 if report.misfits else 0
    found = list(doctors.examine(Path(data or Settings().data)))
    if as_json:
        say(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
    else:
        for one in found:
            console.print(showing.finding(one))
    return 1 if any(one.fatal for one in found) else 0


def _acted(done: int, *, replayed: bool) -> str:
    letters = counted(done, "dead letters")
    if not replayed:
        return f"Deleted {letters}."
    return (
        f"Replayed {letters}: {'it is' if done == 1 else 'they are'} called now. A call that fails again becomes "
        "a dead letter again."
    )


def _or_below(below: bool) -> str:
    return " and the agents under it" if below else ""


def _value(text: str) -> Any:
    """Return an argument: JSON, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
