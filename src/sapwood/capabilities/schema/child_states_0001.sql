-- How far this agent has followed the states of its children.
CREATE TABLE sapwood_child_states (
    generation  INTEGER PRIMARY KEY,   -- which child: one that is made anew has another
    seq         INTEGER NOT NULL       -- the last change that its methods were told of
) STRICT;
