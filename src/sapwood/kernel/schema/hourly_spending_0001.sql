-- What models were used for in each hour, kept at the root of a tree: by the class of the agent, the model, and the user
-- whose message began the turn. A correction of a count that comes later counts in its own hour.
CREATE TABLE sapwood_hourly_spending (
    hour           INTEGER NOT NULL,        -- when it starts, in seconds since the epoch, UTC
    class          TEXT NOT NULL,           -- the type id of the agent's class
    model          TEXT NOT NULL,
    user           TEXT NOT NULL,           -- the id of the user; '': no user began the turn
    requests       INTEGER NOT NULL,
    input_tokens   INTEGER NOT NULL,
    output_tokens  INTEGER NOT NULL,
    nanodollars    INTEGER NOT NULL,        -- the cost of the requests whose price is known
    unpriced       INTEGER NOT NULL,        -- requests whose price nobody knows
    PRIMARY KEY (hour, class, model, user)
) STRICT, WITHOUT ROWID;
