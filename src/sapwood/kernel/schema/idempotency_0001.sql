-- How calls with an idempotency key ended; written in the last slice of the call.
CREATE TABLE sapwood_idempotency (
    caller     TEXT NOT NULL,                  -- first address and file stem of the calling agent; '' is the program itself
    key        TEXT NOT NULL,
    method     TEXT NOT NULL,
    arguments  BLOB NOT NULL,                  -- digest: the same key with other arguments is refused
    is_error   INTEGER NOT NULL,
    outcome    BLOB NOT NULL,                  -- msgpack: the result, or the error
    ended_at   REAL NOT NULL,
    PRIMARY KEY (caller, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX sapwood_idempotency_by_end ON sapwood_idempotency (ended_at);
