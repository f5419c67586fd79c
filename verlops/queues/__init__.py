"""Message engines: one file each."""
