"""Questions to people: who sees them, who may answer them, and how code asks them."""
