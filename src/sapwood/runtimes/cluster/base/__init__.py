"""How a cluster is laid out: shards, leases, placement, segments, its status, and the client of NATS."""
