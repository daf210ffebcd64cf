"""Which shards a node owns, and its lease."""
