-- What people were asked to allow beside a limit, in one period, and have allowed, kept at the root of a tree. Of each
-- limit, the current period and the two nearest to it are kept.
CREATE TABLE sapwood_limit_extensions (
    question   TEXT PRIMARY KEY,           -- id of the question, at the agent that has the limit
    agent      TEXT NOT NULL,              -- file stem of that agent
    name       TEXT NOT NULL,              -- tokens or dollars
    period     TEXT NOT NULL,              -- hour, day, week or month
    zone       TEXT NOT NULL,              -- the time zone of the calendar
    amount     REAL NOT NULL,              -- the limit itself, in tokens or dollars
    starts_at  REAL NOT NULL,              -- the start of the period
    extra      INTEGER NOT NULL,           -- what is asked for, in tokens or nanodollars
    allowed_at REAL                        -- NULL: not allowed yet, or denied
) STRICT, WITHOUT ROWID;

CREATE INDEX sapwood_limit_extensions_of ON sapwood_limit_extensions (agent, name, period, zone, amount, starts_at);

-- The turns that wait until a person allows more.
CREATE TABLE sapwood_limit_waits (
    waiter    TEXT NOT NULL,               -- file stem of the agent whose turn waits
    turn      TEXT NOT NULL,               -- id of the turn
    path      TEXT NOT NULL,               -- address of that agent
    agent     TEXT NOT NULL,               -- file stem of the agent that has the limit
    name      TEXT NOT NULL,
    period    TEXT NOT NULL,
    zone      TEXT NOT NULL,
    amount    REAL NOT NULL,
    starts_at REAL NOT NULL,
    missing   INTEGER NOT NULL,            -- how much more the request needs, in tokens or nanodollars
    outcome   TEXT,                        -- '': the turn may continue; a reason: it must not; NULL: it waits
    PRIMARY KEY (waiter, turn)
) STRICT, WITHOUT ROWID;

CREATE INDEX sapwood_limit_waits_of ON sapwood_limit_waits (agent, name, period, zone, amount, starts_at);
