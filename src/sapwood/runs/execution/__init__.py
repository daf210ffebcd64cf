"""A run at the agent that executes it: what it must do, its driver, and what its clients receive."""
