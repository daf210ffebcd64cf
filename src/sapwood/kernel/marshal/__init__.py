"""What the kernel knows of an agent class, and how arguments, results and errors are copied."""
