"""The cost model: what a join costs, as formulas on plain numbers.

Nothing here reads a file or knows Arrow. `zipf` holds the sums over a skewed stream that the
formulas are made of.
"""
