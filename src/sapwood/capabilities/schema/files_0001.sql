-- The files of an agent: each content once.
CREATE TABLE sapwood_files (
    number INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE, -- SHA-256 of the content, hexadecimal
    size INTEGER NOT NULL,
    media_type TEXT NOT NULL, -- verified from the content
    name TEXT,
    created_at REAL NOT NULL,
    body BLOB, -- the content, if it is small; NULL: it is in the agent's folder of files, or in the archive
    object TEXT -- in a cluster, the key of a larger file in the archive
) STRICT;

-- For the sum of the sizes, which is checked before each upload.
CREATE INDEX sapwood_files_by_size ON sapwood_files (size);

-- Who needs a file. Without a reference, it is deleted.
CREATE TABLE sapwood_file_references (
    digest TEXT NOT NULL REFERENCES sapwood_files (digest),
    holder TEXT NOT NULL, -- code | upload | message:<id>
    created_at REAL NOT NULL,
    PRIMARY KEY (digest, holder)
) STRICT, WITHOUT ROWID;

CREATE INDEX sapwood_file_references_by_holder ON sapwood_file_references (holder);

-- Uploads that clients may resume: the bytes received so far are in the agent's folder of files.
CREATE TABLE sapwood_uploads (
    id TEXT PRIMARY KEY, -- chosen by the client
    size INTEGER NOT NULL,
    name TEXT,
    media_type TEXT, -- claimed by the client
    boot INTEGER NOT NULL, -- a loss of power may have damaged what was received before it
    digest TEXT, -- once it is complete
    created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
