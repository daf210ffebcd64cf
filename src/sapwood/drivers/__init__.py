"""Drivers beyond the process: what says when turns and runs go on, for those who have such a thing already."""
