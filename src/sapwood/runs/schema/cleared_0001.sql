-- How often the runs of other servers were cleared, so that a run with the same id gets a new session.
CREATE TABLE sapwood_cleared_runs (
    run     INTEGER PRIMARY KEY,            -- 8 bytes of the SHA-256 of the run's id
    clears  INTEGER NOT NULL
) STRICT;
