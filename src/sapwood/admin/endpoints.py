"""All endpoints of the admin API."""

from __future__ import annotations

from typing import Any

from sapwood.admin.act import ACT
from sapwood.admin.agenda import AGENDA
from sapwood.admin.agents import AGENTS
from sapwood.admin.arrivals import ARRIVAL, ARRIVAL_PARTS, RECEIVE
from sapwood.admin.branches import BRANCHES, SWITCH_BRANCH
from sapwood.admin.cancellation import CANCEL_RUN, CANCEL_TURN
from sapwood.admin.chunks import CHUNKS
from sapwood.admin.cluster import CLUSTER
from sapwood.admin.commands import COMMANDS
from sapwood.admin.connections import CONNECTIONS
from sapwood.admin.creation import CREATE
from sapwood.admin.diff import DIFF
from sapwood.admin.endpoint import Endpoint
from sapwood.admin.erase import ERASE
from sapwood.admin.files import FILES
from sapwood.admin.find import FIND
from sapwood.admin.forks import EXPORT, FORK, IMPORT, MOVE, REWIND
from sapwood.admin.logs import LOGS
from sapwood.admin.moments import MOMENTS
from sapwood.admin.questions import ANSWER, QUESTIONS
from sapwood.admin.records import ASKED, SPANS, WORKS
from sapwood.admin.removal import DESTROY, RESTART
from sapwood.admin.replays import REPLAY
from sapwood.admin.runs import RUNS
from sapwood.admin.schema import SCHEMA
from sapwood.admin.send import SEND
from sapwood.admin.session import SESSION
from sapwood.admin.slow import SLOW
from sapwood.admin.studio_tabs import TAB_CALL
from sapwood.admin.transcript import TRANSCRIPT
from sapwood.admin.turn_tests import RECORD
from sapwood.admin.upgrade import UPGRADE
from sapwood.admin.watch import WATCH

ALL: tuple[Endpoint[Any], ...] = (
    SESSION,
    AGENTS,
    WATCH,
    FIND,
    QUESTIONS,
    ANSWER,
    AGENDA,
    ACT,
    RUNS,
    TRANSCRIPT,
    BRANCHES,
    WORKS,
    SPANS,
    ASKED,
    CHUNKS,
    RECORD,
    MOMENTS,
    REPLAY,
    SCHEMA,
    DIFF,
    FILES,
    CONNECTIONS,
    SLOW,
    LOGS,
    CLUSTER,
    SEND,
    CANCEL_RUN,
    CANCEL_TURN,
    SWITCH_BRANCH,
    CREATE,
    RESTART,
    DESTROY,
    ERASE,
    TAB_CALL,
    UPGRADE,
    FORK,
    REWIND,
    MOVE,
    RECEIVE,
    ARRIVAL,
    ARRIVAL_PARTS,
    EXPORT,
    IMPORT,
    *COMMANDS,
)
ENDPOINTS: dict[str, Endpoint[Any]] = {one.name: one for one in ALL}
"""The endpoints by name."""
