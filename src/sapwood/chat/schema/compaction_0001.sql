-- Messages that no summary replaces.
CREATE TABLE sapwood_pinned_messages (
    id          TEXT PRIMARY KEY                -- of the message in sapwood_messages
) STRICT, WITHOUT ROWID;
