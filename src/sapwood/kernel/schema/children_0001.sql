-- The children of this agent. A row is written before its child first wakes, and a child
-- exists exactly as long as it has a row that is not a tombstone.
CREATE TABLE sapwood_children (
    generation  INTEGER PRIMARY KEY AUTOINCREMENT,  -- creation order; never used twice, so a file name never is
    type        TEXT NOT NULL,
    name        TEXT NOT NULL,
    created_at  REAL NOT NULL,                      -- seconds since the epoch, UTC
    deleted_at  REAL,                               -- a tombstone: the files of its subtree are still being removed
    trace       TEXT                                -- W3C trace context of what created it
) STRICT;

CREATE UNIQUE INDEX sapwood_children_alive ON sapwood_children (type, name) WHERE deleted_at IS NULL;
CREATE INDEX sapwood_children_by_type ON sapwood_children (type, generation) WHERE deleted_at IS NULL;
CREATE INDEX sapwood_children_deleted ON sapwood_children (generation) WHERE deleted_at IS NOT NULL;

-- How many children are alive, so that nobody has to count them.
CREATE TABLE sapwood_children_count (
    singleton  INTEGER PRIMARY KEY CHECK (singleton = 1),
    alive      INTEGER NOT NULL
) STRICT;

INSERT INTO sapwood_children_count VALUES (1, 0);
