"""Turns and runs driven by Temporal: ``App(driver=TemporalDriver(…))``."""

from sapwood.drivers.temporal.driver import TemporalDriver as TemporalDriver

__all__ = ["TemporalDriver"]
