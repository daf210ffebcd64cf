-- What models were used for in a whole tree, kept at its root. Each agent has a row for each run and model,
-- and for each model one more, with the run '*': what it and everything below it have used.
CREATE TABLE sapwood_spending (
    agent          TEXT NOT NULL,           -- file stem of the agent
    run            TEXT NOT NULL,           -- the run, or turn; '': the root's own turns; '*': the agent and all below it
    model          TEXT NOT NULL,
    path           TEXT NOT NULL,           -- the agent's address
    requests       INTEGER NOT NULL,
    input_tokens   INTEGER NOT NULL,
    output_tokens  INTEGER NOT NULL,
    nanodollars    INTEGER NOT NULL,        -- the cost of the requests whose price is known
    unpriced       INTEGER NOT NULL,        -- requests whose price nobody knows
    PRIMARY KEY (agent, run, model)
) STRICT, WITHOUT ROWID;
