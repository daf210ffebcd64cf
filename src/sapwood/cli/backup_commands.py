"""The commands that copy, restore and check stored data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.console import Console

from sapwood.admin.admin import Admin
from sapwood.app import CONTENT_CHECKS
from sapwood.cli import remote, rotation
from sapwood.cli.damage import copied, tell_damage
from sapwood.cli.parameters import AsJson, Data, whole_number
from sapwood.cli.quantities import counted
from sapwood.cli.terminal import say
from sapwood.errors import FolderInUse, NotFound, Unavailable, UsageError
from sapwood.kernel.node.backup import OnDamage, root_of
from sapwood.kernel.node.data_folder import TREES, tree_folder
from sapwood.kernel.node.stored_copies import UNFINISHED
from sapwood.kernel.node.tree_check import check_folder
from sapwood.kernel.node.tree_report import DamagedTree, TreeReport
from sapwood.storage.files import held_still

Keep = Annotated[
    int | None,
    Parameter(
        converter=whole_number,
        help="Number of backups to retain. The backup goes to a subfolder named by the time; older ones are removed.",
    ),
]


def backup(
    folder: Annotated[Path, Parameter(help="The destination: a new folder. With --keep, a folder of backups.")],
    address: Annotated[str | None, Parameter(help="Copy only the tree of this root.")] = None,
    /,
    *,
    keep: Keep = None,
    data: Data = "sapwood-data",
) -> int:
    """Copy all data while the server keeps running, and check each copy. The copy is itself a data folder.

    Exits with 1 if a tree is damaged: it is named and not copied, and the others are copied.
    """
    if keep is not None and address is not None:
        raise UsageError("--keep removes old backups of all trees. Leave out the address, or --keep.")
    if keep is not None and keep < 1:
        raise UsageError(f"--keep must be at least 1, got {keep}.")
    target = folder if keep is None else rotation.next_backup(folder)
    where = str(target.resolve())

    async def here(operator: Admin) -> dict[str, Any]:
        return await operator.backup(where, address)

    report = msgspec.convert(remote.ask_or_open(data, "backup", here, folder=where, address=address), TreeReport)
    return copied(report, target, keep, Path(data))


def restore(
    folder: Annotated[Path, Parameter(help="A backup.")],
    address: Annotated[str | None, Parameter(help="Restore only the tree of this root.")] = None,
    /,
    *,
    damaged: Annotated[
        OnDamage, Parameter(help="If trees in the backup are damaged: refuse, skip them, or restore them too.")
    ] = "refuse",
    data: Data = "sapwood-data",
) -> None:
    """Check a backup, and restore it over the current data. Trees that are not in the backup stay unchanged.

    If a server runs on the data folder, it restores the trees itself, and keeps running.
    """
    where, is_running = str(folder.resolve()), True

    async def here(operator: Admin) -> dict[str, Any]:
        nonlocal is_running
        is_running = False
        return await operator.restore(where, address, damaged)

    answer = remote.ask_or_open(data, "restore", here, folder=where, address=address, damaged=damaged)
    report = msgspec.convert(answer, TreeReport)
    say(f"Restored {counted(report.trees, 'trees')} from {folder} to {data}.")
    if is_running:
        say(f"The server of {data} kept running. Work that was in progress in these trees was cancelled.")
    tell_damage(report)


def verify(
    folder: Annotated[
        Path | None, Parameter(help="A backup, or a data folder that no server uses. Default: the data folder.")
    ] = None,
    /,
    *,
    tree: Annotated[str | None, Parameter(help="Check only the tree of this root.")] = None,
    as_json: AsJson = False,
    data: Data = "sapwood-data",
) -> int:
    """Check that stored data is intact: every database of every tree, in a data folder or a backup.

    Exits with 1 if a tree is damaged, and names it. The server may keep running. Changes nothing.
    """
    report = _check_offline(folder, tree) if folder is not None else _check_data(data, tree)
    if as_json:
        say(json.dumps(msgspec.to_builtins(report), indent=2, ensure_ascii=False))
    else:
        intact = f"{counted(report.trees, 'trees')} {'is' if report.trees == 1 else 'are'} intact"
        say(f"{intact}." if report.is_whole else f"{intact}, {len(report.sentences())} not.")
        tell_damage(report)
    return 0 if report.is_whole else 1


def _check_data(data: str, tree: str | None) -> TreeReport:
    """Have the server check its data, or check the data folder if no server runs."""
    try:
        return msgspec.convert(remote.ask(data, "verify", address=tree), TreeReport)
    except Unavailable:
        if not (Path(data) / TREES).is_dir():
            raise
    return _check_offline(Path(data), tree)


def _check_offline(folder: Path, tree: str | None) -> TreeReport:
    root = root_of(tree)
    if not (folder / TREES).is_dir():
        raise UsageError(f"{str(folder)!r} is neither a backup nor a data folder: it has no folder {TREES!r}.")
    if root is not None and not tree_folder(folder, root).exists():
        raise NotFound(f"{str(folder)!r} has no {root}.", path=root.segments)
    try:
        with held_still(folder), Console(stderr=True).status("") as status:
            report = check_folder(
                folder,
                root,
                CONTENT_CHECKS,
                lambda so_far: status.update(f"{counted(so_far.trees + len(so_far.damaged), 'trees')} checked"),
            )
    except FolderInUse as error:
        raise UsageError(f"{error} To check the data of a running server: sapwood verify --data {folder}") from None
    if root is None and (folder / UNFINISHED).exists():
        report.damaged.append(DamagedTree(str(folder), ["The backup is incomplete: trees are missing."]))
    return report
