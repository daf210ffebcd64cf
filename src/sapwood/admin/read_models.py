"""How the tables of all packages are read, for operators and for comparisons. The agents may be asleep."""

from __future__ import annotations

from sapwood.capabilities.capability_reads import dead_letters, stored_state, waiting_calls
from sapwood.capabilities.compared_content import COMPARED_FILES, COMPARED_STATE
from sapwood.capabilities.file_reads import file_totals, stored_files
from sapwood.capabilities.span_reads import recorded_incarnations
from sapwood.capabilities.unfinished_reads import call_arguments, unfinished_work
from sapwood.chat.store.chunk_reads import chunk_count, stored_chunks
from sapwood.chat.store.compared_messages import COMPARED_MESSAGES
from sapwood.chat.store.message_reads import message_count, stored_messages
from sapwood.chat.store.request_reads import sent_requests
from sapwood.chat.store.tool_call_reads import unanswered_tool_calls
from sapwood.chat.store.turn_reads import open_turns, turn_prompts
from sapwood.kernel.ports.read_models import ReadModels
from sapwood.runs.tables.executed_run_spans import spans_after, spans_of, work_cursor, works
from sapwood.runs.tables.run_reads import (
    listed_runs,
    open_questions,
    run_inputs,
    stored_decisions,
    unfinished_runs,
    whole_question,
)

READ_MODELS = ReadModels(
    state=stored_state,
    dead_letters=dead_letters,
    waiting_calls=waiting_calls,
    unfinished_work=unfinished_work,
    runs=listed_runs,
    unfinished_runs=unfinished_runs,
    open_turns=open_turns,
    messages=stored_messages,
    message_count=message_count,
    chunks=stored_chunks,
    chunk_count=chunk_count,
    files=stored_files,
    file_totals=file_totals,
    decisions=stored_decisions,
    questions=(unanswered_tool_calls, open_questions),
    question=whole_question,
    spans=spans_of,
    works=works,
    work_cursor=work_cursor,
    inputs=(run_inputs, turn_prompts, call_arguments),
    timeline=spans_after,
    incarnations=recorded_incarnations,
    sent_requests=sent_requests,
    compared=(COMPARED_STATE, COMPARED_MESSAGES, COMPARED_FILES),
)
"""What operators read of agents that may be asleep."""
