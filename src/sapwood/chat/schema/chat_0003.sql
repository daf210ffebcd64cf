-- JSON: settings of the model and instructions that a request asks for in this turn, over those of the class; NULL: none.
ALTER TABLE sapwood_turns ADD COLUMN overrides TEXT;
