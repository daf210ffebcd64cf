-- Responses of the OpenAI API: each is a part of a turn, up to its end or to where it waits for the client.
CREATE TABLE sapwood_openai_responses (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,           -- the last part of the id that the client gets
    turn       TEXT NOT NULL,                  -- the id of the turn
    user       TEXT,                           -- the id of the user who sent the request; NULL: no user did
    digest     TEXT NOT NULL,                  -- SHA-256 of the request: a repeated key comes with the same one
    request    TEXT NOT NULL,                  -- JSON: the fields of the request that the response repeats
    first      INTEGER NOT NULL,               -- the number of the turn's last event before it
    part       INTEGER NOT NULL,               -- how many parts the message of the turn had before it
    spent      TEXT NOT NULL,                  -- JSON: what the turn had used before it, by model
    last       INTEGER,                        -- the number of the turn's last event in it; NULL: it has not ended
    result     TEXT,                           -- JSON: its status, output, usage and error; NULL: it has not ended
    created_at REAL NOT NULL,
    ended_at   REAL
) STRICT;

CREATE INDEX sapwood_openai_responses_by_turn ON sapwood_openai_responses (turn);

-- A conversation that is cleared takes its responses along.
CREATE TRIGGER sapwood_openai_responses_end_with_their_turn AFTER DELETE ON sapwood_turns
BEGIN DELETE FROM sapwood_openai_responses WHERE turn = OLD.id; END;
