"""Files and texts that leave us: whole, sealed, private, and without secrets."""
