"""A root with its descendants: loading, deletion, quotas, usage and pending questions."""
