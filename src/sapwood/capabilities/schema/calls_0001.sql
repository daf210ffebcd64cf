-- Calls to come: what was scheduled, and what was queued. A row moves on, or goes, in the
-- commit of the last thing its method writes.
CREATE TABLE sapwood_calls (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at      REAL,                           -- seconds since the epoch, UTC; NULL: after the one before it in its queue
    method      TEXT NOT NULL,
    arguments   BLOB NOT NULL,                  -- msgpack: a map from parameter to value
    schedule    TEXT,                           -- JSON: when it is to be called; NULL: it was queued
    dedup_key   TEXT,                           -- a schedule with the same key replaces this one; NULL: none does
    queue       TEXT,                           -- which queue it is in; NULL: it was scheduled
    retry       TEXT NOT NULL,                  -- JSON: attempts, base and most in seconds
    failures    INTEGER NOT NULL DEFAULT 0,     -- how often this call has raised
    crashes     INTEGER NOT NULL DEFAULT 0,     -- how often the process may have died of it
    error       TEXT,                           -- what it raised last
    created_at  REAL NOT NULL,
    trace       TEXT,                           -- W3C trace context of the code that stored it
    occurrence  INTEGER NOT NULL DEFAULT 0      -- which one of a repeated call this is, from 0
) STRICT;

CREATE INDEX sapwood_calls_by_due ON sapwood_calls (due_at) WHERE due_at IS NOT NULL;
CREATE UNIQUE INDEX sapwood_calls_by_dedup_key ON sapwood_calls (dedup_key) WHERE dedup_key IS NOT NULL;
CREATE INDEX sapwood_calls_by_queue ON sapwood_calls (queue, number) WHERE queue IS NOT NULL;

-- Calls that were given up. Nobody tries them again by themselves.
CREATE TABLE sapwood_dead_letters (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    origin      TEXT NOT NULL UNIQUE,           -- the id of the call or fiber; one that repeats has one letter
    method      TEXT NOT NULL,
    arguments   BLOB NOT NULL,
    schedule    TEXT,
    queue       TEXT,
    retry       TEXT NOT NULL,
    code        TEXT NOT NULL,                  -- why, in one word: the code of an error
    error       TEXT NOT NULL,                  -- why, in a sentence
    attempts    INTEGER NOT NULL,
    occurrences INTEGER NOT NULL DEFAULT 1,     -- how often a repeated call was given up
    created_at  REAL NOT NULL,
    failed_at   REAL NOT NULL,
    trace       TEXT,
    held        TEXT                            -- JSON: of a call that a fork holds, what else its row in sapwood_calls had
) STRICT;
