"""Where files are, local or in an object store: bytes by name, written whole or not at all."""
