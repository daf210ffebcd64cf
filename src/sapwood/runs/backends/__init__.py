"""What executes a run: a method of the agent, or an agent of another server."""
