-- What the steps of unfinished work returned: each runs once, however often the work is begun again.
CREATE TABLE sapwood_steps (
    work    TEXT NOT NULL,      -- which call or fiber
    name    TEXT NOT NULL,
    result  BLOB NOT NULL,      -- msgpack
    began_at REAL,              -- NULL: it is no step of the user's
    ended_at REAL,              -- of a sleep, until when it lasts
    PRIMARY KEY (work, name)
) STRICT, WITHOUT ROWID;
