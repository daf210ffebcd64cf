-- What a turn, or a run, has streamed.
CREATE TABLE sapwood_chunks (
    stream  INTEGER NOT NULL,                  -- the number of the turn, or of the run
    first   INTEGER NOT NULL,                  -- the number of the first chunk in it
    step    INTEGER NOT NULL,                  -- below 0: only those who watch the run still need it
    at      REAL NOT NULL,                     -- when it was said
    body    TEXT NOT NULL,                     -- JSON: an array of chunks
    PRIMARY KEY (stream, first)
) STRICT, WITHOUT ROWID;
