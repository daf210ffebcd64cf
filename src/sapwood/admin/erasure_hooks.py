"""What an erasure removes beside the files of the erased agents, above the kernel."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from sapwood.address import Address
from sapwood.admin.audit import kept_lines
from sapwood.admin.log_ring import erase_logs
from sapwood.capabilities.failing_calls import erase_failing_calls
from sapwood.errors import Unavailable
from sapwood.kernel.history.segments import history_folder
from sapwood.kernel.history.unrecorded import REMOVED
from sapwood.kernel.ports.erasure import ErasureHooks
from sapwood.runs.dispatch.child_removal import delete_child
from sapwood.runs.remote.erased_sessions import erase_sessions
from sapwood.runs.tables.erased_runs import erase_runs, knows_runs

LOOKS = 100
LOOK_AGAIN = 0.05
"""Seconds until to look again at a history that is being removed."""


async def forget_history(node: Any, root: Address) -> int:
    """Remove the past of a tree, and return how many files it had. None of them is left when this returns."""
    folder = history_folder(node.folder, root)
    count = await asyncio.to_thread(_files_in, folder)
    node.history.forget(root, is_destroyed=not await node.loader.exists(root))
    if folder.exists():  # what is written from now on is another folder
        raise Unavailable(f"The history of {root} cannot be removed.")
    for _ in range(LOOKS):  # the thread of the history may be removing the same
        if not (left := list(folder.parent.glob(f"{folder.name}-*{REMOVED}"))):
            break
        for past in left:
            await asyncio.to_thread(shutil.rmtree, past, ignore_errors=True)
        await asyncio.sleep(LOOK_AGAIN if any(past.exists() for past in left) else 0.0)
    else:
        raise Unavailable(f"Files are left of the history of {root}.")
    if folder.parent.exists():
        await asyncio.to_thread(node.files.sync_folder, folder.parent)
    return count


def _files_in(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*")) if folder.exists() else 0


ERASURE_HOOKS = ErasureHooks(
    delete_child=delete_child,
    history=forget_history,
    rows=(erase_runs, erase_sessions),
    knows=(knows_runs,),
    memory=(erase_logs, erase_failing_calls),
    kept=(kept_lines,),
)
