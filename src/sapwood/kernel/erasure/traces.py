"""What one process has of an agent outside of the files of its tree: in indexes, crash files and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sapwood.address import Address
from sapwood.errors import Unavailable
from sapwood.kernel.alarms.node_index import NodeAlarms
from sapwood.kernel.erasure.known_forks import known_forks
from sapwood.kernel.erasure.receipt import ErasedPlace
from sapwood.kernel.node.node import Node
from sapwood.kernel.ports.erasure import ErasureHooks
from sapwood.storage.availability import refusals
from sapwood.storage.files import Files
from sapwood.storage.wal_frames import has_empty_log

CRASHES = "crashes"


async def erase_traces(
    node: Node, subject: Address, hooks: ErasureHooks, place: Callable[..., ErasedPlace]
) -> list[ErasedPlace]:
    """Remove what this process has of an agent and of those below it."""
    found: list[ErasedPlace] = []
    if node.keeper is not None and not node.owns(subject.root):
        await node.removal.remove_copies(subject.root)
        found.append(place("copies"))
    with refusals():
        if subject.parent is None:
            found.append(place("alarm index", count=_erase_alarms(node.alarms, subject)))
            found.append(place("quarantine", count=node.strikes.erase(subject, node.files)))
        found.append(place("crash files", count=_erase_crashes(node.folder, subject, node.files)))
    memory = place("memory", count=sum(erase(node, subject) for erase in hooks.memory))
    return [*found, memory, *await known_forks(node, subject, memory.node)]


def _erase_alarms(alarms: NodeAlarms, root: Address) -> int:
    """Remove a tree from the index so that no byte of the file says that it ever was in it."""
    is_known = alarms.stored(root) is not None
    alarms.exactly(root, None, 0)
    alarms.commit()
    if alarms.database.exists:
        alarms.database.vacuum()
        alarms.database.empty_log()
        if not has_empty_log(alarms.database.path):
            raise Unavailable(f"The log of the alarm index {alarms.database.path.name} cannot be emptied.")
    return int(is_known)


def _erase_crashes(data: Path, subject: Address, files: Files) -> int:
    """Remove the stack traces that name an agent or one below it."""
    folder, text = data / CRASHES, str(subject).encode()
    named = [path for path in folder.iterdir() if text in path.read_bytes()] if folder.is_dir() else []
    for path in named:
        files.remove(path)
    if named:
        files.sync_folder(folder)
    return len(named)
