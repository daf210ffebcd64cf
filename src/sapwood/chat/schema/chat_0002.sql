-- The run-level hooks of capabilities in a turn: NULL: before_run was not called; begun; ended: after_run has returned.
ALTER TABLE sapwood_turns ADD COLUMN run_hooks TEXT;
