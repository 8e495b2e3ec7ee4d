"""Benchmarks: ours against its peers, every figure from one command.

core/         python -m benchmarks.core: the join itself, every algorithm against the bound
spark/        python -m benchmarks.spark: enrich() against Spark's joins; also .several, .shuffle
prediction/   python -m benchmarks.prediction: the cost model against measurements
laws/         python -m benchmarks.laws: the laws of the cost model against the joins
faults/       python -m benchmarks.faults: kill workers, executors and drivers, check every row
chaos.py      python -m benchmarks.chaos: kill a query while its master changes, check every row
lookups.py    python -m benchmarks.lookups: lookups by key, in stores, files and databases
versions.py   python -m benchmarks.versions: what changes of a store cost
online.py     python -m benchmarks.online: joins that adapt, against fixed divisions of memory
shedding.py   python -m benchmarks.shedding: which rows to shed at twice the capacity
lib/          what they share: data, reports, database servers, campaigns of kills
"""
