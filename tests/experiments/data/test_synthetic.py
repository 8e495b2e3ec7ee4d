"""The experiments' synthetic data: as asked for, and the same again for the same seed."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.lib import workload
from experiments.data import generate, many_to_many, weather
from experiments.data.arrivals import Bursty, Steady, hurst_exponent
from experiments.data.drifting import DriftingHotSet, TemporalLocality
from experiments.data.products import products
from semistream import SemiStreamJoin, Store
from semistream.planning.laws import zipf
from tests.helpers.experiment_rows import frequencies, keys_of, rows_of, some

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- arrivals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [0.6, 0.7, 0.8])
def test_bursty_arrivals_are_self_similar(bias: float) -> None:
    arrivals = Bursty(200.0, bias)
    counts = arrivals.counts(3, 1 << arrivals.levels)
    assert counts.min() >= 0
    assert counts.mean() == pytest.approx(200.0, abs=1e-3)
    assert counts.max() == pytest.approx(200.0 * (2 * bias) ** arrivals.levels, rel=0.01)
    assert 0.6 < hurst_exponent(counts) < arrivals.hurst + 0.02


def test_steady_arrivals_are_not() -> None:
    counts = Steady(200.0).counts(3, 1 << 15)
    assert counts.mean() == pytest.approx(200.0, rel=0.01)
    assert hurst_exponent(counts) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("arrivals", [Bursty(50.0, levels=6), Steady(50.0)])
def test_arrivals_are_the_same_for_the_same_seed(arrivals: Bursty | Steady) -> None:
    first = list(islice(arrivals.ticks(1), 200))  # more than one cascade of 64
    assert first == arrivals.counts(1, 200).tolist()
    assert first != list(islice(arrivals.ticks(2), 200))
    assert len(arrivals.counts(1, 0)) == 0


def test_arrivals_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="bias"):
        Bursty(1.0, bias=1.0)
    with pytest.raises(ValueError, match="no exponent"):
        hurst_exponent(np.ones(1 << 12, dtype=np.int64))


# --- streams ------------------------------------------------------------------------------------

SYNTHETIC = [
    TemporalLocality(50_000, times=2, interval_rows=3_000),
    DriftingHotSet(50_000, hot=500, every=3_000),
    weather.SyntheticReports(0.5),
]


@pytest.mark.parametrize("stream", SYNTHETIC, ids=lambda stream: type(stream).__name__)
def test_a_stream_is_a_function_of_its_seed(stream: Any) -> None:
    first = some(stream.batches(7, 1_000), 5)
    assert first.schema == stream.schema
    assert [len(batch) for batch in first.to_batches()] == [1_000] * 5
    assert first.equals(some(stream.batches(7, 1_000), 5))
    assert not first.equals(some(stream.batches(8, 1_000), 5))
    assert first.column(stream.key).null_count == 0


def test_temporal_locality_stays_in_the_slice_of_its_interval() -> None:
    stream = TemporalLocality(100_000, times=4, interval_rows=400)
    assert stream.keys == 25_000
    assert [stream.slice_of(i) for i in (1, 2, 25)] == [
        (0, 1_000),
        (1_000, 2_000),
        (24_000, 25_000),
    ]
    keys = keys_of(stream, 26 * 400)  # one batch over all intervals, and the first once more
    slices = keys.reshape(26, 400) // 1_000
    assert (slices == np.append(np.arange(25), 0)[:, None]).all()


def test_temporal_locality_is_zipf_within_a_slice() -> None:
    stream = TemporalLocality(50_000, intervals=25, interval_rows=100_000)
    counts = frequencies(keys_of(stream, 100_000))
    for top in (1, 10, 100):
        share = counts[:top].sum() / 100_000
        assert share == pytest.approx(zipf.share(top, 2_000, 1.0), rel=0.06)
    ordered = TemporalLocality(50_000, intervals=25, interval_rows=100_000, ordered=True)
    hottest = [np.argsort(-np.bincount(keys_of(s, 100_000)))[:5] for s in (ordered, stream)]
    assert hottest[0].max() < 10  # ranks 1 to 5, give or take
    assert hottest[1].max() > 100  # scattered


def test_a_drifting_hot_set_loses_its_part_and_keeps_the_rest() -> None:
    stream = DriftingHotSet(20_000, hot=200, part=0.25, every=100_000)
    ranks = np.arange(200)
    before, after = stream.key_of(ranks, 99_999), stream.key_of(ranks, 100_000)
    assert len(np.intersect1d(before, after)) == 150
    keys = keys_of(stream, 200_000)
    hot = np.isin(keys, before)
    assert hot[:100_000].mean() == pytest.approx(zipf.share(200, 20_000, 1.0), rel=0.02)
    assert hot[100_000:].mean() == pytest.approx(zipf.share(150, 20_000, 1.0), rel=0.02)
    # The 50 hottest are cold at once.
    assert np.isin(keys[100_000:], before[:50]).mean() < 0.01


def test_streams_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="interval"):
        TemporalLocality(20)
    with pytest.raises(ValueError, match="hot"):
        DriftingHotSet(10, hot=11)


# --- masters ------------------------------------------------------------------------------------


def test_zipf_keys_are_as_frequent_as_asked_and_aligned_with_the_stream(tmp_path: Path) -> None:
    path = many_to_many.zipf_keys(tmp_path, 60_000, 1.0, places=5)
    rows = rows_of(path)
    assert rows.num_rows == 60_000
    keys = rows.column(workload.KEY).to_numpy()
    for top in (1, 10, 1_000):
        share = frequencies(keys)[:top].sum() / 60_000
        assert share == pytest.approx(zipf.share(top, 60_000, 1.0), rel=0.05)
    stream = workload.stream_table(np.random.default_rng(2), 60_000, 60_000, 1.0, seed=5)
    hottest = np.bincount(stream.column(workload.KEY).to_numpy()).argmax()
    assert np.bincount(keys).argmax() == hottest
    # All other columns tell rows of one key apart.
    assert len(pc.unique(rows.column("name"))) == 60_000


def test_matches_per_row_are_those_of_two_aligned_laws() -> None:
    keys = 20_000
    master = many_to_many.zipf_rows(0, keys, keys=keys, skew=1.0).column(workload.KEY).to_numpy()
    rng = np.random.default_rng(4)
    stream = workload.stream_table(rng, 400_000, keys, 0.5).column(workload.KEY).to_numpy()
    matches = np.bincount(master, minlength=keys)[stream].mean()
    ranks = np.arange(1, keys + 1)
    chance = [ranks**-skew / zipf.harmonic(keys, skew) for skew in (0.5, 1.0)]
    assert matches == pytest.approx(keys * np.dot(*chance), rel=0.05)


def test_rows_do_not_depend_on_the_slice() -> None:
    for make in (
        partial(many_to_many.zipf_rows, keys=5_000, skew=0.7, seed=3),
        partial(many_to_many.repeated_rows, keys=5_000),
        partial(weather.synthetic_rows, skew=0.4),
    ):
        whole = make(0, 25_000)
        assert whole.slice(9_990, 10_020).equals(make(9_990, 10_020))
        assert make(0, 0).schema == whole.schema
        assert make(0, 0).num_rows == 0
    other = many_to_many.zipf_rows(0, 25_000, keys=5_000, skew=0.7, seed=4)
    assert not other.equals(many_to_many.zipf_rows(0, 25_000, keys=5_000, skew=0.7, seed=3))


def test_every_key_is_there_so_many_times(tmp_path: Path) -> None:
    path = many_to_many.repeated_keys(tmp_path, 40_000, 20)
    keys = rows_of(path).column(workload.KEY).to_numpy()
    assert (np.bincount(keys) == 20).all()
    assert len(np.unique(keys)) == 2_000
    with pytest.raises(ValueError, match="multiple"):
        many_to_many.repeated_keys(tmp_path, 40_001, 20)


def test_every_row_of_the_temporal_stream_meets_its_key_so_many_times(tmp_path: Path) -> None:
    stream = TemporalLocality(40_000, times=4, interval_rows=200)
    join = SemiStreamJoin(
        many_to_many.repeated_keys(tmp_path, 40_000, 4), on=stream.key, memory="4MB"
    )
    out = [*join.push(next(stream.batches(1, 25 * 200))), *join.drain()]
    assert sum(len(batch) for batch in out) == 4 * 25 * 200


def test_a_master_is_made_once(tmp_path: Path) -> None:
    path = many_to_many.repeated_keys(tmp_path, 5_000, 1)
    made = Store.open(path).identity()
    assert many_to_many.repeated_keys(tmp_path, 5_000, 1) == path
    assert Store.open(path).identity() == made
    assert rows_of(path).equals(workload.master_table(0, 5_000))
    assert many_to_many.repeated_keys(tmp_path, 5_000, 1, page_bytes=16_384) != path


def test_large_masters_of_products_are_made_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "SPARK_FROM", 10_000)
    monkeypatch.setattr(Store, "create", None)  # not here, that is
    path = products(tmp_path, 10_001, page_bytes=8192)
    assert rows_of(path).cast(workload.MASTER_SCHEMA).equals(workload.master_table(0, 10_001))


def test_spark_makes_the_same_master(spark: SparkSession, tmp_path: Path) -> None:
    make = partial(many_to_many.zipf_rows, keys=9_000, skew=1.0)

    def made(spark_from: int) -> pa.Table:
        path = tmp_path / f"from-{spark_from}"
        generate.kept_rows(path, 30_000, make, workload.KEY, 8192, spark_from=spark_from)
        return rows_of(path).sort_by([(workload.KEY, "ascending"), ("name", "ascending")])

    here = made(spark_from=30_000)
    with_spark = made(spark_from=29_999)
    assert with_spark.cast(here.schema).equals(here)
    assert spark.range(3).count() == 3  # the session that was running still is
