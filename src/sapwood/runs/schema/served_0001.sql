-- Runs that this agent does for its parent.
CREATE TABLE sapwood_served_runs (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    status      TEXT NOT NULL,                 -- running, completed, failed, cancelled
    input       TEXT NOT NULL,                 -- JSON
    stream      INTEGER NOT NULL,              -- what its chunks are stored by
    length      INTEGER,                       -- how many chunks it had when it was over
    output      TEXT,                          -- JSON: what it ended with
    summary     TEXT,
    error       TEXT,
    reason      TEXT,                          -- why it was cancelled
    usage       TEXT NOT NULL DEFAULT '{}',    -- JSON
    progress    TEXT,                          -- JSON: what was last reported
    milestones  TEXT NOT NULL DEFAULT '[]',    -- JSON: what was reached, each once
    cancelled   TEXT,                          -- why a run given from outside is not to go on; NULL: it is
    trace       TEXT,
    started_at  REAL NOT NULL,
    ended_at    REAL,
    journal     TEXT                           -- JSON: when a method executes it and records are kept, its fiber, its attempts and, after its end, what its code did
) STRICT;
