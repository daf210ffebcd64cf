-- Which numbered script of which owner this file has seen.
CREATE TABLE sapwood_migrations (
    owner   TEXT NOT NULL,       -- a capability, or 'user' for the class's own migrations
    number  INTEGER NOT NULL,
    digest  BLOB NOT NULL,       -- SHA-256 of the script; an edited script is refused
    PRIMARY KEY (owner, number)
) STRICT, WITHOUT ROWID;
