-- In each agent of a fork: which agent it is a copy of.
CREATE TABLE sapwood_fork (
    singleton    INTEGER PRIMARY KEY CHECK (singleton = 1),
    source       TEXT NOT NULL,               -- the address of the agent that was copied
    sources      TEXT NOT NULL DEFAULT '[]',  -- JSON: if that one belonged to a fork, of which agents it was a copy, the first one first
    at           REAL NOT NULL,               -- the moment that the copy shows, in seconds since the epoch, UTC
    forked_at    REAL NOT NULL,               -- when it was made
    work         TEXT NOT NULL,               -- what became of unfinished work: hold, drop or run
    hook_called  INTEGER NOT NULL DEFAULT 0,  -- 1 once on_fork has returned
    spent        TEXT                         -- at the root, JSON: what the source had spent, by class and model
) STRICT;
