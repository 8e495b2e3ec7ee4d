"""Benchmarks: ours against its peers, every figure from one command.

workload.py      the data: a master table and a skewed stream, seeded, any size
report.py        medians, tables, CSV and the manifest that says where they came from
spark.py         python -m benchmarks.spark: enrich() against Spark's own joins
laws.py          python -m benchmarks.laws: the laws of the cost model against the joins
"""
