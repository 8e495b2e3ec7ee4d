"""Kill processes under a streaming query, and check what it wrote."""
