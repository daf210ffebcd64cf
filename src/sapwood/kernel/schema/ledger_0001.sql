-- What a whole tree has used up, kept at its root. One row for each agent below the root
-- that has children; the row named '' is the sum over the tree.
CREATE TABLE sapwood_ledger (
    holder    TEXT PRIMARY KEY,              -- file stem of the agent, or '' for the whole tree
    children  INTEGER NOT NULL DEFAULT 0,    -- never less than the agent really has
    bytes     INTEGER NOT NULL DEFAULT 0     -- only in the sum: what the tree may use before it has to ask again
) STRICT, WITHOUT ROWID;

INSERT INTO sapwood_ledger (holder) VALUES ('');
