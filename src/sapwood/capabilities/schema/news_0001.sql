-- How often the agent's state was replaced since its parent follows it.
CREATE TABLE sapwood_state_news (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    seq   INTEGER NOT NULL
) STRICT;
