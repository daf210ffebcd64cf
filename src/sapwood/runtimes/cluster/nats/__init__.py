"""What NATS keeps and carries: the log, the owners of shards, and the messages between nodes."""
