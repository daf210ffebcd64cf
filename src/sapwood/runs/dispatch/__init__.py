"""A run at the agent that started it: admission, start, progress, timeouts, result and deletion."""
