"""Copies of trees under another name: the files, before any agent of the copy starts."""
