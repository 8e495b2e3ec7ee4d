"""Rows by location: Arrow chunks and packed records, codes of their keys, and how to sort them."""
