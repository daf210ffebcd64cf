"""`sapwood replay`: the model requests of a turn again, and how the answers differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators
from rich.console import Console
from rich.table import Table

from sapwood.cli import remote
from sapwood.cli.parameters import Agent, AsJson, Data, whole_number
from sapwood.cli.quantities import counted
from sapwood.cli.terminal import Text, say
from sapwood.errors import UsageError

NANO = 1_000_000_000
WIDEST = 10_000
"""Columns of a table that no terminal shows."""
LONGEST = 300
"""Characters of an answer in the table."""


def replay(
    address: Agent,
    turn: Annotated[str, Parameter(help="The id of a turn that has ended.")],
    /,
    *,
    step: Annotated[
        int | None,
        Parameter(help="Repeat only this model request. Default: the whole turn, with the recorded results of tools."),
    ] = None,
    times: Annotated[
        int, Parameter(converter=whole_number, validator=validators.Number(gte=1, lte=100), help="How often.")
    ] = 1,
    model: Annotated[
        Sequence[str],
        Parameter(
            negative="",
            show_default=False,
            help="A model to ask, such as `openai:gpt-5`. Repeatable. Default: the one that answered then.",
        ),
    ] = (),
    instructions: Annotated[Path | None, Parameter(help="A file with other instructions.")] = None,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> int:
    """Ask models the stored requests of a turn again, and show how the answers differ.

    No tool runs, and nothing is written to the agent. The requests cost what they cost at the provider; they are not
    counted in the budgets of the agent.
    """
    text = None if instructions is None else _read(instructions)
    asked = {"address": address, "turn": turn, "step": step, "instructions": text}
    found = [remote.answer_of(data, "replay", **asked, model=name) for name in (model or (None,)) for _ in range(times)]
    replays = [one["replay"] for one in found]
    if as_json:
        told = {**found[0], "replays": replays}
        del told["replay"]
        say(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        Console(width=None if sys.stdout.isatty() else WIDEST).print(_table(found[0]["original"], replays))
        say(_total(replays, address))
    return int(any(one["ended"] == "failed" for one in replays))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{str(path)!r} is not a text in UTF-8.") from None


def _table(original: dict[str, Any], replays: Sequence[dict[str, Any]]) -> Table:
    table = Table()
    for title in ("model", "time", "step"):
        table.add_column(title, no_wrap=True)
    table.add_column("answer", overflow="fold")
    for title in ("tokens", "cost", "took"):
        table.add_column(title, no_wrap=True)
    for one in original["steps"]:
        table.add_row(*map(Text, ("original", "", *_cells(one, _answer(one)))))
    counts: dict[str, int] = {}
    for one in replays:
        table.add_section()
        counts[one["model"]] = counts.get(one["model"], 0) + 1
        for row in _rows(one):
            table.add_row(*map(Text, (one["model"], str(counts[one["model"]]), *row)))
    return table


def _rows(replay: dict[str, Any]) -> Iterator[Sequence[str]]:
    for one in replay["steps"]:
        yield _cells(one, "the same" if one["same"] else _answer(one))
    if replay["problem"] is not None:
        yield "", replay["problem"], "", "", ""


def _cells(step: dict[str, Any], answer: str) -> Sequence[str]:
    seconds, cost, tokens = step["seconds"], step["nanodollars"], ""
    if step["input_tokens"] is not None:
        tokens = f"{step['input_tokens']} in, {step['output_tokens']} out"
    return (
        str(step["step"]),
        answer,
        tokens,
        "unknown" if cost is None else f"${cost / NANO:.6f}",
        "" if seconds is None else f"{seconds:.1f} s",
    )


def _answer(step: dict[str, Any]) -> str:
    calls = [f"{one['tool']}({_arguments(one['arguments'])})" for one in step["calls"]]
    text = " ".join([*step["text"].split(), *calls])
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _arguments(given: Any) -> str:
    if not isinstance(given, dict):
        return repr(given)
    fields: dict[str, Any] = given  # pyright: ignore[reportUnknownVariableType] - of JSON
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())


def _total(replays: Sequence[dict[str, Any]], address: str) -> str:
    steps = [step for one in replays for step in one["steps"]]
    read, written = (sum(step[name] or 0 for step in steps) for name in ("input_tokens", "output_tokens"))
    known = [step["nanodollars"] for step in steps if step["nanodollars"] is not None]
    cost = (
        f"{'' if len(known) == len(steps) else 'at least '}${sum(known) / NANO:.6f}" if known else "at an unknown cost"
    )
    requests = counted(len(steps), "requests")
    return f"{requests}: {read} tokens in, {written} out, {cost}. The budgets of {address} do not count this."
