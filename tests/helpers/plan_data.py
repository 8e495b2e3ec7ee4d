"""A master in numbers, for tests of predictions about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.lib.paper_cpu import PAPER_CPU
from semistream.planning.device import DEVICES
from semistream.planning.machine import Machine
from semistream.planning.work import Case
from semistream.spec import ALGORITHMS, MasterFacts, Params, Workload

STORE = MasterFacts(
    name="products", key=("id",), rows=2_000_000, bytes=240_000_000, pages=3_700,
    page_bytes=64_865, max_page_bytes=65_536, row_bytes=120, columns=12, text_columns=2,
    indexed=True, unique=True, ranges=True, scans=True, by_key=False, ages=False, mapped=True,
    overlapping=False, in_key_order=True, resident_bytes=90_000,
)  # fmt: skip
READ = replace(STORE, mapped=False)  # the same store, its pages read
HEAP = replace(READ, indexed=False, ranges=False, in_key_order=False, unique=False)
TABLE = replace(READ, by_key=True, ranges=False, scans=False)  # in a database, by a hashed key
SMALL = replace(STORE, rows=20_000, bytes=2_400_000, pages=37)
HDD = Machine(device=DEVICES["hdd-7200"], cpu=PAPER_CPU)
ALL = [name for name in ALGORITHMS if name != "memory"]


def case(name: str, master: MasterFacts = STORE, memory: int = 24_000_000, **more: Any) -> Case:
    """A case; `more` are fields of Workload and knobs."""
    knobs = {n: more.pop(n) for n in list(more) if n in Params.__dataclass_fields__}
    return Case(ALGORITHMS[name], master, Workload(**more), memory, Params(**knobs))
