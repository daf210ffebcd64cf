-- At a root whose tree has a limit of runs: the agents that may have given runs that are not over.
CREATE TABLE sapwood_givers (
    agent  TEXT PRIMARY KEY,                 -- file stem of the agent
    above  TEXT NOT NULL                     -- JSON: the file stems of those whose limits it counts for, itself included
) STRICT, WITHOUT ROWID;
