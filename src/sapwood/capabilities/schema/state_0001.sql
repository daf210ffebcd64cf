-- The agent's state: one value, what clients see.
CREATE TABLE sapwood_state (
    singleton  INTEGER PRIMARY KEY CHECK (singleton = 1),
    version    INTEGER NOT NULL,      -- the class's state_version when it was written
    value      TEXT NOT NULL          -- JSON
) STRICT;
