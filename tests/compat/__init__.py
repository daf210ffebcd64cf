"""What released versions have stored and sent, and tests that today's code still understands it."""
