-- The run-level hooks of capabilities in a turn: NULL: before_run was not called; begun; ended: after_run has returned.
ALTER TABLE sapwood_turns ADD COLUMN run_hooks TEXT;

-- For how many seconds after its end a turn can be replayed; NULL: what it streamed is deleted with its end.
ALTER TABLE sapwood_turns ADD COLUMN replay_seconds REAL;
