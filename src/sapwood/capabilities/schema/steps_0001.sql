-- What the steps of unfinished work returned: each runs once, however often the work is begun again.
CREATE TABLE sapwood_steps (
    work    TEXT NOT NULL,      -- which call or fiber
    name    TEXT NOT NULL,
    result  BLOB NOT NULL,      -- msgpack
    PRIMARY KEY (work, name)
) STRICT, WITHOUT ROWID;
