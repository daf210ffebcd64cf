"""Settles the unfinished work of a fork: nothing in it acts by itself, unless the fork is told to run on.

By default, work is held. Scheduled and queued calls become dead letters, which can be replayed. Fibers are interrupted,
and can be resumed with their steps. Turns and runs are cancelled, with what they have said. What only waits for a
person stays: the question is open in the fork too, and an answer counts only there. What a person has allowed and has
not begun is asked again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sapwood.address import Address
from sapwood.capabilities.call_rows import CALLS
from sapwood.capabilities.fiber_rows import UNTIL_WOKEN
from sapwood.capabilities.file_rows import FILES
from sapwood.capabilities.limit_warnings import METHOD as LIMIT_NEAR
from sapwood.capabilities.mcp_servers import MCP_SERVERS
from sapwood.capabilities.spans import IS_OPEN, SPANS
from sapwood.capabilities.steps import STEPS
from sapwood.errors import UsageError
from sapwood.forks.agent_work import INTERNAL, AgentWork, OpenFiber, OpenRun
from sapwood.forks.reopened_questions import ServerTools, questions_about, reopen
from sapwood.forks.resting_work import RestingWork, resting_work
from sapwood.forks.turn_end import end_turn
from sapwood.kernel.actors.fork_origin import WorkRule
from sapwood.kernel.actors.row_ids import row_id
from sapwood.kernel.forks.forked_tree import Due, ForkedAgent, ForkedTree, HeldWork
from sapwood.kernel.ports.work_id import WorkId
from sapwood.runs.dispatch.results import FINISHED
from sapwood.runs.remote.remote_sessions import REMOTE
from sapwood.runs.tables.executed_runs_table import CHUNKS
from sapwood.runs.tables.own_questions import OWN_QUESTIONS
from sapwood.storage.offline_edit import OfflineEdit, editing

FORKED = "forked"
"""The code of dead letters that are held in a fork, and the reason of turns and runs that were cancelled in one."""
HELD_CALL = "The agent was {how}, so the call is held. Replay it to release it."
HELD_FIBER = "The agent was {how}, so the fiber is held. Resume it to continue after its last step."
SWEEP = "_sapwood_sweep_runs"
"""The one call of the framework's own that a fork takes over: it removes records that are not kept any longer."""
HOOK_CALLS = (FINISHED, LIMIT_NEAR)
"""Calls of the framework's own that call a hook of the user: they are held as calls of the user are."""
NO_SECRETS = "The agent was forked, and secrets of MCP servers are not copied. Add the server again."
STILL_RUNNING = {
    "forked": "The agent was forked. The other server may still execute the run for the original.",
    "rewound": "The agent was rewound. The other server may still execute the run.",
}


class ForkedWork:
    """The unfinished work of one fork."""

    def __init__(self, *, has_driver: bool) -> None:
        """`has_driver`: an external system decides when turns and runs continue, and does not know the fork."""
        self.has_driver = has_driver
        self._works: dict[Address, AgentWork] = {}
        self._servers = ServerTools()
        self._has_sessions = False
        self._is_rewind = False

    def look(self, agent: ForkedAgent, edit: OfflineEdit, *, is_rewind: bool) -> None:
        """Read what an agent has begun, and take away from a fork what belongs to the source alone."""
        self._is_rewind = is_rewind
        work = self._works[agent.address] = AgentWork.read(agent, edit)
        self._has_sessions = self._has_sessions or any(run.remote is not None for run in work.runs)
        self._servers.look(agent.address, edit)
        if not is_rewind:
            _take_secrets(edit)
        if edit.has(FILES):
            edit.execute("DELETE FROM sapwood_uploads WHERE digest IS NULL")  # their bytes were not copied

    def settle(self, tree: ForkedTree) -> tuple[HeldWork, dict[Address, Due], dict[Address, str]]:
        """Change the files of the agents, and return what is held, what is due, and which questions are open."""
        if tree.work == "run":
            self._check_may_run(tree)
            due = {at: Due(one.due, has_dead_letters=one.has_dead_letters) for at, one in self._works.items()}
            return HeldWork(), due, self._questions(tree, lambda address, question: True)
        was_root = len(tree.root.source.segments) == 1
        rests = {address: RestingWork() for address in self._works}
        if tree.work == "hold" and not self.has_driver:
            rests = resting_work(tree.root, self._works, was_root=was_root)
        held, lengths = HeldWork(), dict[tuple[Address, str], int]()
        how = "rewound" if self._is_rewind else "forked"
        due: dict[Address, Due] = {}
        open_questions: dict[Address, set[str]] = {}
        for address, work in reversed(self._works.items()):  # children first: their runs have ended then
            if work.has_any:
                with editing(work.agent.database) as edit:
                    hold = AgentHold(edit, work, rests[address], tree, held, lengths, how)
                    hold.settle()
                    due[address], open_questions[address] = hold.due(), hold.still_open()
            else:
                due[address] = Due(None, has_dead_letters=work.has_dead_letters)
        held.questions = sum(map(len, open_questions.values()))
        return held, due, self._questions(tree, lambda address, question: question in open_questions.get(address, ()))

    def _check_may_run(self, tree: ForkedTree) -> None:
        if self._has_sessions:
            raise UsageError(
                f"{tree.root.source} has unfinished runs on other servers, so the work of a fork cannot continue: both "
                'would follow the same runs. Use work="hold" or work="drop".'
            )
        if self.has_driver:
            raise UsageError(
                "The app has a driver, which does not know the turns of a fork, so they cannot continue. Use "
                'work="hold" or work="drop".'
            )

    def _questions(self, tree: ForkedTree, is_open: Callable[[Address, str], bool]) -> dict[Address, str]:
        """Return the questions that agents below the root ask, as the index has them."""
        asked = {Address.parse(owner): msgspec.json.decode(body) for owner, body in tree.questions.items()}
        if tree.work == "hold":
            for address, work in self._works.items():
                known = {one["id"] for one in asked.get(address, ())}
                calls = [call for call in work.reopened if call.id not in known]
                asked[address] = [*asked.get(address, ()), *questions_about(calls, address, self._servers)]
        found: dict[Address, str] = {}
        for address, questions in asked.items():
            kept = [one for one in questions if is_open(address, one["id"])]
            if kept and address != tree.root.address:
                found[address] = msgspec.json.encode(kept).decode()
        return found


def _take_secrets(edit: OfflineEdit) -> None:
    """Take away what lets an agent speak for the source on other servers."""
    if edit.has(REMOTE):
        edit.execute("DELETE FROM sapwood_remote_secret")
        edit.execute("DELETE FROM sapwood_remote_sessions")
    if edit.has(MCP_SERVERS):
        edit.execute("DELETE FROM sapwood_mcp_sign_ins")
        edit.execute(
            "UPDATE sapwood_mcp_servers SET status = 'failed', error = ?, next_try_at = NULL, sign_in_url = NULL,"
            " secrets = NULL WHERE secrets IS NOT NULL",
            NO_SECRETS,
        )


class AgentHold:
    """Settles the unfinished work of one agent."""

    def __init__(
        self,
        edit: OfflineEdit,
        work: AgentWork,
        rest: RestingWork,
        tree: ForkedTree,
        held: HeldWork,
        lengths: dict[tuple[Address, str], int],
        how: str,
    ) -> None:
        """`how`: `forked` or `rewound`, for errors that people read."""
        self._edit = edit
        self._work = work
        self._rest = rest
        self._rule: WorkRule = tree.work
        self._now = tree.now
        self._held = held
        self._lengths = lengths
        """How many events each run has that ended here, by the agent that executed it."""
        self._how = how

    def settle(self) -> None:
        """Hold or delete what does not rest."""
        for turn in self._work.turns:
            if turn.number not in self._rest.turns:
                end_turn(self._edit, turn, self._work.calls_of(turn), self._now, FORKED)
                self._held.turns += 1
            elif calls := [call for call in self._work.reopened if call.turn == turn.number]:
                reopen(self._edit, turn, calls, self._now)
        for run in self._work.served:
            if run not in self._rest.served:
                self._end_served(run)
        for run in self._work.runs:
            if run.id not in self._rest.runs:
                self._end_run(run)
                self._held.runs += 1
        self._settle_fibers()
        if self._work.calls:
            self._hold_calls()
        self._end_spans()

    def due(self) -> Due:
        """Return what the agent has to do by itself now."""
        if not self._edit.has(CALLS):
            return Due(None, has_dead_letters=False)
        ((at,),) = self._edit.execute("SELECT min(due_at) FROM sapwood_calls")
        return Due(at, has_dead_letters=bool(self._edit.execute("SELECT 1 FROM sapwood_dead_letters LIMIT 1")))

    def _end_served(self, run: str) -> None:
        length = 0
        if self._edit.has(CHUNKS):
            rows = self._edit.execute(
                "SELECT first, body FROM sapwood_chunks WHERE stream ="
                " (SELECT stream FROM sapwood_served_runs WHERE id = ?) ORDER BY first DESC LIMIT 1",
                run,
            )
            length = rows[0][0] + len(msgspec.json.decode(rows[0][1])) if rows else 0
        self._lengths[self._work.agent.address, run] = length
        self._edit.execute(
            "UPDATE sapwood_served_runs SET status = 'cancelled', reason = ?, length = ?, ended_at = ?,"
            " cancelled = coalesce(cancelled, ?) WHERE id = ?",
            FORKED,
            length,
            self._now,
            FORKED,
            run,
        )

    def _end_run(self, run: OpenRun) -> None:
        child = self._work.agent.address.child(run.type, run.name)
        is_remote = run.remote is not None
        self._edit.execute(
            "UPDATE sapwood_runs SET status = ?, reason = ?, error = ?, still_running = ?, seq = ?, delivered = 3,"
            " cancelled = ?, ended_at = ? WHERE id = ?",
            "interrupted" if is_remote else "cancelled",
            FORKED,
            STILL_RUNNING[self._how] if is_remote else None,
            int(is_remote),
            self._lengths.get((child, run.id), 0) + 1,
            FORKED,
            self._now,
            run.id,
        )

    def _settle_fibers(self) -> None:
        following = {
            fiber.number
            for run in self._work.runs
            if run.id in self._rest.runs
            if (fiber := self._work.following_fiber(run)) is not None
        }
        driving = {
            fiber.number
            for turn in self._work.turns
            if turn.number in self._rest.turns and turn.status == "running"
            if (fiber := self._work.driving_fiber(turn)) is not None
        }
        for fiber in self._work.fibers:
            if fiber.number in self._rest.fibers | following | driving:
                self._edit.execute(
                    "UPDATE sapwood_fibers SET status = 'waiting', due_at = ?, recoveries = 0, failures = 0"
                    " WHERE number = ?",
                    UNTIL_WOKEN,
                    fiber.number,
                )
            elif fiber.is_internal:
                self._remove_fiber(fiber)
            else:
                self._hold_fiber(fiber)

    def _remove_fiber(self, fiber: OpenFiber) -> None:
        self._edit.execute("DELETE FROM sapwood_fibers WHERE number = ?", fiber.number)
        if self._edit.has(STEPS):
            for work in (WorkId.fiber(fiber.number), WorkId.recovery(fiber.number)):
                self._edit.execute("DELETE FROM sapwood_steps WHERE work = ?", str(work))
        self._close_questions(fiber, answered=True)

    def _hold_fiber(self, fiber: OpenFiber) -> None:
        is_held = self._rule == "hold"
        self._edit.execute(
            "UPDATE sapwood_fibers SET status = ?, due_at = NULL, error = ?, ended_at = ? WHERE number = ?",
            "interrupted" if is_held else "cancelled",
            HELD_FIBER.format(how=self._how) if is_held else None,
            self._now,
            fiber.number,
        )
        self._held.fibers += 1
        self._close_questions(fiber, answered=False)

    def _close_questions(self, fiber: OpenFiber, *, answered: bool) -> None:
        """Delete the open questions of a fiber, and with `answered` the others too. A resumed fiber asks again."""
        if self._edit.has(OWN_QUESTIONS):
            which = "" if answered else " AND answer IS NULL"
            self._edit.execute(f"DELETE FROM sapwood_own_questions WHERE fiber = ?{which}", fiber.number)  # noqa: S608

    def _hold_calls(self) -> None:
        """Turn scheduled and queued calls into dead letters, which have what is needed to store them again."""
        rows = self._edit.execute(
            "SELECT number, due_at, method, arguments, schedule, dedup_key, queue, retry, failures, error, created_at,"
            " trace, occurrence FROM sapwood_calls WHERE method <> ? ORDER BY number",
            SWEEP,
        )
        why = HELD_CALL.format(how=self._how)
        for number, due, method, arguments, schedule, key, queue, retry, failures, error, created, trace, nth in rows:
            is_internal = method.startswith(INTERNAL) and method not in HOOK_CALLS
            if self._rule == "hold" and not is_internal:
                held = {"number": number, "due_at": due, "dedup_key": key, "occurrence": nth, "failures": failures}
                self._edit.execute(
                    "INSERT INTO sapwood_dead_letters (origin, method, arguments, schedule, queue, retry, code, error,"
                    " attempts, created_at, failed_at, trace, held) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                    " ON CONFLICT (origin) DO UPDATE SET code = excluded.code, error = excluded.error,"
                    " failed_at = excluded.failed_at, held = excluded.held",
                    row_id(number, self._work.agent.address, self._work.agent.stem),
                    method,
                    arguments,
                    schedule,
                    queue,
                    retry,
                    FORKED,
                    why if error is None else f"{why} Its last error: {error}",
                    failures,
                    created,
                    self._now,
                    trace,
                    msgspec.json.encode(held).decode(),
                )
            elif self._edit.has(STEPS):
                self._edit.execute("DELETE FROM sapwood_steps WHERE work = ?", str(WorkId.call(number, nth)))
            self._held.calls += int(not is_internal)
        self._edit.execute("DELETE FROM sapwood_calls WHERE method <> ?", SWEEP)

    def _end_spans(self) -> None:
        """End the records of what does not continue."""
        if not self._edit.has(SPANS):
            return
        kept = {str(WorkId.run(turn.id)) for turn in self._work.turns if turn.number in self._rest.turns}
        kept |= {str(WorkId.run(run)) for run in self._rest.served | self._rest.runs}
        kept |= {str(WorkId.fiber(number)) for number in self._rest.fibers}
        self._edit.execute(
            f"UPDATE sapwood_spans SET status = 'cancelled', ended_at = ? WHERE {IS_OPEN}"  # noqa: S608 - ours
            " AND work NOT IN (SELECT value FROM json_each(?))",
            self._now,
            msgspec.json.encode(sorted(kept)).decode(),
        )

    def still_open(self) -> set[str]:
        """Return the ids of the questions that are open now."""
        calls = {
            call.id
            for turn in self._work.turns
            if turn.number in self._rest.turns
            for call in self._work.calls_of(turn)
            if call in self._work.reopened or (call.is_open and call.answerer in ("approval", "client"))
        }
        if not self._edit.has(OWN_QUESTIONS):
            return calls
        rows = self._edit.execute("SELECT id FROM sapwood_own_questions WHERE answer IS NULL")
        return calls | {id for (id,) in rows}
