"""What commands print about backups and damaged trees."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sapwood.cli.quantities import counted
from sapwood.cli.rotation import superseded
from sapwood.cli.terminal import say
from sapwood.kernel.node.backup_notes import note_removed_backup
from sapwood.kernel.node.tree_report import TreeReport


def copied(report: TreeReport, target: Path, keep: int | None, data: Path | None = None) -> int:
    """Print the result of a backup, remove the backups that it supersedes, and return the exit code."""
    say(f"Copied {counted(report.trees, 'trees')} to {target}.")
    tell_damage(report)
    for old in [] if keep is None else superseded(target.parent, keep, report):
        shutil.rmtree(old)
        if data is not None:
            note_removed_backup(data, old)
        say(f"Removed {old}.")
    return 0 if report.is_whole else 1


def tell_damage(report: TreeReport) -> None:
    """Print each damaged tree and each odd entry of a folder, and what to do."""
    for tree in report.damaged:
        say(str(tree), file=sys.stderr)
    for entry in report.odd:
        say(f"{entry.problem} {entry.remedy}", file=sys.stderr)
    if report.damaged:
        say("Restore a damaged tree from an intact backup: sapwood restore BACKUP ROOT --data FOLDER", file=sys.stderr)
