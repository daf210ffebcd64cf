"""`sapwood explain`: what an agent did in a turn, and what the model was sent in a step of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sapwood.cli import remote
from sapwood.cli.parameters import Agent, AsJson, Data
from sapwood.cli.terminal import say
from sapwood.errors import UsageError
from sapwood.web.admin import Admin

NANO = 1_000_000_000


def explain(
    address: Agent,
    turn: Annotated[str | None, Parameter(help="The id of a turn. Without it, the latest turns are listed.")] = None,
    /,
    *,
    step: Annotated[int | None, Parameter(help="Print what the model was sent in this step, byte for byte.")] = None,
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
        Console(soft_wrap=True).print(_work(answer["spans"]) if turn is None else _timeline(answer["spans"]))
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
    print(f"attempt {last['attempt']}, {last['status']}, {where}", file=sys.stderr)
    sys.stdout.write(last["body"])
    sys.stdout.flush()
    if sys.stdout.isatty():
        print()


def _work(spans: list[dict[str, Any]]) -> Table:
    """Return the latest turns, calls and fibers, the newest first."""
    table = Table("began", "kind", "name", "turn", "status", "took")
    for one in spans:
        facts = one["facts"]
        name = one["name"] if one["kind"] != "turn" else ""
        cells = [_time(one["began_at"]), one["kind"], name, facts.get("turn", ""), one["status"], _took(one)]
        table.add_row(*map(Text, cells))
    return table


def _timeline(spans: list[dict[str, Any]]) -> Table:
    """Return what happened in a turn, in order, with times since its beginning."""
    table = Table("after", "what", "name", "status", "took", "first chunk", "tokens", "cost")
    began, incarnation = spans[0]["began_at"], spans[0]["incarnation"]
    for one in spans:
        if one["incarnation"] != incarnation:
            incarnation = one["incarnation"]
            table.add_row("", Text("the process ended, or the agent slept", "dim"), "", "", "", "", "", "")
        first = one["first_at"]
        cells = [
            f"{one['began_at'] - began:.3f} s",
            " ".join(_what(one)),
            one["name"],
            one["status"],
            _took(one),
            "" if first is None else f"{first - one['began_at']:.3f} s",
            _tokens(one["facts"]),
            _cost(one["facts"]),
        ]
        table.add_row(*map(Text, cells))
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
