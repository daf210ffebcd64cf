"""When a write counts: slices, which are transactions, and the gates of one machine."""
