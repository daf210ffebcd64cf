"""One process: it loads and closes trees, dispatches alarms, answers other nodes, and makes backups."""
