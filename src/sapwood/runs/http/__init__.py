"""Runs, events and methods over HTTP."""
