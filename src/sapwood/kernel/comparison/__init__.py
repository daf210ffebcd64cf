"""What differs between two agents and those below them."""
