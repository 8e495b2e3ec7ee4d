"""A stream in numbers: from a sample, and from a join that runs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_data import build
from servers import load

import semistream as ss
from semistream import summary as summary_module
from semistream.model import zipf
from semistream.plan import SUMMARY_BYTES, summary_bytes
from semistream.sketch import sketch_stream
from semistream.skew import counts_of, fit_skew, popularities, popularity
from semistream.spec import Workload
from semistream.summary import KEYS, Generation, Summary

COVERED = [
    (keys, rows, skew)
    for keys, rows in ((10**3, 10**3), (10**4, 10**4), (10**6, 10**3), (10**6, 10**4))
    for skew in (0.0, 0.4, 0.8, 1.0, 1.5)
]


@lru_cache(maxsize=32)
def _sums(keys: int, skew: float) -> np.ndarray:
    return np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -skew)


def draws(seed: int, keys: int, rows: int, skew: float) -> np.ndarray:
    """Numbers below `keys`, 0 the most popular one."""
    weights = _sums(keys, skew)
    return np.searchsorted(weights, np.random.default_rng(seed).random(rows) * weights[-1])


def times(codes: np.ndarray) -> np.ndarray:
    return np.unique(codes, return_counts=True)[1]


def spread(numbers: np.ndarray) -> np.ndarray:
    """Key values in no order of popularity; distinct for distinct numbers."""
    return (numbers.astype(np.int64) * 7_368_787 + 11) % 1_000_000_007


def stream(numbers: np.ndarray, **more: pa.Array) -> pa.Table:
    return pa.table({"id": spread(numbers), "qty": np.ones(len(numbers)), **more})


def master(keys: int, repeat: int = 1) -> pa.Table:
    ids = np.repeat(spread(np.arange(keys)), repeat)
    return pa.table({"id": ids, "price": np.arange(len(ids), dtype=np.float64)})


# --- the exponent ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "skew"), [(1, 1.0), (3, 0.0), (30, 0.5), (1e4, 1.0), (1e8, 1.5), (1e8, 0.0)]
)
def test_blocks_of_ranks_are_the_zipf_law(keys, skew) -> None:
    members, weight = popularities(keys, skew)
    assert members.sum() == pytest.approx(keys)
    assert members @ weight == pytest.approx(1)
    assert members @ -np.expm1(-5000 * weight) == pytest.approx(
        zipf.expected_distinct(5000.0, keys, skew), rel=2e-3
    )


def test_the_error_covers() -> None:
    """200 seeded streams: the 95 % interval has the true exponent in at least 88 % of them."""
    covered = []
    for seed in range(200):
        keys, rows, skew = COVERED[seed % len(COVERED)]
        fit = fit_skew([counts_of(times(draws(seed, keys, rows, skew)), rows)], keys)
        assert fit is not None
        covered.append(abs(fit.skew - skew) <= 1.96 * fit.error)
    assert np.mean(covered) >= 0.88


@pytest.mark.parametrize("skew", [0.5, 1.0, 1.5])
def test_the_estimate_is_unbiased_and_the_error_no_larger_than_it_must_be(skew) -> None:
    fits = [
        fit_skew([counts_of(times(draws(seed, 10**5, 20_000, skew)), 20_000)], 10**5)
        for seed in range(20)
    ]
    found = np.array([(f.skew, f.error) for f in fits if f is not None])
    scatter = found[:, 0].std(ddof=1)
    assert abs(found[:, 0].mean() - skew) < 3 * scatter / np.sqrt(len(fits))
    assert 0.5 * scatter < found[:, 1].mean() < 2 * scatter


@pytest.mark.parametrize("skew", [0.5, 1.0])
def test_the_number_of_keys_need_not_be_known(skew) -> None:
    fit = fit_skew([counts_of(times(draws(1, 10**4, 50_000, skew)), 50_000)], None)
    assert fit is not None
    assert fit.skew == pytest.approx(skew, abs=0.03)
    assert abs(fit.skew - skew) <= 3 * fit.error


def test_streams_that_are_not_zipf_get_something_sane() -> None:
    def of(counts: list[int], keys: int | None) -> tuple[float, float]:
        fit = fit_skew([counts_of(np.array(counts), sum(counts))], keys)
        assert fit is not None
        return fit.skew, fit.error

    assert of([10_000], 10**6)[0] > 3.9  # one single key
    assert of([1] * 10_000, 10_000)[0] == 0.0  # every key once
    assert 0 <= of([500] * 100 + [1] * 50_000, 10**6)[0] <= 4  # a hot set
    assert of([1, 1], 10**6)[1] > 1  # two rows tell nothing, and say so
    assert of([1] * 100, 10)[0] == 0.0  # more keys than there are
    assert fit_skew([counts_of(np.array([1]), 1)], 10) is None
    assert fit_skew([], 10) is None


# --- popularity --------------------------------------------------------------------------------


def test_popularity_does_not_flatter() -> None:
    uniform = draws(1, 10**5, 4000, 0.0)
    measured = dict(popularity(uniform[:2000], uniform[2000:], 1.0))
    assert measured[256] < 0.02  # measured on the same rows it would be 0.128 at least
    skewed = draws(1, 10**4, 40_000, 1.0)
    curve = popularity(skewed[::2], skewed[1::2], 1.0)
    for top, share in curve[:5]:
        assert share == pytest.approx(zipf.share(float(top), 1e4, 1.0), abs=0.02)
    assert [s for _, s in curve] == sorted(s for _, s in curve)
    assert popularity(skewed[:0], skewed, 1.0) == ()


# --- a sample of a stream ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "map", "pread", "parquet"])
def test_a_sample_with_orphans_and_nulls(kind, tmp_path) -> None:
    numbers = draws(3, 20_000, 30_000, 1.0)
    lot = np.random.default_rng(1).random(len(numbers))
    numbers = np.where(lot < 0.3, 20_000 + np.arange(len(numbers)), numbers)
    ids = pa.array(spread(numbers), mask=lot > 0.9)
    sample = pa.table({"id": ids, "qty": np.ones(len(numbers))})
    found = sketch_stream(sample, "id", build(kind, master(20_000), "id", tmp_path))
    assert found.orphans == pytest.approx(0.4, abs=0.03)
    assert found.skew_error is not None
    assert abs(found.skew - 1) <= 3 * found.skew_error < 0.15
    assert (found.rows, found.columns, found.burstiness) == (30_000, 2, None)
    assert found.distinct == len(set(ids.drop_null().to_pylist()))
    assert found.row_bytes == -(-sample.nbytes // 30_000)
    assert found.popularity[0][1] == pytest.approx(0.6 * zipf.share(1.0, 2e4, 1.0), abs=0.01)


def test_few_keys_are_all_asked_for() -> None:
    sample = stream(np.repeat(np.arange(100), 10))
    known = sketch_stream(sample, {"id": "id"}, ss.open_master(master(75), key="id"))
    assert known.orphans == 0.25


def test_a_database_is_asked_too(postgresql) -> None:
    name = load(postgresql, master(50), ["id"], "index")
    opened = ss.open_master(postgresql.url(), "id", table=name)
    assert sketch_stream(stream(np.repeat(np.arange(100), 10)), "id", opened).orphans == 0.5


def test_rows_per_key_make_keys_of_rows() -> None:
    sample = stream(draws(1, 1000, 20_000, 0.5))
    found = sketch_stream(sample, "id", ss.open_master(master(1000, repeat=40), key="id"))
    assert found.skew == pytest.approx(0.5, abs=0.05)


def test_keys_of_several_columns_and_text() -> None:
    numbers = draws(5, 5000, 20_000, 1.2)
    text = pa.array([f"k{n // 70}" for n in numbers.tolist()])
    rest = pa.array(numbers % 70, pa.int32())
    names = {"a": "x", "b": "y"}
    every = np.arange(5000)
    rows = pa.table({"y": every % 70, "x": [f"k{n // 70}" for n in every.tolist()], "z": every})
    opened = ss.open_master(rows, key=["y", "x"])
    found = sketch_stream(pa.table({"a": text, "b": rest}), names, opened)
    assert (found.orphans, found.distinct) == (0.0, len(set(numbers.tolist())))
    assert found.skew == pytest.approx(1.2, abs=0.05)


def test_streams_of_nothing() -> None:
    opened = ss.open_master(master(10), key="id")
    assert sketch_stream([], "id", opened) == Workload(rows=0, distinct=0)
    empty = sketch_stream(stream(np.zeros(0, np.int64)), "id", opened)
    assert (empty.rows, empty.distinct, empty.skew_error, empty.orphans) == (0, 0, None, 0.0)
    orphans = sketch_stream(stream(np.arange(100, 400)), "id", opened)
    assert (orphans.orphans, orphans.distinct, orphans.popularity) == (1.0, 300, ())
    assert orphans.skew_error is None
    nulls = sketch_stream(pa.table({"id": pa.nulls(9, pa.int64())}), "id", opened)
    assert (nulls.orphans, nulls.rows, nulls.distinct) == (1.0, 9, 0)


def test_burstiness() -> None:
    random = np.random.default_rng(1)
    table = stream(np.zeros(20_000, np.int64))
    even = pa.array(np.arange(20_000) * 1000, pa.timestamp("us"))
    poisson = pa.array(random.integers(0, 10**9, 20_000), pa.timestamp("us"))
    known = [
        sketch_stream(table.append_column("at", at), "id", time="at").burstiness
        for at in (even, poisson)
    ]
    assert known[0] == pytest.approx(0, abs=0.05)
    assert known[1] == pytest.approx(1, abs=0.3)
    batch = table.slice(0, 400).to_batches()[0]
    sizes = [100] * 10 + [300] * 10
    came = sketch_stream((batch.slice(0, n) for n in sizes), "id").burstiness
    assert came == pytest.approx(np.var(sizes, ddof=1) / 200)
    assert sketch_stream([batch], "id").burstiness is None


def test_what_cannot_be_sketched_is_refused() -> None:
    table = stream(np.arange(10))
    opened = ss.open_master(master(10), key="id")
    with pytest.raises(ss.SpecError, match="time='when' is not a column"):
        sketch_stream(table, "id", time="when")
    with pytest.raises(ss.SpecError, match="time='qty' is double"):
        sketch_stream(table, "id", time="qty")
    with pytest.raises(ss.SpecError, match="the key of"):
        sketch_stream(table, {"id": "price"}, opened)
    with pytest.raises(ss.SpecError, match="not int"):
        sketch_stream([1], "id", opened)


# --- a running join ----------------------------------------------------------------------------


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
    assert len(generation.sample) == min(len(every), summary_module.ROWS)


def test_the_row_sample_takes_every_row_with_the_same_chance() -> None:
    generation, spare = Generation(), np.zeros(2 * KEYS, np.int64)
    tenth = np.zeros(10)
    for _ in range(20):
        generation.restart((0, 0))
        for begin in range(0, 50_000, 1000):
            generation.add(np.arange(begin, begin + 1000), spare)
        assert len(set(generation.sample.tolist())) == summary_module.ROWS
        tenth += np.bincount(generation.sample // 5000, minlength=10)
    expected = 20 * summary_module.ROWS / 10
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
        assert join.stats.bytes_held >= SUMMARY_BYTES
    whole = summary_module.WHOLE
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
    monkeypatch.setattr(summary_module, "GENERATION", 20_000)
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
        assert join._ledger.parts["sketch"] == 0
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
            assert (join._ledger.parts["sketch"] > 0) == sketch
            assert (join.workload().skew_error is not None) == sketch
    assert answers[0].equals(answers[1])


@pytest.mark.parametrize("rows", [100, 1000, 10_000, 32_768])
def test_only_some_rows_are_looked_at(rows) -> None:
    """What makes it cheap: after the first rows of a generation, one in 64, of few pieces."""
    summary, looked = Summary(), 0
    codes, usable = np.arange(rows), np.arange(rows) % 2 == 0
    for _ in range(1_000_000 // rows):
        if summary.wants(rows, (0, 0)):
            summary.add(codes, usable, lambda: 8 * rows)
            looked += 1
    whole, often = summary_module.WHOLE, summary_module.OFTEN
    assert summary.rows <= 2 * max(whole, rows) + 1e6 / summary_module.ONE_IN + rows
    assert looked <= 2 * whole / rows + 1e6 / max(often, rows) + 2
    assert summary.keyed == pytest.approx(summary.rows / 2, rel=0.1)
    assert summary.bytes == 8 * summary.sized > 0
    assert summary.nbytes == SUMMARY_BYTES
    assert summary_bytes(1_000_000, True) > 0
