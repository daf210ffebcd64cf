"""One turn, from the message that starts it to its end."""
