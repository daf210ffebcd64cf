"""`sapwood explain`: what an agent did in a turn, and what the model was sent in a step of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from sapwood.admin.admin import Admin
from sapwood.cli import remote
from sapwood.cli.parameters import Agent, AsJson, Data
from sapwood.cli.terminal import Text, say
from sapwood.errors import UsageError

NANO = 1_000_000_000
NAME = "name"
"""The column that is folded if a terminal is narrow. All others can be copied from one line."""
NARROWEST_NAME = 8
WIDEST = 10_000
"""Columns of a table, so that the width of the terminal does not cut it."""


def explain(
    address: Agent,
    turn: Annotated[str | None, Parameter(help="The id of a turn. Without it, the latest turns are listed.")] = None,
    /,
    *,
    step: Annotated[
        int | None, Parameter(help="Print what the model was sent in this step, byte for byte. 0: for summaries.")
    ] = None,
    attempt: Annotated[int | None, Parameter(help="Which attempt of the step. Default: the last.")] = None,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show what an agent did in a turn: model requests, tool calls, waits, runs, with times, tokens and costs.

    With `--step N`, print the request that the model was sent in that step, and nothing else, on standard output.
    Wakes no agent. Records are kept as `record_retention` of the class says: by default, for seven days.
    """
    if step is not None and turn is None:
        raise UsageError("--step needs the id of a turn. Run `sapwood explain ADDRESS` for a list.")

    async def here(operator: Admin) -> dict[str, Any]:
        return await operator.explain(address, turn, step)

    answer = remote.ask_or_open(data, "explain", here, address=address, turn=turn, step=step)
    if as_json:
        say(json.dumps(answer, indent=2, ensure_ascii=False))
    elif step is not None:
        _print_request(answer["requests"], attempt)
    elif answer["spans"]:
        console = Console(soft_wrap=True)
        crashes = {one["number"] for one in answer["incarnations"] if one["crashed_at"] is not None}
        shown = _work(answer["spans"]) if turn is None else _timeline(answer["spans"], crashes)
        for part in tables(*shown, width=console.width if console.is_terminal else None):
            # Never narrower than what must not be shortened: a terminal wraps such lines.
            Console(soft_wrap=True, width=WIDEST).print(part)
    else:
        say(f"{address} has no records: it has done nothing yet, or its class has `record_retention = None`.")
    if answer["more"]:
        say(f"Only {len(answer['spans'])} records are shown.", file=sys.stderr)


def _print_request(requests: list[dict[str, Any]], attempt: int | None) -> None:
    found = [one for one in requests if attempt in (None, one["attempt"])]
    if not found:
        raise UsageError(
            "What was sent in this step is not recorded: its process ended before the next commit."
            if attempt is None
            else f"There is no record of an attempt {attempt} at this step."
        )
    last = found[-1]
    where = f"POST {last['url']}" if last["url"] else "as Pydantic AI passed it to the model"
    say(f"attempt {last['attempt']}, {last['status']}, {where}", file=sys.stderr)
    if sys.stdout.isatty():
        say(last["body"])  # a terminal would obey what users and models wrote
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(last["body"].encode())
    sys.stdout.buffer.flush()


def _work(spans: list[dict[str, Any]]) -> tuple[list[str], list[list[str] | str]]:
    """Return the latest turns, calls and fibers, the newest first."""
    rows: list[list[str] | str] = []
    for one in spans:
        facts = one["facts"]
        name = one["name"] if one["kind"] != "turn" else ""
        id = facts.get("turn") or facts.get("run", "")
        rows.append([_time(one["began_at"]), one["kind"], name, id, one["status"], _took(one)])
    return ["began", "kind", NAME, "turn or run", "status", "took"], rows


def _timeline(spans: list[dict[str, Any]], crashes: set[int]) -> tuple[list[str], list[list[str] | str]]:
    """Return what happened in a turn, in order, with times since its beginning."""
    began, incarnation = spans[0]["began_at"], spans[0]["incarnation"]
    rows: list[list[str] | str] = []
    for one in spans:
        if one["incarnation"] > incarnation:
            is_crash = any(incarnation < number <= one["incarnation"] for number in crashes)
            incarnation = one["incarnation"]
            rows.append("the process was killed" if is_crash else "the process ended, or the agent slept")
        first = one["first_at"]
        rows.append(
            [
                f"{one['began_at'] - began:.3f} s",
                " ".join(_what(one)),
                one["name"],
                one["status"],
                _took(one),
                "" if first is None else f"{first - one['began_at']:.3f} s",
                _tokens(one["facts"]),
                _cost(one["facts"]),
            ]
        )
    return ["after", "what", NAME, "status", "took", "first chunk", "tokens", "cost"], rows


def tables(header: list[str], rows: list[list[str] | str], *, width: int | None) -> Iterator[Table | Text]:
    """Yield rows as a table, cut where a row is a text. Only names are folded to fit a width; `None` means no limit."""
    cells = [[Text(cell) for cell in row] for row in rows if not isinstance(row, str)]
    widths = [max(map(cell_len, (title, *(row[at].plain for row in cells)))) for at, title in enumerate(header)]
    name = header.index(NAME)
    if width is not None:
        others = sum(widths) - widths[name] + 3 * len(header) + 1
        widths[name] = min(widths[name], max(NARROWEST_NAME, width - others))
    table = _table(header, widths, name, show_header=True)
    for row in rows:
        if isinstance(row, str):
            yield table
            yield Text(row, "dim")
            table = _table(header, widths, name, show_header=False)
        else:
            table.add_row(*map(Text, row))
    yield table


def _table(header: list[str], widths: list[int], name: int, *, show_header: bool) -> Table:
    table = Table(show_header=show_header)
    for at, (title, width) in enumerate(zip(header, widths, strict=True)):
        table.add_column(title, width=width, no_wrap=at != name, overflow="fold")
    return table


def _what(span: dict[str, Any]) -> Iterator[str]:
    yield span["kind"]
    if span["kind"] == "step":
        yield "summary" if span["step"] is None else str(span["step"])
    if span["attempt"] > 1:
        yield f"(attempt {span['attempt']})"
    if decision := span["facts"].get("decision"):
        yield f"({decision})"


def _tokens(facts: dict[str, Any]) -> str:
    if "input_tokens" not in facts:
        return ""
    cached = f" ({facts['cache_read_tokens']} cached)" if facts.get("cache_read_tokens") else ""
    return f"{facts['input_tokens']} in{cached}, {facts['output_tokens']} out"


def _cost(facts: dict[str, Any]) -> str:
    if "nanodollars" in facts:
        return f"${facts['nanodollars'] / NANO:.6f}"
    return "unknown" if "input_tokens" in facts else ""


def _took(span: dict[str, Any]) -> str:
    return "" if span["ended_at"] is None else f"{span['ended_at'] - span['began_at']:.3f} s"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
