-- Functions that survive a crash. A row is there before its function runs; one that is
-- not over and that nobody runs was interrupted, and is recovered.
CREATE TABLE sapwood_fibers (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    name        TEXT NOT NULL,
    key         TEXT UNIQUE,                    -- who starts it again under the same key gets this one; NULL: fibers.run
    method      TEXT,                           -- what to call again; NULL: a function that cannot be found by name
    arguments   BLOB,                           -- msgpack: a map from parameter to value
    status      TEXT NOT NULL,                  -- running, waiting, completed, failed, cancelled, interrupted
    due_at      REAL,                           -- when to recover or resume it; NULL: it is over
    checkpoint       BLOB,                           -- msgpack: where it was
    result      BLOB,                           -- msgpack
    error       TEXT,
    recoveries  INTEGER NOT NULL DEFAULT 0,     -- how often it was recovered without any progress
    failures    INTEGER NOT NULL DEFAULT 0,     -- how many of those ended by an exception
    created_at  REAL NOT NULL,
    ended_at    REAL,
    trace       TEXT                            -- W3C trace context of what started it
) STRICT;

CREATE INDEX sapwood_fibers_by_due ON sapwood_fibers (due_at) WHERE due_at IS NOT NULL;
