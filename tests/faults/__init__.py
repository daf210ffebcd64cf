"""Breaks things, and checks what is left. One file for each promise of ARCHITECTURE.md."""
