-- How often the agent's state was replaced since its parent follows it.
CREATE TABLE sapwood_state_news (
    singleton  INTEGER PRIMARY KEY CHECK (singleton = 1),
    seq        INTEGER NOT NULL
) STRICT;
