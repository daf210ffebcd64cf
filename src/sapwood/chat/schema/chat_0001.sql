-- A conversation as its clients see it: one row for each message of all branches, in order.
CREATE TABLE sapwood_messages (
    position    INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    role        TEXT NOT NULL,
    parent      INTEGER,                        -- the position of the message that it follows; NULL: it is the first
    is_active   INTEGER NOT NULL DEFAULT 1,     -- 1 if it is on the active path, which is what is shown
    created_at  REAL NOT NULL,
    body        TEXT NOT NULL                   -- JSON: the whole UIMessage
) STRICT;

CREATE INDEX sapwood_messages_by_path ON sapwood_messages (is_active, position, parent);
CREATE INDEX sapwood_messages_by_parent ON sapwood_messages (parent);

-- The same conversation as the model sees it.
CREATE TABLE sapwood_model_messages (
    position    INTEGER PRIMARY KEY AUTOINCREMENT,
    message     TEXT NOT NULL,                  -- the id of the message above that it is part of
    kind        TEXT NOT NULL,                  -- request or response
    is_active   INTEGER NOT NULL DEFAULT 1,     -- 1 if the model sees it: on the active path, and not replaced there
    place       INTEGER,                        -- the position in whose place it stands; NULL: it replaces nothing
    replaces    TEXT,                           -- JSON: the positions that it replaces on paths with its message
    body        TEXT NOT NULL                   -- JSON: one ModelMessage
) STRICT;

CREATE INDEX sapwood_model_messages_by_message ON sapwood_model_messages (message);
CREATE INDEX sapwood_model_messages_that_replace ON sapwood_model_messages (position) WHERE replaces IS NOT NULL;

-- Turns: one answer each.
CREATE TABLE sapwood_turns (
    number        INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT NOT NULL UNIQUE,         -- what its frames are called by; the client's request id, or ours
    message       TEXT NOT NULL,                -- the id of the assistant's message that it writes
    prompt_ids    TEXT NOT NULL,                -- JSON: the ids of the user's messages it answers
    run           TEXT,                         -- the run it does for the agent's parent; NULL: it does none
    user          TEXT,                         -- the id of the user who sent the message; NULL: no user did
    status        TEXT NOT NULL,                -- queued, running, waiting, completed, failed, cancelled, skipped
    continues     INTEGER NOT NULL DEFAULT 0,   -- how often it went on after it had waited for somebody
    last_kept     TEXT,                         -- the id of the message that it follows, perhaps in another branch; NULL: the last one
    last_shown    TEXT,                         -- the id of the last message that its client showed; NULL: of no matter
    previous_end  TEXT,                         -- the id of the last message of the path that it left to answer again; NULL: it left none
    new_messages  TEXT NOT NULL DEFAULT '[]',   -- JSON: messages that join the conversation when it begins
    body          TEXT NOT NULL DEFAULT '{}',   -- JSON: what else the client sent with its request
    client_tools  TEXT NOT NULL DEFAULT '[]',   -- JSON: the tools the client can run
    steps         INTEGER NOT NULL DEFAULT 0,   -- how often the model was asked
    retries       INTEGER NOT NULL DEFAULT 0,   -- how often it was asked to mend what it said
    usage         TEXT NOT NULL DEFAULT '{}',   -- JSON: what was used, by model
    output        TEXT,                         -- JSON: what it ended with, if that is more than text
    error         TEXT,
    reason        TEXT,                         -- why it was cancelled; the code of an error that may pass, or of a limit
    cancelled     TEXT,                         -- cancelled or cleared, from the moment that it is to end
    next_seq      INTEGER NOT NULL DEFAULT 0,   -- the number of the next chunk; none is ever used twice
    recovering_at REAL,                         -- since when it is begun again after a crash; NULL: it is not
    created_at    REAL NOT NULL,
    ended_at      REAL
) STRICT;

CREATE INDEX sapwood_turns_open ON sapwood_turns (number) WHERE status IN ('queued', 'running', 'waiting');

-- Tool calls of turns that are not over: each is made once, and somebody may have to be asked first.
CREATE TABLE sapwood_tool_calls (
    id          TEXT PRIMARY KEY,               -- the tool call's own id
    turn        INTEGER NOT NULL,
    name        TEXT NOT NULL,
    input       TEXT NOT NULL,                  -- JSON
    status      TEXT,                           -- running, done or failed; NULL: it has not begun
    result      TEXT,                           -- JSON: what it returned
    error       TEXT,                           -- what it raised
    answerer    TEXT,                           -- who answers it: approval, client, run, the same soon; NULL: a tool runs
    answer      TEXT,                           -- JSON: the answer, as kind and value
    auto_continue INTEGER NOT NULL DEFAULT 0,   -- 1 if the turn continues after the answer
    created_at  REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sapwood_tool_calls_by_turn ON sapwood_tool_calls (turn);
