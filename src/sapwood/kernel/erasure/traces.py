"""What one process has of an agent outside of the files of its tree: in indexes, crash files and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    node: Node, subjects: Sequence[Address], hooks: ErasureHooks, place: Callable[..., ErasedPlace]
) -> list[ErasedPlace]:
    """Remove what this process has of an agent and of those below it. `subjects`: all its addresses, as of a record."""
    found: list[ErasedPlace] = []
    subject = subjects[0]
    if node.keeper is not None and not node.owns(subject.root):
        await node.removal.remove_copies(subject.root)
        found.append(place("copies"))
    with refusals():
        if subject.parent is None:
            # A former address may be that of another tree now.
            roots = [one for one in subjects if one == subject or not node.forwards.has_tree(one)]
            found.append(place("alarm index", count=_erase_alarms(node.alarms, roots)))
            found.append(place("quarantine", count=sum(node.strikes.erase(one, node.files) for one in roots)))
        found.append(place("crash files", count=_erase_crashes(node.folder, subjects, node.files)))
    memory = place("memory", count=sum(erase(node, one) for erase in hooks.memory for one in subjects))
    return [*found, memory, *await known_forks(node, subjects, memory.node)]


def _erase_alarms(alarms: NodeAlarms, roots: Sequence[Address]) -> int:
    """Remove a tree from the index so that no byte of the file says that it ever was in it."""
    count = 0
    for root in roots:
        count += alarms.stored(root) is not None
        alarms.exactly(root, None, 0)
    alarms.commit()
    if alarms.database.exists:
        alarms.database.vacuum()
        alarms.database.empty_log()
        if not has_empty_log(alarms.database.path):
            raise Unavailable(f"The log of the alarm index {alarms.database.path.name} cannot be emptied.")
    return count


def _erase_crashes(data: Path, subjects: Sequence[Address], files: Files) -> int:
    """Remove the stack traces that name an agent or one below it."""
    folder, texts = data / CRASHES, [str(one).encode() for one in subjects]
    paths = list(folder.iterdir()) if folder.is_dir() else []
    named = [path for path in paths for content in [path.read_bytes()] if any(text in content for text in texts)]
    for path in named:
        files.remove(path)
    if named:
        files.sync_folder(folder)
    return len(named)
