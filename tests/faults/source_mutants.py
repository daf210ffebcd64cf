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
            "runs/execution/clients.py",
            "runs = [row.id for row in self._registry.all()]",
            "runs = sorted(row.id for row in self._registry.all())",
        ),
        tests=("test_runs_frames.py::test_runs_are_replayed_in_the_order_they_were_given_and_not_interleaved",),
    ),
    mutant(
        "the latest stream of a helper is replayed, and not that of the run",
        "A-136",
        (
            "runs/tables/executed_runs_table.py",
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
            "runs/dispatch/run_monitor.py",
            "        if is_again():\n            address = str(self._actor.address)\n",
            ("        LEAKED.append(self)\n        if is_again():\n            address = str(self._actor.address)\n"),
        ),
        ("runs/dispatch/run_monitor.py", "GIVEN_AGAIN = 5.0", "LEAKED = []\nGIVEN_AGAIN = 5.0"),
        tests=("test_runs_cancel.py::test_many_runs_leave_nothing_behind_that_listens_for_a_cancel",),
    ),
    mutant(
        "a stop is noticed at the next look, 50 ms later",
        "A-196",
        (
            "chat/turn/cancellation.py",
            (
                "            self._turns.set(row.number, cancelled=tombstone, reason=reason)\n"
                "        self._stop(row, reason)"
            ),
            (
                "            self._turns.set(row.number, cancelled=tombstone, reason=reason)\n"
                "        self._actor.host.loop.call_later(0.05, self._stop, row, reason)"
            ),
        ),
        tests=("test_runs_cancel.py::test_a_stop_is_pushed_and_no_time_passes_before_every_model_is_cut_off",),
    ),
    mutant(
        "frames leave before what they tell is kept",
        "A-127",
        (
            "kernel/actors/outbox.py",
            "        if not self._waiting and self._actor.home.slices.open is None and self._is_free():",
            "        if True:",
        ),
        tests=("test_runs_frames.py::test_no_client_hears_of_a_chunk_of_a_run_that_is_not_kept",),
    ),
    mutant(
        "a turn that nobody waits for does not keep its agent awake",
        "A-98",
        (
            "kernel/actors/actor.py",
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
            "runs/execution/executor.py",
            (
                "        for what in (self._given, self.last_heard, self.told, self._reports, self.away):\n"
                "            what.pop(run, None)\n"
            ),
            "        KEPT.append((dict(self._given), dict(self.last_heard), self._actor))\n",
        ),
        (
            "runs/execution/executor.py",
            "log = logging.getLogger(__name__)",
            "log = logging.getLogger(__name__)\nKEPT: list = []",
        ),
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
            "capabilities/fiber_executor.py",
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
            "runs/execution/executor.py",
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
        ("runs/dispatch/results.py", "        self.registry.set(row.id, delivered=row.delivered | slot)\n", ""),
        tests=("test_runs_detached.py::test_a_run_that_is_asked_for_again_and_given_up_again_is_told_once",),
    ),
    mutant(
        "a remote run is started again after a crash, and its status is not asked for",
        "A-215",
        (
            "runs/backends/remote_backend.py",
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
            "chat/turn/fiber_driver.py",
            "        if row is None or row.is_open:\n            return\n",
            "        if row is None or row.is_open or not (row.output or '\"').startswith('\"'):\n            return\n",
        ),
        tests=("test_runs_tools.py::test_after_turn_is_called_after_structured_output",),
    ),
    mutant(
        "a custom route asks no hook",
        "A-79",
        (
            "app.py",
            "            await serve(await self._opened_gateway(), scope, receive, send, place=(kind, name, rest))",
            (
                "            scope = {**scope, 'unasked': True}\n"
                "            await serve(await self._opened_gateway(), scope, receive, send, place=(kind, name, rest))"
            ),
        ),
        (
            "web/agent_router.py",
            '        answer = await self._ask(parent, "on_before_sub_agent",',
            (
                "        answer = given if request.scope.get('unasked') else"
                ' await self._ask(parent, "on_before_sub_agent",'
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
            "chat/turn/cancellation.py",
            "        self._stop(row, reason)\n\n    def cut(",
            "        self._stop(row, 'parent-interrupted')\n\n    def cut(",
        ),
        tests=("test_runs_cancel.py::test_the_reason_of_a_cancelled_turn_reaches_every_run_below_it",),
    ),
    mutant(
        "the reason of a cancelled run does not reach the runs below it",
        "A-198",
        (
            "runs/execution/contract.py",
            "    return UNWANTED if reason == CANCELLED else reason\n",
            "    return UNWANTED\n",
        ),
        tests=(NESTED_LIVES,),
    ),
    mutant(
        "a remote run survives the deletion of its caller",
        "B-34",
        (
            "runs/remote/remote_sessions.py",
            "        for owner, session, memo in rows:\n",
            "        for owner, session, memo in rows[:0]:\n",
        ),
        tests=(NESTED_LIVES,),
    ),
    mutant(
        "what the run below a run says is no progress of it",
        "B-14",
        (
            "runs/dispatch/activity.py",
            "            _look(found, below.child, below.row.id, height + 1)\n",
            "            found.has_spoken, found.said = True, found.said or below.row.started_at\n",
        ),
        tests=(NESTED_LIVES,),
    ),
    mutant(
        "the outcome of a call with a key is kept in a slice of its own",
        "B-3",
        (
            "kernel/actors/idempotency.py",
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
            "kernel/actors/idempotency.py",
            "place = CallIdentity.of(call.caller, call.key)",
            'place = CallIdentity("", call.key)',
        ),
        tests=("test_call_options.py::test_keys_of_two_callers_do_not_meet",),
    ),
    mutant(
        "errors of the method's own open a circuit",
        "B-3",
        (
            "kernel/rpc/options.py",
            "            if isinstance(error, SapwoodError) and error.retryable:\n",
            "            if isinstance(error, SapwoodError):\n",
        ),
        tests=("test_call_options.py::test_errors_of_the_method_s_own_open_no_circuit",),
    ),
    mutant(
        "every error is retried",
        "B-3",
        ("kernel/rpc/options.py", "retry is None or not error.retryable or failed", "retry is None or failed"),
        tests=("test_call_options.py::test_errors_of_the_method_s_own_are_not_retried",),
    ),
    mutant(
        "the start of a sub-agent carries a preview of its input",
        "A-176",
        (
            "wire/helix.py",
            'told = {"type": "subagent_start", **told, "input": event.body["input"]}',
            'told = {"type": "subagent_start", **told, "input": str(event.body["input"])[:200]}',
        ),
        tests=("test_runs_streams.py::test_helix_starts_carry_the_whole_input_also_before_the_sub_agent_has_taken_it",),
    ),
    mutant(
        "what a helper says after its run is part of the run",
        "A-136",
        (
            "runs/tables/executed_runs_table.py",
            "    ends = [one for one in (row.length, length) if one is not None]\n",
            "    ends = list[int]()\n",
        ),
        tests=(
            "test_runs_drill_in.py::test_what_is_said_to_a_helper_later_does_not_change_what_the_caller_sees_of_the_run",
            "test_runs_drill_in.py::test_a_run_whose_turn_is_continued_later_stays_what_it_was",
        ),
    ),
    mutant(
        "a stop reaches each level half a second later",
        "A-191",
        (
            "runs/dispatch/lifecycle.py",
            "                followed.cut(reason_below(reason))\n",
            "                self._actor.host.loop.call_later(0.5, followed.cut, reason_below(reason))\n",
        ),
        tests=("test_runs_cancel.py::test_a_stop_is_pushed_and_no_time_passes_before_every_model_is_cut_off",),
    ),
    mutant(
        "runs are cleared after their conversation",
        "A-111",
        (
            "chat/turn/conversation.py",
            "        runs.clear([one.id for one in runs.registry.all()])\n",
            (
                "        self._actor.host.loop.call_later(0.05, lambda: runs.clear("
                "[one.id for one in runs.registry.all()]))\n"
            ),
        ),
        tests=("test_runs_registry.py::test_clearing_a_conversation_clears_its_runs_with_it",),
    ),
    mutant(
        "a run can be opened as another class",
        "A-72",
        (
            "web/agent_router.py",
            '            if not getattr(kind.cls, "create_from_url", False):\n',
            (
                "            names = {one.name for one in parent.registry.page(None, 0, 1000)}\n"
                '            if not getattr(kind.cls, "create_from_url", False) and hop.name not in names:\n'
            ),
        ),
        tests=("test_runs_drill_in.py::test_only_runs_that_were_given_can_be_opened_and_only_under_their_own_class",),
    ),
    mutant(
        "an abort leaves the agents below at work",
        "A-30",
        (
            "kernel/trees/tree.py",
            "        if actor is not None:\n            self.drop(actor, error)\n\n    def vacuum",
            (
                "        if actor is not None:\n"
                "            below = dict(actor.children)\n"
                "            actor.children.clear()\n"
                "            self.drop(actor, error)\n"
                "            actor.children.update(below)\n\n"
                "    def vacuum"
            ),
        ),
        tests=("test_abort.py::test_an_abort_reaches_every_level_below",),
    ),
    mutant(
        "the model may always wait for its children",
        "A-219",
        (
            "chat/tools/persistent_children.py",
            "        if any(kind.blocks for kind in self._kinds.values()):\n",
            "        if self._kinds:\n",
        ),
        tests=("test_teams_companions.py::test_there_is_a_tool_to_wait_only_if_the_model_has_to_wait_for_some_child",),
    ),
    mutant(
        "the workflows of runs end with that of their caller",
        "A-183",
        ("drivers/temporal/workflow.py", "workflow.ParentClosePolicy.ABANDON", "workflow.ParentClosePolicy.TERMINATE"),
        tests=(
            "../temporal/test_workflows.py::test_a_run_is_a_child_workflow_that_outlives_its_parent_and_has_its_time",
        ),
    ),
    mutant(
        "a tool that had returned is called again after a crash",
        "CF-183",
        (
            "chat/models/tool_journal.py",
            '                if status == "done":\n                    return revived(',
            '                if status == "never":\n                    return revived(',
        ),
        tests=(
            (
                "test_chat_recovery.py"
                "::test_a_tool_that_had_returned_is_not_called_again_and_one_that_had_not_is_only_if_it_may_be"
            ),
        ),
    ),
    mutant(
        "a run is given up by the clock, and not because it is silent",
        "B-14",
        (
            "runs/dispatch/timed_run.py",
            "        last = max(found.last, self.since)\n",
            "        last = self.since\n",
        ),
        tests=("test_runs_recovery.py::test_a_run_that_says_something_now_and_then_is_followed_for_any_time",),
    ),
    mutant(
        "a child wakes before the hook of its parent is asked",
        "A-66",
        (
            "web/agent_router.py",
            "        given = with_path(request, path)\n        answer = await",
            (
                "        given = with_path(request, path)\n"
                "        if parent.registry.has(kind.type_ids, hop.name):\n"
                "            await self._node.reach(parent.address.child(kind.type, hop.name), kind, None)\n"
                "        answer = await"
            ),
        ),
        tests=("test_gates.py::test_hooks_are_asked_from_the_root_down_each_before_the_next_agent_wakes",),
    ),
    mutant(
        "persistent children are stored as ephemeral ones",
        "A-224",
        (
            "runs/dispatch/lifecycle.py",
            'mode="ephemeral" if wish.child is None else "persistent",',
            'mode="ephemeral",',
        ),
        tests=("test_teams_companions.py::test_a_blocking_spawn_runs_the_child_and_returns_its_result",),
    ),
    mutant(
        "what keeps a child awake does not keep its tree awake",
        "A-94",
        (
            "kernel/trees/tree.py",
            "        return bool(self.kept_awake)\n",
            "        return any(actor.parent is None for actor in self.kept_awake.values())\n",
        ),
        tests=("test_keep_alive.py::test_a_keep_alive_keeps_the_whole_tree_awake_until_it_is_released",),
    ),
    mutant(
        "an acknowledgement that arrives after the lease opens the gate",
        "B-7",
        (
            "kernel/log/replicated_gate.py",
            "tree.done(sequences, None if self._holds_lease() else OutOfTouch())",
            "tree.done(sequences)",
        ),
        tests=("../unit/test_replicated.py::test_an_acknowledgement_that_comes_after_the_lease_lets_nothing_leave",),
    ),
    mutant(
        "a step begins after the lease",
        "B-7",
        (
            "capabilities/steps.py",
            "                await actor.until_leased()\n                value = function",
            "                value = function",
        ),
        tests=(
            "test_leases.py::test_what_would_act_after_the_lease_waits_for_it_and_then_acts_once[step]",
            "test_leases.py::test_what_would_act_after_the_lease_is_dropped_with_a_tree_that_another_node_took[step]",
        ),
    ),
    mutant(
        "a tool runs after the lease",
        "B-7",
        (
            "chat/models/tool_journal.py",
            "            await turn.journal.until_leased()\n            return args",
            "            return args",
        ),
        tests=("test_leases.py::test_what_would_act_after_the_lease_waits_for_it_and_then_acts_once[tool_call]",),
    ),
    mutant(
        "a caller that is created again has the keys of the deleted one",
        "B-3",
        (
            "kernel/actors/idempotency.py",
            'f"{caller.actor.birthplace} {caller.actor.stem}"',
            'f"{caller.actor.birthplace}"',
        ),
        tests=("test_call_options.py::test_a_caller_that_was_deleted_and_created_again_has_new_keys",),
    ),
    mutant(
        "after a crash a run begins again whose sub-agent was deleted",
        "B-34",
        (
            "runs/dispatch/run_monitor.py",
            "create=is_new",
            "create=True",
        ),
        tests=(
            (
                "test_deletion_depth.py"
                "::test_killed_at_any_commit_of_a_deletion_all_of_it_is_there_or_nothing[process-delete-1]"
            ),
        ),
    ),
]
