"""`fork`, `move`, `export` and `import`: trees that get a copy, another name, or a file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from sapwood.address import Address
from sapwood.admin.access import Access, Scope
from sapwood.admin.endpoint import AdminCall, Answer, Endpoint, OneAgent, Params
from sapwood.admin.moments import Given, moment_of
from sapwood.errors import InvalidArguments, Refused
from sapwood.kernel.actors.fork_origin import WorkRule
from sapwood.kernel.node.fork import Fork, fork, rewind
from sapwood.kernel.node.move import move
from sapwood.kernel.node.tree_transfer import export_tree, import_tree


class ForkParams(OneAgent):
    to: str
    work: WorkRule = "hold"
    at: Given = None


class RewindParams(OneAgent):
    at: Given
    keep_as: str | None = None
    work: WorkRule = "hold"


class ExportParams(OneAgent):
    file: str
    at: Given = None


class MoveParams(OneAgent):
    to: str
    token: str | None = None
    """Of the other server, if `to` is a URL."""


class ImportParams(Params):
    file: str
    name: str | None = None
    work: WorkRule = "hold"


async def _fork(call: AdminCall, params: ForkParams) -> Answer:
    source = Address.parse(params.address)
    target = Address.root_of(source.type, params.to)
    _check_covers(call.access, target)
    return _told(await fork(call.node, source, target, params.work, moment_of(params.at, source)))


async def _rewind(call: AdminCall, params: RewindParams) -> Answer:
    root = Address.parse(params.address)
    if (at := moment_of(params.at, root)) is None:
        raise InvalidArguments("`at` is missing: the moment to go back to.")
    if params.keep_as is not None:
        _check_covers(call.access, Address.root_of(root.type, params.keep_as))
    made = await rewind(call.node, root, at, params.keep_as, params.work)
    return _told(made) | {"undo_at": None if made.undo_at is None else made.undo_at.isoformat(timespec="microseconds")}


def _check_covers(access: Access, target: Address) -> None:
    if access.below is not None and not access.covers(target):
        raise Refused(f"The token is limited to {access.below} and agents below it, which {target} is not.")


async def _export(call: AdminCall, params: ExportParams) -> Answer:
    source = Address.parse(params.address)
    return {"agents": await export_tree(call.node, source, Path(params.file), moment_of(params.at, source))}


async def _import(call: AdminCall, params: ImportParams) -> Answer:
    return _told(await import_tree(call.node, Path(params.file), params.name, params.work))


async def _move(call: AdminCall, params: MoveParams) -> Answer:
    root = Address.parse(params.address)
    if "://" not in params.to:
        _check_covers(call.access, Address.root_of(root.type, params.to))
    elif call.access.below is not None:
        raise Refused("A token that is limited to an agent does not move it to another server.")
    return {"address": str(await move(call.node, root, params.to, params.token))}


def _scope_of_work(params: ForkParams | RewindParams) -> Scope | None:
    """Return the other scope that is needed if the unfinished work is continued."""
    return "call" if params.work == "run" else None


def _told(made: Fork) -> Answer:
    return {
        "address": str(made.address),
        "source": str(made.source),
        "at": made.at.isoformat(),
        "agents": made.agents,
        "held": asdict(made.held),
    }


FORK = Endpoint(
    "fork",
    "act",
    ForkParams,
    _fork,
    more=_scope_of_work,
    is_of_any_node=True,
)
REWIND = Endpoint(
    "rewind",
    "act",
    RewindParams,
    _rewind,
    more=_scope_of_work,
    is_of_any_node=True,
)
EXPORT = Endpoint("export", "admin", ExportParams, _export, is_of_any_node=True)
MOVE = Endpoint("move", "admin", MoveParams, _move, is_of_any_node=True)
IMPORT = Endpoint("import", "admin", ImportParams, _import, is_of_any_node=True)
