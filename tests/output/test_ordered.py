"""ordered=True: the same rows, in the order of the stream, within the budget."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.budget.ledger import Ledger
from semistream.output.ordered import Reorder
from semistream.output.shape import NUMBER
from semistream.testing import assert_same_rows, oracle, rebatch


def tables(rng: random.Random, rows: int, count: int) -> tuple[pa.Table, pa.Table]:
    keys = [k for k in range(rows) for _ in range(rng.randint(1, 3))]
    rng.shuffle(keys)
    master = pa.table({"id": pa.array(keys, pa.int64()), "name": [f"{i}" for i in keys]})
    asked = [rng.choice([None, rng.randrange(20), rng.randrange(rows + 5)]) for _ in range(count)]
    stream = pa.table({"id": pa.array(asked, pa.int64()), "n": pa.array(range(count), pa.int64())})
    return master, stream


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("algorithm", ss.ALGORITHMS)
def test_output_follows_the_stream(algorithm: str, how: str, tmp_path: Path) -> None:
    rng = random.Random(f"{algorithm}{how}")
    master, stream = tables(rng, 1_500, 6_000)
    store = ss.Store.create(tmp_path / "s", master, "id", page_bytes=4096)
    for memory in ("300kB", "8MB"):
        if algorithm == "memory" and memory == "300kB":
            continue
        join = ss.SemiStreamJoin(store, "id", how, algorithm=algorithm, memory=memory, ordered=True)
        out = []
        for batch in rebatch(stream, rng):
            for part in join.push(batch):
                out.append(part)
                assert join.stats.bytes_held <= join.stats.budget_bytes
        out += list(join.drain())
        assert join.stats.rows_out == sum(len(part) for part in out)
        assert join.stats.peak_bytes <= join.stats.budget_bytes
        numbers = [n for part in out for n in part.column("n").to_pylist()]
        assert numbers == sorted(numbers)
        assert_same_rows(out, oracle(stream, master, "id", how))
        join.close()


def test_much_that_waits_goes_to_a_file_and_comes_back() -> None:
    """Ten times its memory is held; nothing may be lost or moved."""
    schema = pa.schema([("text", pa.string()), (NUMBER, pa.int64())])
    ledger = Ledger(1 << 20)
    order = Reorder(schema, 64 << 10, 16 << 10, ledger)
    numbers = list(range(20_000))
    random.Random(3).shuffle(numbers)
    for at in range(0, len(numbers), 500):
        some = numbers[at : at + 500]
        batch = pa.record_batch({"text": [f"row {n}" * 3 for n in some], NUMBER: some}, schema)
        order.add(batch)
        assert ledger.held <= 64 << 10
        assert not list(order.release(0))
    out = pa.Table.from_batches(order.release(20_000))
    assert out["text"].to_pylist() == [f"row {n}" * 3 for n in range(20_000)]
    assert order.rows == 0
    order.close()


def test_a_snapshot_waits_for_held_answers() -> None:
    master, stream = tables(random.Random(1), 50, 400)
    join = ss.SemiStreamJoin(
        ss.open_master(master, "id"), "id", algorithm="meshjoin", memory="200kB", ordered=True
    )
    list(join.push(stream.combine_chunks().to_batches()[0]))
    if join.stats.waiting:
        with pytest.raises(ss.StateError, match="drain"):
            join.snapshot()
    list(join.drain())
    assert join.snapshot()
