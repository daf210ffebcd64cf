-- The MCP servers whose tools the agent uses.
CREATE TABLE sapwood_mcp_servers (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    url TEXT NOT NULL,
    approval TEXT NOT NULL, -- always | writes | destructive | never
    approvers TEXT, -- JSON array of roles, empty for every client; NULL: it does not say
    is_shared INTEGER NOT NULL, -- whether sub-agents use it too
    timeout REAL NOT NULL, -- seconds of one request
    status TEXT NOT NULL, -- connecting | signing_in | ready | failed
    error TEXT, -- why it failed
    failures INTEGER NOT NULL DEFAULT 0, -- since it was last ready
    next_try_at REAL,
    sign_in_url TEXT, -- where a user signs in
    protocol TEXT, -- the revision that it speaks; NULL: not known yet
    instructions TEXT,
    capabilities TEXT, -- JSON
    tools TEXT NOT NULL DEFAULT '[]', -- JSON: its list of tools, as it was last read
    fresh_until REAL NOT NULL DEFAULT 0, -- when the list is read again
    secrets BLOB -- sealed: headers, registration and tokens
) STRICT;

-- Sign-ins that a user has begun or may begin, by a hash of their `state`.
CREATE TABLE sapwood_mcp_sign_ins (
    state TEXT PRIMARY KEY, -- SHA-256, hexadecimal
    server INTEGER NOT NULL REFERENCES sapwood_mcp_servers (number) ON DELETE CASCADE,
    secrets BLOB NOT NULL, -- sealed: verifier, endpoints and, once it came, the code
    created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
