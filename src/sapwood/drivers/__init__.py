"""Drivers outside of the process: they decide when turns and runs continue, for teams that already use one."""
