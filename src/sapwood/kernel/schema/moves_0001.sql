-- At the root of a tree that was moved: the addresses that it had before, oldest first. Its ids derive from the first.
CREATE TABLE sapwood_former_addresses (
    number   INTEGER PRIMARY KEY,
    address  TEXT NOT NULL UNIQUE,           -- the address of the root
    until    REAL NOT NULL                   -- when it was moved, in seconds since the epoch, UTC
) STRICT;
