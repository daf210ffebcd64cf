"""`sapwood spending`: the requests, tokens and dollars that agents have used of models."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from sapwood.admin.admin import Admin
from sapwood.admin.spending import DEFAULT_LIMIT
from sapwood.cli import remote
from sapwood.cli.parameters import AsJson, Data
from sapwood.cli.quantities import counted
from sapwood.cli.terminal import Text, say
from sapwood.kernel.trees.usage import NANO, Spent

DELETED = "(deleted agents)"
UNNAMED = "(no name)"
UNKNOWN = "unknown"
LEAST_SHOWN = NANO // 10_000

By = Literal["model", "class"]


def spending(
    address: Annotated[
        str | None, Parameter(help="Show only what this agent and the agents under it have used.")
    ] = None,
    /,
    *,
    by: Annotated[By | None, Parameter(help="Add up by model, or by class of agent.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of trees to show.")] = DEFAULT_LIMIT,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> None:
    """Show the model requests, tokens and cost of all trees, the most expensive first, or of one agent by model.

    Wakes no agent.
    """
    by_class = by == "class"

    async def here(operator: Admin) -> dict[str, Any]:
        return await operator.spending.list(address, by_class=by_class, limit=limit)

    asked = {"address": address, "by_class": by_class, "limit": max(limit, 0)}
    answer = remote.ask_or_open(data, "spending", here, **asked)
    rows = _added_up(answer["rows"], by or "model")
    if as_json:
        say(json.dumps(_as_json(answer, rows, by), indent=2, ensure_ascii=False))
    elif rows:
        by_tree = [(one["address"], _spent(one)) for one in answer["trees"]]
        shown = by_tree if address is None and by is None else rows
        Console().print(_table("tree" if shown is by_tree else by or "model", shown))
        _print_total(answer, shown, rows)
    elif address is None:
        say(f"No tree in {data!r} has used a model yet. The requests of chat agents are counted here.")
    else:
        say(f"{address} and the agents under it have not used a model yet.")
    _print_missing(answer)


def _added_up(rows: list[dict[str, Any]], by: By) -> list[tuple[str, Spent]]:
    """Return what was used by model or class, the most expensive first. Rows come from several nodes."""
    sums: defaultdict[str, Spent] = defaultdict(Spent)
    for row in rows:
        key = (row["class"] or DELETED) if by == "class" else row["model"] or UNNAMED
        sums[key] = sums[key].plus(_spent(row))
    return sorted(sums.items(), key=lambda one: (-one[1].nanodollars, -one[1].tokens, one[0]))


def _spent(row: dict[str, Any]) -> Spent:
    return Spent(**{name: row[name] for name in Spent._fields})


def _as_json(answer: dict[str, Any], rows: list[tuple[str, Spent]], by: By | None) -> dict[str, Any]:
    return {
        "trees": [{"address": one["address"], **_told(_spent(one))} for one in answer["trees"]],
        "count": answer["count"],
        f"by_{by or 'model'}": [{by or "model": name, **_told(spent)} for name, spent in rows],
        "unread": answer["unread"],
        "unanswered": answer.get("unanswered", []),
    }


def _told(spent: Spent) -> dict[str, Any]:
    """Return sums as JSON: `cost` is null if a price is unknown, `known_cost` is the rest."""
    return {**spent.told(), "known_cost": spent.nanodollars / NANO, "unpriced_requests": spent.unpriced}


def _table(what: str, rows: list[tuple[str, Spent]]) -> Table:
    table = Table(what)
    for column in ("requests", "input tokens", "output tokens", "cost"):
        table.add_column(column, justify="right")
    for name, spent in rows:
        numbers = (spent.requests, spent.input_tokens, spent.output_tokens)
        table.add_row(Text(name), *(Text(f"{number:,}") for number in numbers), Text(_cost(spent)))
    return table


def _cost(spent: Spent) -> str:
    """Return a cost. Only what costs nothing is shown as 0."""
    is_little = 0 < spent.nanodollars < LEAST_SHOWN
    known = f"<${LEAST_SHOWN / NANO:.4f}" if is_little else f"${spent.nanodollars / NANO:,.4f}"
    if not spent.unpriced:
        return known
    return f"{known} + {UNKNOWN}" if spent.nanodollars else UNKNOWN


def _print_total(answer: dict[str, Any], shown: list[tuple[str, Spent]], rows: list[tuple[str, Spent]]) -> None:
    total = Spent()
    for _, spent in rows:
        total = total.plus(spent)
    trees = "" if answer["count"] == 1 else f" of {counted(answer['count'], 'trees')}"
    say(f"Total{trees}: {counted(total.requests, 'requests')}, {total.tokens:,} tokens, {_cost(total)}")
    if shown is not rows and answer["count"] > len(shown):
        more = counted(answer["count"] - len(shown), "trees")
        say(f"{more} not shown. Show more with --limit {answer['count']}.", file=sys.stderr)
    if total.unpriced:
        say(
            f"{counted(total.unpriced, 'requests')} without a known price. Set the price of a model with "
            "Settings(prices=…); requests that were cut off have none.",
            file=sys.stderr,
        )


def _print_missing(answer: dict[str, Any]) -> None:
    for one in answer["unread"]:
        say(f"{one['address']} could not be read: {one['error']}", file=sys.stderr)
    for worker in answer.get("unanswered", ()):
        called = str(answer.get("called", "worker")).capitalize()
        say(f"{called} {worker} does not answer: the spending of its trees is missing.", file=sys.stderr)
