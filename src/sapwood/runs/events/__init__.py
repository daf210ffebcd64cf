"""What happens in runs, as events, and how far a reader of them is."""
