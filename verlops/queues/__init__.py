"""Message engines: sqlite, memory, and what they share."""
