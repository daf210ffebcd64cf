"""Calls between agents, in this process or another: stubs, options, streams, callbacks and rerouting."""
