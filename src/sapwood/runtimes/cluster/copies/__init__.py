"""The copies of the log: replicas and the archive."""
