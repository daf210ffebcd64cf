-- The periods in which a limit of the agent has reached its `warn_at`, and the hook for that was queued. Of each limit,
-- the current period and the two nearest to it are kept.
CREATE TABLE sapwood_limit_warnings (
    name       TEXT NOT NULL,               -- tokens or dollars
    period     TEXT NOT NULL,               -- hour, day, week or month
    zone       TEXT NOT NULL,               -- the time zone of the calendar
    starts_at  REAL NOT NULL,               -- when the period starts
    threshold  REAL NOT NULL,               -- what was reached, in tokens or dollars
    PRIMARY KEY (name, period, zone, starts_at, threshold)
) STRICT, WITHOUT ROWID;
