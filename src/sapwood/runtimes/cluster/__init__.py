"""Many machines: NATS carries calls and keeps the log, object storage keeps the rest."""
