"""The join itself, without Spark."""
