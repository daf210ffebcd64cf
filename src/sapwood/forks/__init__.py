"""What happens to unfinished work in a fork. A fork is a copy of knowledge, and not of obligations."""
