-- The objects of this agent's larger files in the archive of a cluster. A row is durable before its upload begins.
CREATE TABLE sapwood_objects (
    key TEXT PRIMARY KEY, -- in the archive; each upload has its own
    size INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('uploading', 'named', 'removed')), -- named: a file refers to it
    changed_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- What the archive has to be told to remove.
CREATE INDEX sapwood_objects_unnamed ON sapwood_objects (state) WHERE state <> 'named';

-- The folder of the whole tree in the archive: at the root, once the tree has a larger file.
CREATE TABLE sapwood_object_folder (
    singleton INTEGER PRIMARY KEY CHECK (singleton = 1),
    name TEXT NOT NULL
) STRICT;
