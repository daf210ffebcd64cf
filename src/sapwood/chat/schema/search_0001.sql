-- The words of a conversation, to be searched; made at the first search.
CREATE VIRTUAL TABLE sapwood_message_words USING fts5 (id UNINDEXED, text);
