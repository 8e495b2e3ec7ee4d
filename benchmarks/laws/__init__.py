"""The laws of the cost model against the joins."""
