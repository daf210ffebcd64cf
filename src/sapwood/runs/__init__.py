"""Runs: agents used by agents. Who gives a run keeps the registry; who does it keeps what it said."""
