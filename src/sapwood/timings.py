"""How long a node waits, and how much it handles at once: plain values, handed in once.

They are internal: `Settings` has what users may change. Only tests hand in other values than the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The timeouts, intervals and batch sizes that tests change."""

    checkpoint_frames: int = 1000
    """Frames to which the WAL of a database may grow before it is copied into the file: a checkpoint then costs well
    under 2 ms."""
    reader_frames: int = 65_536
    """Frames to which the WAL of a database may grow during `read_sql`, which is interrupted then: 128 MiB."""
    mark_interval: float = 5.0
    """Seconds after which it is stored how far a database was written that stays open."""
    history_delay: float = 1.0
    """Seconds after a commit until it is recorded in the history, if nothing else was recorded before."""
    history_batch_bytes: int = 1024 * 1024
    """Bytes of pages that are gathered for the history, at most."""
    history_base_interval: float = 86400.0
    """Seconds after which the history of a tree continues with a new base."""
    history_retry_delay: float = 60.0
    """Seconds after which a history that could not be written is continued."""
    history_sweep_interval: float = 3600.0
    """Seconds between two searches for histories that are too old."""
    storage_probe_interval: float = 1.0
    """Seconds between two checks whether a data folder that refused a write can be written."""

    chunk_flush_delay: float = 0.03
    """Seconds for which the chunks of an answer are collected before they are stored and sent."""
    record_delay: float = 0.1
    """Seconds after which the record of a model request is committed, if nothing else was."""
    turn_end_delay: float = 0.03
    """Seconds between the last chunk and the end of a turn. Sooner, clients keep a continuation as a separate
    message, and lose the last words before an error."""

    queued_turns: int = 256
    """Turns of clients that may wait in one conversation."""

    run_cancel_timeout: float = 5.0
    """Seconds that a sub-agent has to end a cancelled run; then it is aborted."""
    hook_cancel_timeout: float = 2.0
    """Seconds that the run-level hooks of capabilities have to end when a turn is cancelled, or waits."""
    remote_stop_timeout: float = 5.0
    """Seconds that the destruction of a root waits for other servers to stop its runs there."""
    remote_look_delay: float = 0.5
    """Seconds before the first look at a task of another system that is not streamed."""
    remote_silence_timeout: float = 60.0
    """Seconds without a reply, or an event, after which a remote agent counts as unreachable."""
    run_cleanup_batch: int = 50
    """Finished runs that are read at once to be deleted, before other work has a turn."""
    event_queue: int = 4096
    """Events that may wait for a subscriber; a slower one reads those it missed from where they are stored."""
    event_cursor_chars: int = 1024
    """Characters of a cursor that each event may carry; a longer cursor is not in every event."""
    event_keepalive_interval: float = 15.0
    """Seconds of silence after which an event stream over HTTP sends a sign of life."""

    idempotency_keys: int = 10_000
    """Idempotency keys that one agent remembers; the oldest are forgotten first."""

    log_message_bytes: int = 900_000
    """Bytes of pages in one message of the log; NATS takes a megabyte unless it is told otherwise."""
    log_batch: int = 900
    """Messages that are appended to the log at once; it takes a thousand."""
    full_log_interval: float = 2.0
    """Seconds between two checks whether a log that was full has room."""
    log_leader_timeout: float = 30.0
    """Seconds to wait for a log that no server leads."""
    replica_lag_timeout: float = 8.0
    """Seconds that a replica may be ahead of the leader before the leader counts as damaged: a new leader may still
    have to apply what was agreed on, and an old one that stood still has to hear of the new one."""
    snapshot_interval: float = 1.0
    """Seconds between two checks which trees need a snapshot."""
    snapshot_min_bytes: int = 1024 * 1024
    """Bytes of a tree in the log below which no snapshot is made."""
    snapshot_max_pages: int = 32768
    """Pages that may change while a snapshot is made: 64 MB. With more, it is given up."""
    handover_expiry: float = 3600.0
    """Seconds after which a tree that was handed over counts as never taken."""

    pipe_check_interval: float = 0.25
    """Seconds between two checks whether packets between two nodes are missing."""
    pipe_ping_after: float = 1.0
    """Seconds of silence after which the other node is asked whether it is there."""
    pipe_timeout: float = 5.0
    """Seconds of silence after which the other node counts as gone."""
    pipe_absence_timeout: float = 2.0
    """Seconds for which no node may listen at the other end: it may be on its way from one NATS server to another."""
    pipe_ack_delay: float = 0.02
    """Seconds after which packets that arrived are acknowledged, at the latest."""
    pipe_high_water: int = 4 * 1024 * 1024
    """Unacknowledged bytes above which a pipe pauses its writer."""
    pipe_low_water: int = 1024 * 1024
    """Unacknowledged bytes below which the writer may continue."""

    nats_connect_timeout: float = 30.0
    """Seconds in which one of the NATS servers has to be reached."""
    nats_interactive_timeout: float = 5.0
    """The same for a command at a terminal."""
    nats_answer_timeout: float = 10.0
    """Seconds that a NATS server has to answer while a cluster is founded."""
    nats_no_room_timeout: float = 15.0
    """Seconds for which servers may report that they have no room for a stream: waiting longer does not help."""
    log_append_timeout: float = 90.0
    """Seconds in which an append is tried again; well within the time for which the log knows the ids it stored."""
    log_attempt_timeout: float = 3.0
    """Seconds to wait for one answer of the log; large appends get more."""
    alarm_page: int = 1000
    """Lines of the index of alarms that are read at once."""
    alarm_cleanup_delay: float = 5.0
    """Seconds after which an alarm's empty line is removed: another one may replace it before."""
    whole_stream_shards: int = 64
    """Shards of one stream above which one question asks for the whole stream."""
    lease_page: int = 1000
    """Leases that are read at once."""
    lease_retention: int = 600
    """Whole seconds for which a lease is kept that is not renewed: names of nodes may be new at every start."""
    election_delay: float = 1.5
    """Seconds after which another server leads a stream, mostly, once the leader was asked to step down."""
    archive_retries: int = 6
    """Retries of one request to the object storage."""

    worker_silence_timeout: float = 60.0
    """Seconds without a sign of life, beyond `Settings.fatal_after`, after which a worker is killed."""
    worker_answer_timeout: float = 5.0
    """Seconds that a silent worker has to say where it is, once it was asked, before it is killed."""
    worker_exit_timeout: float = 15.0
    """Seconds beyond the grace period that a worker has to exit."""
    worker_steady_after: float = 10.0
    """Seconds of life after which a worker that died is started again at once; others wait first."""
    worker_start_interval: float = 0.5
    """Seconds after which a worker that could not be started is tried again."""
    worker_connect_timeout: float = 10.0
    """Seconds to wait for another worker that is being restarted."""

    move_retry_delay: float = 0.25
    """Seconds until the other server of a move is asked again the first time; twice as many each time after it."""
    move_retry_most: float = 30.0
    """The longest of these times."""
    arrival_timeout: float = 86400.0
    """Seconds for which the address of a tree is held that another server sends, and has not sent as a whole."""

    upload_retention: float = 86400.0
    """Seconds for which a file that a client uploaded is kept until something refers to it, and half an upload."""
    upload_grace: float = 3600.0
    """Seconds for which an upload to the archive may continue after its node has lost the tree."""
    request_header_timeout: float = 10.0
    """Seconds that a client has to send all headers of a request, from the moment it connects or the last response
    ends."""
    request_body_timeout: float = 20.0
    """Seconds that a client has to send the body of a request, beside those that `request_body_rate` allows."""
    request_body_rate: int = 500
    """Bytes of a request body that have to arrive in each second, on average."""
    response_stall_timeout: float = 60.0
    """Seconds for which an HTTP client may read nothing of the response that waits for it."""
    connection_log_interval: float = 10.0
    """Seconds between two log lines about the same limit on connections."""

    socket_close_timeout: float = 10.0
    """Seconds that a client has to take the close frame of its socket."""
    counted_agents: int = 200
    """Agents whose waiting calls are counted for one report of the busiest trees."""
    counted_calls: int = 1000
    """Waiting calls that are counted for each of them, at most."""
    client_steady_after: float = 5.0
    """Seconds that a client's socket has to last for the next loss to count as the first."""


DEFAULTS = Timings()
