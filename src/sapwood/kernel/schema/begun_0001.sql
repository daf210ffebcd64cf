-- At a root whose tree has a limit of runs in a minute: when the runs of the last minute began.
CREATE TABLE sapwood_begun (
    at     REAL NOT NULL,
    above  TEXT NOT NULL                     -- JSON: the file stems of those whose limits it counts for
) STRICT;
