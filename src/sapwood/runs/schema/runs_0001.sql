-- Runs: each one use of a sub-agent by this agent.
CREATE TABLE sapwood_runs (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,
    work          TEXT,                        -- what of this agent's own it is part of: a turn's id, or a fiber; NULL: nothing
    tool_call     TEXT,                        -- the tool call it answers; NULL: code asked for it
    type          TEXT NOT NULL,               -- the type id of the sub-agent's class
    name          TEXT NOT NULL,               -- the sub-agent's name
    mode          TEXT NOT NULL DEFAULT 'ephemeral',  -- ephemeral or persistent
    status        TEXT NOT NULL,               -- queued, running, completed, failed, cancelled, interrupted
    input         TEXT NOT NULL,               -- JSON: a preview of what it was given; the sub-agent has the rest
    output        TEXT,                        -- JSON: what it ended with
    summary       TEXT,                        -- the same, in words
    error         TEXT,
    reason        TEXT,                        -- why it was cancelled or interrupted
    still_running INTEGER NOT NULL DEFAULT 0,  -- 1 if it was given up although the sub-agent may still work on it
    cancelled     TEXT,                        -- the tombstone: why it is not to go on; NULL: it is
    position      INTEGER NOT NULL DEFAULT 0,  -- its position among those of the same tool call
    display       TEXT,                        -- JSON: what clients may show of it
    options       TEXT NOT NULL DEFAULT '{}',  -- JSON: what else was asked of it
    usage         TEXT NOT NULL DEFAULT '{}',  -- JSON: tokens and cost, by model
    seq           INTEGER NOT NULL DEFAULT 0,  -- the number of its last event, once it is over
    delivered     INTEGER NOT NULL DEFAULT 0,  -- which ends were reported, added up: that it was interrupted (1), that it is over (2)
    trace         TEXT,                        -- the W3C trace context it belongs to
    remote        TEXT,                        -- JSON: where it runs and how far it was heard, if not in this tree
    deadline_at   REAL,
    started_at    REAL NOT NULL,
    ended_at      REAL,
    created_by    TEXT,                        -- the fiber, or stored call, that started it, and may start it again
    bytes         INTEGER NOT NULL DEFAULT 0,  -- what its sub-agent holds, with all below, when last measured
    pinned        INTEGER NOT NULL DEFAULT 0   -- 1 if it is kept whatever run_retention says
) STRICT;

CREATE INDEX sapwood_runs_open ON sapwood_runs (number) WHERE status IN ('queued', 'running');
CREATE INDEX sapwood_runs_over ON sapwood_runs (ended_at, type, bytes)
    WHERE status NOT IN ('queued', 'running') AND mode = 'ephemeral' AND NOT pinned;
CREATE INDEX sapwood_runs_of_children ON sapwood_runs (name, number) WHERE mode = 'persistent';
