"""Memory is divided anew while a join runs: rows, budget and conservation stay as they were."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from sample_data import ALGORITHMS, HOWS, build, least_memory, products, sales

import semistream as ss
from semistream.adapting import Adapting
from semistream.plan import Division
from semistream.testing import check_join

MASTERS = (
    "memory",
    "pread",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("map", "changed", "unsorted")),
)


@pytest.fixture
def restless(monkeypatch) -> random.Random:
    """Every join that adapts divides its memory at random, as often as it can."""
    rng = random.Random(5)

    def look(self: Adapting) -> None:
        divider = self.divider
        if divider.pending:
            divider.settle()
        elif divider.moves_cache or divider.moves_read:
            share = rng.choice([0.0, 0.05, rng.random(), 0.95])
            divider.ask(Division(share, rng.choice([1, 700, 5_000, 1 << 20])))
            divider.settle()

    monkeypatch.setattr(Adapting, "look", look)
    return rng


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """Duplicates, a group that spans pages, NULLs."""
    rng = random.Random(1)
    return products([rng.choice([*range(150), None]) for _ in range(200)] + [7] * 30)


@pytest.fixture(scope="module")
def stream() -> pa.Table:
    return sales(random.Random(2), 800, [*range(0, 180, 3), *[7] * 9, *[8] * 20, None])


@pytest.mark.parametrize("kind", MASTERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_do_not_change(restless, table, stream, kind, algorithm, tmp_path: Path) -> None:
    master = build(kind, table, "id", tmp_path)
    member = ss.ALGORITHMS[algorithm]
    if member.needs == "index" and not master.describe().indexed:
        pytest.skip("needs an index")
    moves, least = 0, least_memory(master, algorithm, stream, on="id")
    for how in restless.sample(HOWS, 2):
        memory = int(least * restless.choice([1.1, 1.5, 3.0]))
        stats = check_join(
            master, stream, on="id", how=how, algorithm=algorithm, memory=memory, table=table,
            adapt=True, rng=restless,
        )  # fmt: skip
        moves += stats.moves
    cached = member.front == "groups" and (master.block_pages is None or member.disk == "scan")
    reads = member.disk in ("scan", "seek") and not master.mapped
    pool = member.disk == "plan" and not master.mapped
    assert (moves > 2) == (cached or reads or pool)
    master.close()
