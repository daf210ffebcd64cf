"""The past of trees on one machine: recorded commit by commit, and read as files."""
