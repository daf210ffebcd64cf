"""Erases a tree or a subtree, and everything that sapwood still knows of it."""
