"""What follows from a topology: its class, islands at each level, and what is suspicious about it."""
