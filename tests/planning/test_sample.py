"""What a running join knows of its stream."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.budget.sizes import SAMPLE_BYTES, sample_bytes
from semistream.planning import sample
from semistream.planning.laws import zipf
from semistream.planning.sample import KEYS, Generation, StreamSample
from semistream.spec import Workload
from tests.helpers.stream_data import draws, master, stream


@given(st.lists(st.lists(st.integers(0, 2000), max_size=900), max_size=8))
@settings(max_examples=40, deadline=None)
def test_the_key_sample_counts_exactly(pieces) -> None:
    generation, spare = Generation(), np.zeros(2 * KEYS, np.int64)
    for piece in pieces:
        generation.add(np.array(piece, np.int64), spare)
    every = np.array([code for piece in pieces for code in piece], np.int64)
    true = dict(zip(*np.unique(every, return_counts=True), strict=True))
    has = generation.counts > 0
    kept = dict(zip(generation.keys[has].tolist(), generation.counts[has].tolist(), strict=True))
    assert kept.items() <= true.items()
    assert int(generation.used[0]) == len(kept) <= KEYS - KEYS // 4
    if generation.share == 1:
        assert kept == true
    assert set(generation.sample.tolist()) <= set(true)
    assert len(generation.sample) == min(len(every), sample.ROWS)


def test_the_row_sample_takes_every_row_with_the_same_chance() -> None:
    generation, spare = Generation(), np.zeros(2 * KEYS, np.int64)
    tenth = np.zeros(10)
    for _ in range(20):
        generation.restart((0, 0))
        for begin in range(0, 50_000, 1000):
            generation.add(np.arange(begin, begin + 1000), spare)
        assert len(set(generation.sample.tolist())) == sample.ROWS
        tenth += np.bincount(generation.sample // 5000, minlength=10)
    expected = 20 * sample.ROWS / 10
    assert ((tenth - expected) ** 2 / expected).sum() < 27.9  # chi square, 9 degrees, 0.1 %


def run(join: ss.SemiStreamJoin, numbers: np.ndarray, rows: int = 5000) -> int:
    count = sum(len(b) for s in stream(numbers).to_batches(rows) for b in join.push(s))
    return count + sum(len(b) for b in join.drain())


@pytest.mark.parametrize("orphans", [0.0, 0.3])
@pytest.mark.parametrize("algorithm", ["sweepjoin", "meshjoin", "memory"])
def test_a_running_join_knows_its_stream(algorithm, orphans) -> None:
    numbers = draws(3, 20_000, 60_000, 1.0)
    strange = np.random.default_rng(1).random(len(numbers)) < orphans
    numbers = np.where(strange, 20_000 + np.arange(len(numbers)), numbers)
    opened = ss.open_master(master(20_000), key="id")
    with ss.SemiStreamJoin(opened, "id", algorithm=algorithm, memory="16MB") as join:
        assert join.workload() == Workload()
        run(join, numbers)
        known = join.workload()
        assert join.stats.bytes_held >= SAMPLE_BYTES
    whole = sample.FIRST_ROWS
    assert known.skew_error is not None
    assert abs(known.skew - 1) <= 3 * known.skew_error < 0.15
    assert known.orphans == pytest.approx(strange.mean())
    assert (known.row_bytes, known.columns) == (16, 2)
    assert whole <= known.rows < 0.5 * len(numbers)
    among = zipf.expected_distinct((1 - orphans) * known.rows, 20_000, 1.0)
    assert known.distinct == pytest.approx(among + orphans * known.rows, rel=0.2)
    with pytest.raises(ss.StateError, match="closed"):
        join.workload()


def test_it_forgets(monkeypatch) -> None:
    monkeypatch.setattr(sample, "GENERATION", 20_000)
    opened = ss.open_master(master(5000), key="id")
    with ss.SemiStreamJoin(opened, "id", algorithm="sweepjoin", memory="8MB") as join:
        run(join, draws(1, 5000, 60_000, 1.3))
        before = join.workload()
        run(join, draws(2, 5000, 20_000, 0.3))
        run(join, 5000 - 1 - draws(3, 5000, 15_000, 1.3))  # other keys are hot now
        drifted = join.workload()
        run(join, draws(4, 5000, 60_000, 0.3))
        after = join.workload()
    assert before.skew == pytest.approx(1.3, abs=0.06)
    assert dict(before.popularity)[16] > 0.5
    assert drifted.skew == pytest.approx(1.3, abs=0.06)
    assert dict(drifted.popularity)[16] < 0.3  # what was learnt before is of less use
    assert after.skew == pytest.approx(0.3, abs=0.15)


@pytest.mark.parametrize("algorithm", ["sweepjoin", "meshjoin", "inlj"])
def test_without_room_for_a_summary_counters_are_all(algorithm) -> None:
    opened = ss.open_master(master(2000), key="id")
    with pytest.raises(ss.BudgetError) as refused:
        ss.SemiStreamJoin(opened, "id", algorithm=algorithm, memory=1000)
    least = refused.value.least
    with ss.SemiStreamJoin(opened, "id", algorithm=algorithm, memory=least) as join:
        assert run(join, np.arange(1000, 3000), 100) == 1000
        known = join.workload()
        assert join._ledger.parts["sample"] == 0
    assert (known.rows, known.orphans, known.skew_error) == (2000, 0.5, None)
    assert (known.columns, known.popularity) == (2, ())


def test_it_can_be_left_out_and_changes_no_result() -> None:
    numbers = draws(3, 3000, 20_000, 1.0)
    opened = ss.open_master(master(2500), key="id")
    answers = []
    for sketch in (True, False):
        params = ss.Params(sketch=sketch)
        with ss.SemiStreamJoin(opened, "id", memory="4MB", params=params) as join:
            out = [b for s in stream(numbers).to_batches(700) for b in join.push(s)]
            out += list(join.drain())
            answers.append(pa.Table.from_batches(out).sort_by([("id", "ascending")]))
            assert (join._ledger.parts["sample"] > 0) == sketch
            assert (join.workload().skew_error is not None) == sketch
    assert answers[0].equals(answers[1])


@pytest.mark.parametrize("rows", [100, 1000, 10_000, 32_768])
def test_only_some_rows_are_looked_at(rows) -> None:
    """What makes it cheap: after the first rows of a generation, one in 64, of few pieces."""
    kept, looked = StreamSample(), 0
    codes, usable = np.arange(rows), np.arange(rows) % 2 == 0
    for _ in range(1_000_000 // rows):
        if kept.wants(rows, (0, 0)):
            kept.add(codes, usable, lambda: 8 * rows)
            looked += 1
    whole, often = sample.FIRST_ROWS, sample.OFTEN
    assert kept.rows <= 2 * max(whole, rows) + 1e6 / sample.ONE_IN + rows
    assert looked <= 2 * whole / rows + 1e6 / max(often, rows) + 2
    assert kept.keyed == pytest.approx(kept.rows / 2, rel=0.1)
    assert kept.bytes == 8 * kept.sized > 0
    assert kept.nbytes == SAMPLE_BYTES
    assert sample_bytes(1_000_000, True) > 0
