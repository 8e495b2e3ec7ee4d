"""Studies of our own: one file each, and what it needs."""
