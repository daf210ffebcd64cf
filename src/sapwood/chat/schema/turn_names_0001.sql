-- Other ids by which clients of a protocol know turns; made when the first is given.
CREATE TABLE sapwood_turn_names (
    id    TEXT PRIMARY KEY,
    turn  TEXT NOT NULL,  -- the id of the turn
    after TEXT NOT NULL   -- the cursor of the last event before those that belong to the name
) STRICT, WITHOUT ROWID;
