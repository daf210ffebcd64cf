"""Bugs in sapwood's text: each is a small change of the source that one promise forbids, with the tests that find it.

A test that passes with the bug in place does not show its promise. `just test-mutants` tries all of them; the fast
tests hold that each change still fits the source, and that the tests it names exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFORMANCE = "tests/conformance/"
NESTED_LIVES = (
    "../faults/test_nested_runs_end.py"
    "::test_whichever_server_is_killed_nested_runs_end_with_their_reason_and_never_for_silence"
)


@dataclass(frozen=True)
class Edit:
    """A piece of text of one file, which occurs once, and what it becomes."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A bug, the line of the ledger that it breaks, and the tests of which one has to fail."""

    name: str
    promise: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()


def mutant(
    name: str, promise: str, *edits: tuple[str, str, str], tests: tuple[str, ...], options: tuple[str, ...] = ()
) -> Mutant:
    return Mutant(name, promise, tuple(Edit(*edit) for edit in edits), tests, options)


MUTANTS = [
    mutant(
        "runs are replayed in the order of their ids",
        "A-134",
        (
            "runs/clients.py",
            "runs = [row.id for row in self._registry.all()]",
            "runs = sorted(row.id for row in self._registry.all())",
        ),
        tests=("test_runs_frames.py::test_runs_are_replayed_in_the_order_they_were_given_and_not_interleaved",),
    ),
    mutant(
        "the latest stream of a helper is replayed, and not that of the run",
        "A-136",
        (
            "runs/kept.py",
            "    found = streamed(database, row.stream, after=after, segments=segments)\n",
            (
                "    latest = database.execute('SELECT max(stream) FROM sapwood_chunks')[0][0] or row.stream\n"
                "    found = streamed(database, latest, after=after, segments=segments)\n"
            ),
        ),
        tests=("test_runs_drill_in.py::test_while_a_helper_is_asked_more_whoever_comes_sees_the_run_as_it_was",),
    ),
    mutant(
        "something is kept for each run that was followed",
        "A-160",
        (
            "runs/following.py",
            "        if is_again(self._actor):\n            address = str(self._actor.address)\n",
            (
                "        LEAKED.append(followed)\n"
                "        if is_again(self._actor):\n            address = str(self._actor.address)\n"
            ),
        ),
        ("runs/following.py", "GIVEN_AGAIN = 5.0", "LEAKED = []\nGIVEN_AGAIN = 5.0"),
        tests=("test_runs_cancel.py::test_many_runs_leave_nothing_behind_that_listens_for_a_cancel",),
    ),
    mutant(
        "a stop is noticed at the next look, 50 ms later",
        "A-196",
        (
            "chat/interrupting.py",
            "            self._turns.set(row.number, error=tombstone, reason=reason)\n        self._stop(row, reason)",
            (
                "            self._turns.set(row.number, error=tombstone, reason=reason)\n"
                "        self._actor.host.loop.call_later(0.05, self._stop, row, reason)"
            ),
        ),
        tests=("test_runs_cancel.py::test_a_stop_is_pushed_and_no_time_passes_before_every_model_is_cut_off",),
    ),
    mutant(
        "frames leave before what they tell is kept",
        "A-127",
        (
            "kernel/outbox.py",
            "        if not self._waiting and self._actor.home.slices.open is None and self._is_free():",
            "        if True:",
        ),
        tests=("test_runs_frames.py::test_no_client_hears_of_a_chunk_of_a_run_that_is_not_kept",),
    ),
    mutant(
        "a turn that nobody waits for does not keep its agent awake",
        "A-98",
        (
            "kernel/actor.py",
            "        return awake_for_nobody and not self.calls and not self.children",
            (
                "        return awake_for_nobody and not any(not one.method.startswith('fiber') for one in self.calls)"
                " and not self.children"
            ),
        ),
        tests=("test_chat_turns.py::test_a_turn_that_nobody_waits_for_keeps_its_agent_awake",),
    ),
    mutant(
        "what is known of a run stays when it is over",
        "CF-87",
        (
            "runs/served.py",
            (
                "        for what in (self._given, self.last_heard, self.told, self._reports, self.away):\n"
                "            what.pop(run, None)\n"
            ),
            "        KEPT.append((dict(self._given), dict(self.last_heard), self._actor))\n",
        ),
        ("runs/served.py", "log = logging.getLogger(__name__)", "log = logging.getLogger(__name__)\nKEPT: list = []"),
        tests=("test_runs_methods.py::test_a_finished_run_leaves_nothing_in_memory",),
    ),
    mutant(
        "what a helper broadcasts reaches the clients of its caller",
        "A-129",
        (
            "capabilities/connections.py",
            (
                "        for socket in self._actor.host.sockets.of(self._actor.address):\n"
                "            if socket not in left_out:\n"
            ),
            (
                "        where = [self._actor.address, *([self._actor.parent.address] if self._actor.parent else [])]\n"
                "        for socket in [one for at in where for one in self._actor.host.sockets.of(at)]:\n"
                "            if socket not in left_out:\n"
            ),
        ),
        tests=("test_runs_frames.py::test_what_a_helper_shows_its_own_clients_does_not_reach_the_callers",),
    ),
    mutant(
        "fibers forget their trace",
        "B-2",
        (
            "capabilities/fibers.py",
            "        call.trace = tracing.context_of(row.trace)\n",
            (
                "        if str(row.name).startswith(('run ', 'turn')):\n"
                "            call.trace = tracing.context_of(row.trace)\n"
            ),
        ),
        tests=("test_tracing.py::test_a_fiber_goes_on_in_the_trace_that_it_was_started_in_also_after_a_restart",),
    ),
    mutant(
        "what a run streams is copied into the database of its caller",
        "A-128",
        (
            "runs/served.py",
            "        self.told[run] = first + len(texts)\n",
            (
                "        self.told[run] = first + len(texts)\n"
                "        if (above := self._actor.parent) is not None:\n"
                "            above.database.execute('CREATE TABLE IF NOT EXISTS copy_of_chunks (body TEXT)')\n"
                "            for one in texts:\n"
                "                above.database.execute('INSERT INTO copy_of_chunks VALUES (?)', one.decode())\n"
            ),
        ),
        tests=("test_runs_frames.py::test_what_a_run_streams_is_kept_in_its_own_database_and_not_in_those_above",),
    ),
    mutant(
        "it is not noted that the end of a run was told",
        "CF-122",
        ("runs/outcomes.py", "        self.registry.set(row.id, delivered=row.delivered | slot)\n", ""),
        tests=("test_runs_detached.py::test_a_run_that_is_asked_for_again_and_given_up_again_is_told_once",),
    ),
    mutant(
        "a remote run is started again after a crash, and its status is not asked for",
        "A-215",
        (
            "runs/elsewhere.py",
            "        if self._has_begun():\n            state =",
            "        if False:\n            state =",
        ),
        tests=(
            "test_teams_remote.py::test_after_a_crash_the_caller_asks_for_the_status_and_does_not_start_the_run_again",
        ),
    ),
    mutant(
        "an event of another server that is cut in two is lost",
        "A-126",
        ("wire/remote.py", 'rest = b"".join(self._parts).split(', "rest = data.split("),
        tests=("test_teams_remote.py::test_events_are_the_same_wherever_their_bytes_are_cut",),
    ),
    mutant(
        "no hook is called when a turn ends with an output that is not text",
        "A-202",
        (
            "chat/steps.py",
            '        if turn.status in ("completed", "failed", "cancelled"):',
            '        if turn.status in ("completed", "failed", "cancelled") and isinstance(turn.output, str | None):',
        ),
        tests=("test_runs_tools.py::test_the_hooks_of_a_completed_turn_are_called_after_structured_output",),
    ),
    mutant(
        "a custom route asks no hook",
        "A-79",
        (
            "app.py",
            "            await serve(await self._opened_door(), scope, receive, send, place=(kind, name, rest))",
            (
                "            scope = {**scope, 'unasked': True}\n"
                "            await serve(await self._opened_door(), scope, receive, send, place=(kind, name, rest))"
            ),
        ),
        (
            "web/door.py",
            '        answer = await self._asked(parent, "on_before_sub_agent",',
            (
                "        answer = given if request.scope.get('unasked') else"
                ' await self._asked(parent, "on_before_sub_agent",'
            ),
        ),
        tests=("test_gates.py::test_a_custom_route_asks_every_hook_on_the_way",),
    ),
    mutant(
        "the reason of an interrupt by signal is dropped",
        "A-198",
        (
            "drivers/temporal/workflow.py",
            "        self._stop = self._stop or reason\n",
            "        self._stop = self._stop or 'x'\n",
        ),
        tests=("../temporal/test_workflows.py::test_an_interrupt_by_signal_stops_everything_below",),
    ),
    mutant(
        "the reason of a cancelled turn is dropped on the way down",
        "A-198",
        (
            "chat/interrupting.py",
            "        self._stop(row, reason)\n\n    def cut(",
            "        self._stop(row, 'parent-interrupted')\n\n    def cut(",
        ),
        tests=("test_runs_cancel.py::test_the_reason_of_a_cancelled_turn_reaches_every_run_below_it",),
    ),
    mutant(
        "the reason of a cancelled run does not reach the runs below it",
        "A-198",
        (
            "runs/contract.py",
            "    return UNWANTED if reason == CANCELLED else reason\n",
            "    return UNWANTED\n",
        ),
        tests=(NESTED_LIVES,),
    ),
    mutant(
        "a remote run survives the deletion of its caller",
        "B-34",
        (
            "runs/remote_sessions.py",
            "        for owner, session in rows:\n",
            "        for owner, session in rows[:0]:\n",
        ),
        tests=(NESTED_LIVES,),
    ),
    mutant(
        "what the run below a run says is no progress of it",
        "B-14",
        (
            "runs/activity.py",
            "            _look(found, below.child, below.row.id, height + 1)\n",
            "            found.has_spoken, found.said = True, found.said or below.row.started_at\n",
        ),
        tests=(NESTED_LIVES,),
    ),
    mutant(
        "the outcome of a call with a key is kept in a slice of its own",
        "B-3",
        (
            "kernel/idempotency.py",
            "        self._store(place, method, arguments, False, packed)\n",
            (
                "        db.keep()\n        await asyncio.sleep(0)\n"
                "        self._store(place, method, arguments, False, packed)\n"
            ),
        ),
        tests=("test_call_options.py::test_work_that_crashes_at_any_commit_takes_effect_once[process]",),
    ),
    mutant(
        "idempotency keys of all callers are one",
        "B-3",
        (
            "kernel/idempotency.py",
            "place = Place.of(call.caller, call.key)",
            'place = Place("", call.key)',
        ),
        tests=("test_call_options.py::test_keys_of_two_callers_do_not_meet",),
    ),
    mutant(
        "errors of the method's own open a circuit",
        "B-3",
        (
            "kernel/options.py",
            "            if isinstance(error, SapwoodError) and error.retryable:\n",
            "            if isinstance(error, SapwoodError):\n",
        ),
        tests=("test_call_options.py::test_errors_of_the_method_s_own_open_no_circuit",),
    ),
    mutant(
        "every error is retried",
        "B-3",
        ("kernel/options.py", "retry is None or not error.retryable or failed", "retry is None or failed"),
        tests=("test_call_options.py::test_errors_of_the_method_s_own_are_not_retried",),
    ),
]
