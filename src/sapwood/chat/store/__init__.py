"""What is stored of a conversation: messages, turns, chunks and output."""
