"""One live agent: its lifecycle, sockets, outbox, idempotency keys, offloaded work and watchdog."""
