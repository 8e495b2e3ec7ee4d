"""`enrich` against Spark's own joins."""
