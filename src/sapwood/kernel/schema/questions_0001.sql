-- What agents of the tree wait for somebody to answer, kept at the root so that every agent
-- above finds it without waking anybody. Derived: the truth is in the database of each agent.
CREATE TABLE sapwood_questions (
    owner  TEXT PRIMARY KEY,               -- the agent's address
    body   TEXT NOT NULL                   -- JSON: an array of questions
) STRICT, WITHOUT ROWID;
