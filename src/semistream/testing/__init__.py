"""The contract of joins and masters, as checks that anybody can run over their own.

A new master, in one test:

    def test_my_master():
        table = pa.table({"id": [3, 1, 1], "name": ["c", "a", "b"]})
        check_master(MyMaster(table), table, key="id")

Joins on it, against a join of ten lines of Python that shares no code with this package:

    def test_joins_on_my_master():
        stream = pa.table({"id": [1, 2, None], "qty": [5, 6, 7]})
        for seed in range(20):
            check_join(MyMaster(table), stream, on="id", how="left", table=table,
                       algorithm="meshjoin", memory="1MB", rng=seed)

What fails loses nothing, whenever it fails:

    def test_faults():
        make = lambda: SemiStreamJoin(MyMaster(table), "id", "left", memory="1MB")
        check_faults(make, stream, oracle(stream, table, "id", "left"))

Everything random comes from `rng`. A failure carries a note with its seed: the same call with
`rng=<that seed>` does exactly the same again.
"""

from .clock import ManualClock
from .faults import check_faults
from .join import check_join
from .master import check_master
from .rows import assert_same_rows, oracle, rebatch, rows_of

__all__ = [
    "ManualClock",
    "assert_same_rows",
    "check_faults",
    "check_join",
    "check_master",
    "oracle",
    "rebatch",
    "rows_of",
]
