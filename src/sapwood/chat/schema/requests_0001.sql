-- What models were sent. Of each distinct text there is one row, however many requests had it.
CREATE TABLE sapwood_sent_texts (
    digest      TEXT PRIMARY KEY,               -- of the text, or of a longer text that was left out
    bytes       INTEGER NOT NULL,
    body        TEXT                            -- NULL: the text was too long to be kept
) STRICT;

-- The messages of requests: each row is a message and all that came before it, so requests share what they have in common.
CREATE TABLE sapwood_sent_messages (
    number      INTEGER PRIMARY KEY,
    previous    INTEGER,                        -- the message before it; NULL: it is the first
    text        TEXT NOT NULL                   -- its digest in sapwood_sent_texts
) STRICT;

-- The bodies of requests to models: in the form of Pydantic AI and, if an HTTP client that we know sent it, as it was
-- sent. A step that was tried again, or answered by another model, has several.
CREATE TABLE sapwood_model_requests (
    number      INTEGER PRIMARY KEY,
    span        INTEGER NOT NULL,               -- the step in sapwood_spans
    url         TEXT NOT NULL,                  -- without its query; empty: this is the request in the form of Pydantic AI
    is_redacted INTEGER NOT NULL,               -- 1: App(redact=…) has changed the body
    parts       TEXT NOT NULL,                  -- JSON: literal texts, [digest] for a text, null for the messages
    separator   TEXT NOT NULL,                  -- between two messages
    last        INTEGER                         -- the last message in sapwood_sent_messages; NULL: it had none
) STRICT;

CREATE INDEX sapwood_model_requests_by_span ON sapwood_model_requests (span);
