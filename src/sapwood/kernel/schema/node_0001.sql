-- Which trees have something to do, and when: one row for each, in a file of the node's own.
-- Derived from the trees' own indexes; if it is lost it is made again.
CREATE TABLE sapwood_node_alarms (
    root    TEXT PRIMARY KEY,               -- the address of the tree's root; '': the index is whole
    due_at  REAL,                           -- never later than the earliest thing to do in the tree
    dead    INTEGER NOT NULL DEFAULT 0      -- how many of its agents have dead letters
) STRICT, WITHOUT ROWID;

CREATE INDEX sapwood_node_alarms_by_due ON sapwood_node_alarms (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX sapwood_node_alarms_dead ON sapwood_node_alarms (root) WHERE dead > 0;
