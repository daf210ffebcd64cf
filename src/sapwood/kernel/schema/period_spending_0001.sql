-- What models were used for in each period of a limit, kept at the root of a tree: by an agent with such a limit and
-- everything below it. Of each limit, the current period and the two nearest to it are kept.
CREATE TABLE sapwood_period_spending (
    agent        TEXT NOT NULL,             -- file stem of the agent
    period       TEXT NOT NULL,             -- hour, day, week or month
    zone         TEXT NOT NULL,             -- the time zone of the calendar
    starts_at    REAL NOT NULL,
    tokens       INTEGER NOT NULL,
    nanodollars  INTEGER NOT NULL,          -- the cost of the requests whose price is known
    PRIMARY KEY (agent, period, zone, starts_at)
) STRICT, WITHOUT ROWID;
