"""Runs on other servers: the transport to them, their sessions, and the events of the runs below them."""
