-- What an agent did: one row for each turn, step, tool call, wait, run, scheduled or queued call, and fiber.
CREATE TABLE sapwood_spans (
    number      INTEGER PRIMARY KEY,            -- in the order in which they began
    parent      INTEGER,                        -- the span that it is part of; NULL: it is part of none
    work        TEXT NOT NULL,                  -- the id of the turn, run, call or fiber
    kind        TEXT NOT NULL,                  -- turn, step, tool, wait, run, call or fiber
    name        TEXT NOT NULL,                  -- the model, tool, class, method, or what it waits for
    step        INTEGER,                        -- the model request of the turn, from 1; NULL: of no step
    attempt     INTEGER NOT NULL,               -- from 1
    incarnation INTEGER NOT NULL,               -- in which it began
    began_at    REAL NOT NULL,
    first_at    REAL,                           -- when the first chunk of a response arrived
    ended_at    REAL,                           -- NULL: it is open, or a crash interrupted it
    status      TEXT NOT NULL,                  -- running, waiting, completed, failed, cancelled, interrupted, skipped
    facts       TEXT NOT NULL                   -- JSON: tokens, cost, arguments, sizes, the code of an error
) STRICT;

CREATE INDEX sapwood_spans_by_work ON sapwood_spans (work);
CREATE INDEX sapwood_spans_open ON sapwood_spans (number) WHERE status IN ('running', 'waiting');

-- The times that this agent was in memory and recorded anything: between two of them, its process ended or it slept.
CREATE TABLE sapwood_incarnations (
    number      INTEGER PRIMARY KEY,
    began_at    REAL NOT NULL,
    version     TEXT NOT NULL,                  -- of sapwood
    crashed_at  REAL                            -- when a process took over from one that had been killed, since the row before; NULL: none did
) STRICT;
