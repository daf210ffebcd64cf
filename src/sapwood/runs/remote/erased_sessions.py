"""What a tree stores of runs on other servers, of a sub-agent that is erased."""

from __future__ import annotations

from sapwood.address import Address
from sapwood.kernel.ports.erasure import ErasedBelow
from sapwood.runs.remote.nested_log import NESTED
from sapwood.runs.remote.remote_sessions import REMOTE
from sapwood.storage.database import Database

OWN_AND_BELOW = "({0} = ?1 OR ({0} >= ?1 || '/' AND {0} < ?1 || '0'))"


def erase_sessions(database: Database, below: ErasedBelow) -> int:
    """Remove the sessions of erased agents on other servers, and the events of their runs that other servers watch."""
    count = 0
    if database.has(REMOTE):
        where = OWN_AND_BELOW.format("owner")
        sql = f"DELETE FROM sapwood_remote_sessions WHERE {where} RETURNING 1"  # noqa: S608 - ours
        count += sum(len(database.execute(sql, str(one))) for one in below.subjects)
    if database.has(NESTED):
        where = OWN_AND_BELOW.format("path")
        sql = f"DELETE FROM sapwood_nested_events WHERE {where} RETURNING 1"  # noqa: S608 - ours
        count += sum(len(database.execute(sql, str(Address(path)))) for path in below.paths)
    return count
