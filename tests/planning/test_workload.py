"""A stream in numbers, from a sample."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.planning.laws import zipf
from semistream.planning.skew import counts_of, fit_skew, popularities, popularity
from semistream.planning.workload import sketch_stream
from semistream.spec import Workload
from tests.helpers.database_servers import load
from tests.helpers.sample_data import build
from tests.helpers.stream_data import draws, master, spread, stream, times

COVERED = [
    (keys, rows, skew)
    for keys, rows in ((10**3, 10**3), (10**4, 10**4), (10**6, 10**3), (10**6, 10**4))
    for skew in (0.0, 0.4, 0.8, 1.0, 1.5)
]


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
