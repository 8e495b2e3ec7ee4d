"""What runs in Spark's Python workers: an iterator of batches in, one out. Knows no pyspark."""
