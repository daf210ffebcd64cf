"""What the kernel needs of its surroundings: durability, placement, transport, log and archive."""
