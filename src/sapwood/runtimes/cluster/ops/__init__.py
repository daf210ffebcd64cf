"""What operators do with a cluster: list, verify, repair and restore."""
