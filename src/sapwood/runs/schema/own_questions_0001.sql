-- Questions that the code of this agent asks a person. A row is deleted when the fiber that asks has ended.
CREATE TABLE sapwood_own_questions (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT NOT NULL UNIQUE,
    fiber     INTEGER NOT NULL,  -- the number of the fiber that asks
    work      TEXT NOT NULL,     -- the same, as sapwood_steps names it
    key       TEXT NOT NULL,     -- the place in the fiber, or the key that the code gives
    run       TEXT,              -- the run that waits for the answer; NULL: none
    tool_call TEXT,              -- the tool call whose code asks; NULL: none
    body      TEXT NOT NULL,     -- JSON: the question
    answer    TEXT,              -- JSON: how it was answered, and the value or the reason; NULL: it is open
    asked_at  REAL NOT NULL,
    answered_at REAL,            -- NULL: it is open
    UNIQUE (work, key)
) STRICT;
