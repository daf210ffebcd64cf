-- At a root whose tree uses agents of other servers: the secret that the names of their sessions derive from.
CREATE TABLE sapwood_remote_secret (
    singleton  INTEGER PRIMARY KEY CHECK (singleton = 1),
    secret     BLOB NOT NULL
) STRICT;

-- The sessions of the tree on other servers whose runs may not be over. A row is written before the run is
-- started there, and deleted once the other server has reported its end, or once a stop is stored as a fiber.
CREATE TABLE sapwood_remote_sessions (
    owner    TEXT PRIMARY KEY,              -- the first address of the sub-agent that stands for the remote agent
    session  TEXT NOT NULL,                 -- the name of its root on the other server
    memo     TEXT                           -- what the transport has stored, such as an id that the other server chose
) STRICT, WITHOUT ROWID;
