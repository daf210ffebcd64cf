-- At an agent that stands for one of another server: events of the runs below the remote run. The number of rows and
-- their size are bounded.
CREATE TABLE sapwood_nested_events (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    run     TEXT NOT NULL,                 -- the id of the nested run
    path    TEXT NOT NULL,                 -- the agent that executes it, from the remote agent: Type:name/Type:name
    parent  TEXT,                          -- the run that started it
    seq     INTEGER NOT NULL,
    at      REAL NOT NULL,
    kind    TEXT NOT NULL,
    bytes   INTEGER NOT NULL,              -- what the row counts for
    body    TEXT NOT NULL                  -- JSON
) STRICT;

CREATE INDEX sapwood_nested_progress ON sapwood_nested_events (run) WHERE kind = 'progress';

-- Where the stream of these events resumes.
CREATE TABLE sapwood_nested_position (
    singleton  INTEGER PRIMARY KEY CHECK (singleton = 1),
    cursor     TEXT NOT NULL
) STRICT;
