-- Decisions of people about tool calls and about what code asks, and their outcomes. Rows are appended and never changed: each has the hash of the one before.
CREATE TABLE sapwood_decisions (
    number         INTEGER PRIMARY KEY AUTOINCREMENT,
    kind           TEXT NOT NULL,     -- approved, denied, answered: what code asks, or outcome: what came of an approved call
    question       TEXT NOT NULL,     -- the id of the question: of a tool call, that of the call
    tool           TEXT NOT NULL,     -- its name; ask: code asks
    digest         TEXT NOT NULL,     -- SHA-256 of the question as it was shown
    shown          TEXT NOT NULL,     -- JSON: the arguments as they were shown; of what code asks, prompt, options and schema
    arguments      TEXT,              -- JSON: the arguments of the call, if it was approved with others; of what code asks, the answer
    reason         TEXT,              -- why it was denied; of an outcome, the result or the error, shortened
    user           TEXT,              -- the id of the user who answered; NULL: unknown
    authentication TEXT,              -- how the user was authenticated; NULL: not at all
    channel        TEXT NOT NULL,     -- http, socket, code and an address; of an outcome, completed or failed
    at             REAL NOT NULL,
    previous       TEXT NOT NULL,     -- the hash of the row before; empty in the first row
    hash           TEXT NOT NULL      -- SHA-256 of all other columns but the number
) STRICT;

CREATE INDEX sapwood_decisions_by_question ON sapwood_decisions (question);
CREATE TRIGGER sapwood_decisions_are_not_updated BEFORE UPDATE ON sapwood_decisions
    BEGIN SELECT RAISE(ABORT, 'sapwood_decisions is append-only'); END;
CREATE TRIGGER sapwood_decisions_are_not_deleted BEFORE DELETE ON sapwood_decisions
    BEGIN SELECT RAISE(ABORT, 'sapwood_decisions is append-only'); END;
