"""What has to be true when driven conversations have come to rest, whatever was killed meanwhile."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
from pydantic_ai.messages import ModelMessagesTypeAdapter
from tests.faults.driven_workload import ONCE, DrivenPlanner, DrivenWanderer
from tests.faults.reading import walk
from tests.faults.run_checker import Left

from sapwood.address import Address
from sapwood.drivers.temporal.driver import workflow_id
from sapwood.kernel.node.data_folder import TREES, tree_folder

Lines = Sequence[Sequence[Any]]
ENDS = {"completed": {"COMPLETED"}, "failed": {"FAILED"}, "cancelled": {"COMPLETED", "CANCELED"}}
"""How the workflow of a turn or run may have ended, by how that did."""
TIMES = ("timestamp", "run_id", "conversation_id")
"""What is another thing in each life."""


def planner(life: str) -> Address:
    return Address.root_of(DrivenPlanner.__name__, life)


def wanderer(life: str) -> Address:
    return Address.root_of(DrivenWanderer.__name__, life)


def read(data: Path, root: Address, copy: Path) -> dict[str, Left]:
    """Return what is stored of a tree that is at rest, while its server runs."""
    folder = tree_folder(data, root)
    shutil.copytree(folder, copy / TREES / folder.name)
    found: dict[str, Left] = {}

    def one(address: Address, stem: str, database: apsw.Connection | None) -> None:
        left = found[str(address)] = Left(address)
        if database is not None:
            left.read(database)

    walk(copy, root, one)
    shutil.rmtree(copy)
    return found


def shown(tree: Mapping[str, Left], life: str) -> dict[str, Any]:
    """Return what is stored of a tree, but for what differs in every life: ids that nobody gave, and times."""
    text = json.dumps({address: _shown(left) for address, left in tree.items()}, sort_keys=True)
    return json.loads(text.replace(f":{life}", ":LIFE"))


def _shown(left: Left) -> dict[str, Any]:
    history = ModelMessagesTypeAdapter.dump_python(left.history, mode="json")
    return {
        "turns": [(one.id, one.run, one.status, one.steps, one.retries, one.output, one.error) for one in left.turns],
        "given": {id: (one.type, one.name, one.status, one.output, one.error) for id, one in left.given.items()},
        "served": {id: one.status for id, one in left.served.items()},
        "messages": _but_times([{**message, "id": None} for message in left.messages]),
        "history": _but_times(history),
    }


def _but_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _but_times(one) for name, one in value.items() if name not in TIMES}
    if isinstance(value, list):
        return [_but_times(one) for one in value]
    return value


def at_rest(tree: Mapping[str, Left]) -> list[str]:
    """Return what is wrong with a tree in which nothing is to go on."""
    found: list[str] = []
    for place, left in tree.items():
        found += left.problems()
        found += [f"{place}: the turn {one.id} is still {one.status}" for one in left.turns if one.is_open]
        found += [f"{place}: the run {one.id} is still {one.status}" for one in left.given.values() if one.is_open]
        found += [f"{place}: it still serves {one.id}" for one in left.served.values() if one.status == "running"]
        found += [f"{place}: a fiber {what} is left" for what in left.fibers]
    return found


def as_in_calm(calm: Mapping[str, Any], now: Mapping[str, Any], *, server_was_killed: bool) -> list[str]:
    """Return where what is stored is not what is stored if nothing is killed."""
    found: list[str] = []
    for place in {*calm, *now}:
        one, other = (_but_references(tree.get(place)) for tree in (calm, now))
        if server_was_killed:
            one, other = _but_unknown(one), _but_unknown(other)
        if one != other:
            found.append(f"{place}: without kills {_difference(one, other)}")
    return found


def _but_references(value: Any) -> Any:
    """Leave out the references of errors: each time an error is raised, it has another."""
    if isinstance(value, str):
        return re.sub("reference [0-9a-f]{8}", "reference", value)
    if isinstance(value, dict):
        return {name: _but_references(one) for name, one in value.items()}
    return [_but_references(one) for one in value] if isinstance(value, list) else value


def _but_unknown(value: Any) -> Any:
    """Leave out what a tool returned of which nobody may know whether it did."""
    if isinstance(value, dict):
        if value.get("part_kind") == "tool-return" and value.get("tool_name") in ONCE:
            return {"tool_name": value["tool_name"], "tool_call_id": value["tool_call_id"]}
        if value.get("type") in [f"tool-{name}" for name in ONCE]:
            return {"type": value["type"], "toolCallId": value["toolCallId"]}
        return {name: _but_unknown(one) for name, one in value.items()}
    return [_but_unknown(one) for one in value] if isinstance(value, list) else value


def _difference(one: Any, other: Any) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {*one, *other}:
            if one.get(name) != other.get(name):
                return f"{name}: {_difference(one.get(name), other.get(name))}"
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, pair in enumerate(zip(one, other, strict=True)):
            if pair[0] != pair[1]:
                return f"[{at}] {_difference(*pair)}"
    return f"it is {json.dumps(one)[:400]}, and now {json.dumps(other)[:400]}"


def done_twice(lines: Lines) -> list[str]:
    """Return what was done more often than promised, or too late.

    Each line has the number of the server that wrote it: what was under way when a server died may be
    done again by the next one, and only that.
    """
    found: list[str] = []
    by: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    answers: Counter[str] = Counter()
    """How many answers the model of each agent had given when it was last asked."""
    first: dict[tuple[str, str], int] = {}
    """After how many of them a tool was called first."""
    ended: set[str] = set()
    for kind, server, place, *line in lines:
        key, what = (kind, place, *line), f"{place} {kind} {line}"
        if kind == "wrong":
            found.append(f"{place}: {line[0]}")
        elif kind == "ended":
            ended.add(place)
        if kind not in ("asked", "called"):
            continue
        above = ["/".join(place.split("/")[:at]) for at in range(1, place.count("/") + 1)]
        if server in by[key] or (by[key] and line[1] in ONCE):
            found.append(f"{what} happened twice")
        by[key].append(server)
        if ended & {place, *above}:
            found.append(f"{what} happened after it was over")
        if any(answers[one] for one in above):  # whoever has runs done asks for all of them in the first answer
            found.append(f"{what} happened after the model above was told how it ended")
        if kind == "asked":
            found += [f"{what} happened again after the next answer"] if answers[place] > int(line[1]) else []
            answers[place] = int(line[1])
        elif answers[place] > first.setdefault((place, line[0]), answers[place]):
            found.append(f"{what} happened again after the model was told what it returned")
        elif line[0] == "first" and by["called", place, "second", line[1]]:
            found.append(f"{what} happened again after the next step")
    return found


def in_order(calm: Lines, lines: Lines, *, server_was_killed: bool) -> list[str]:
    """Return what did not happen that happens if nothing is killed, and the other way round."""
    one, other = ({(kind, place, *line) for kind, _, place, *line in these} for these in (calm, lines))
    differs = one ^ other
    if server_was_killed:
        differs = {line for line in differs if line[-1] not in ONCE}
    return [f"{line} {'did not happen' if line in one else 'happened'}" for line in differs]


def workflows_of(tree: Mapping[str, Left]) -> dict[str, str]:
    """Return how each turn or run ended that a workflow may have driven, by the workflow's id."""
    found: dict[str, str] = {}
    for left in tree.values():
        found |= {workflow_id(left.address, one.id): one.status for one in left.turns}
        chats = {one.run for one in left.turns}
        found |= {workflow_id(left.address, id): one.status for id, one in left.served.items() if id not in chats}
    return found


def driven(tree: Mapping[str, Left], workflows: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the workflows of a tree: who is driven by none, and which drive nobody."""
    wanted = workflows_of(tree)
    found = [f"the workflow {id} is {status}, and drove nobody" for id, status in workflows.items() if id not in wanted]
    for id, status in wanted.items():
        workflow = workflows.get(id)
        if workflow is None and status != "cancelled":  # one that was stopped at once need not have been driven
            found.append(f"{id} is {status}, and no workflow drove it")
        elif workflow is not None and workflow not in ENDS.get(status, ()):
            found.append(f"{id} is {status}, and its workflow {workflow}")
    return found
