-- Which agents of the tree have something to do, and when, kept at the root so that sleeping
-- ones are found. Derived: the truth is in the database of each agent.
CREATE TABLE sapwood_alarms (
    owner   TEXT PRIMARY KEY,               -- the agent's address
    due_at  REAL,                           -- never later than the earliest thing it has to do
    dead    INTEGER NOT NULL DEFAULT 0      -- 1 if it has dead letters
) STRICT, WITHOUT ROWID;

CREATE INDEX sapwood_alarms_by_due ON sapwood_alarms (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX sapwood_alarms_dead ON sapwood_alarms (dead) WHERE dead > 0;
