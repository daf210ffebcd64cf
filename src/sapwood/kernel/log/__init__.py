"""A tree in the replicated log and in the archive: writing, snapshots, restore and repair."""
