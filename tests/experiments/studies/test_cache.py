"""The cache study: the simulator is used rightly, and the front stage is where it should be."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.lib import workload

pytest.importorskip("libcachesim", reason="the extra `experiments` is not installed")
from experiments.lib.rows import one, where
from experiments.studies import cache as cache_study
from experiments.studies.cache_policies import (
    POLICIES,
    best_in_hindsight,
    fixed_set,
    simulate,
    write_trace,
)


def own_lru(keys: list[int], entries: int) -> list[bool]:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for key in keys:
        hits.append(key in cache)
        cache[key] = None
        cache.move_to_end(key)
        if len(cache) > entries:
            cache.popitem(last=False)
    return hits


@pytest.mark.parametrize("warm", [0, 4_000])
@pytest.mark.parametrize("entries", [1, 37, 400])
def test_the_simulated_lru_is_an_lru(tmp_path: Path, entries: int, warm: int) -> None:
    keys = workload.zipf_ranks(np.random.default_rng(3), 10_000, 2_000, 0.8)
    write_trace(keys, tmp_path / "trace")
    ours = np.mean(own_lru(keys.tolist(), entries)[warm:])
    assert simulate("LRU", tmp_path / "trace", entries, warm) == pytest.approx(ours, abs=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_beats_the_entries_it_has(tmp_path: Path, policy: str) -> None:
    """Keys round and round, more than the cache has: nobody can hit more than the entries' share,
    and who has all keys misses nothing after the first round."""
    keys = np.tile(np.arange(1_000), 20)
    write_trace(keys, tmp_path / "trace")
    assert simulate(policy, tmp_path / "trace", 500, 1_000) <= 0.5
    assert simulate(policy, tmp_path / "trace", 2_000, 1_000) == 1.0


def test_the_best_fixed_set_is_the_most_frequent() -> None:
    asked = np.array([5, 5, 5, 7, 7, 9, 1, 5])
    best = best_in_hindsight(asked, 2)
    assert sorted(best) == [5, 7]
    assert fixed_set(best, asked) == 6 / 8


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    return list(cache_study.measure("smoke", 1, tmp_path_factory.mktemp("data")))


def test_it_is_near_the_best_policy(rows) -> None:
    found = cache_study.worst(rows)
    assert set(found) == {"zipf", "drift", "fast drift"}
    for kind in ("zipf", "drift"):
        assert found[kind].behind <= cache_study.LIMITS[kind], found[kind]
    assert cache_study.judge(rows).word == "reproduced"


def test_all_have_the_same_entries_and_the_optimum_is_one(rows) -> None:
    for part in cache_study.CACHES:
        here = where(rows, trace="Zipf 1", part=part)
        (entries,) = {row["entries"] for row in here}
        assert entries == pytest.approx(part * 20_000, rel=0.15)
        assert all(row["held"] <= entries + 1 for row in here if "held" in row)
        best = one(here, policy=cache_study.OPTIMUM)
        assert all(row["hits"] <= best["hits"] + 0.01 for row in here)
        assert best["hits_by_bytes"] > best["hits"], "more fits where nothing is kept in books"


def test_a_worse_front_stage_would_show(rows) -> None:
    worse = [
        row | {"hits": row["hits"] - 0.05} if row["policy"] in cache_study.OURS else row
        for row in rows
    ]
    assert cache_study.judge(worse).word == "not reproduced"


def test_the_chart_has_every_policy(rows) -> None:
    figure = cache_study.draw(rows)
    assert len(figure.axes) == len(cache_study.CACHES)
    labels = set(figure.axes[0].get_legend_handles_labels()[1])
    assert {*POLICIES, cache_study.OPTIMUM, *cache_study.OURS} <= labels
