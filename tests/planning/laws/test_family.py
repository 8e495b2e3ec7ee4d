"""Disk work per stream row: against simulators, and against the counters of the real joins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.budget.sizes import SWEEP_PARTS
from semistream.errors import SpecError
from semistream.planning.laws import family, ssij, sweeps, zipf
from semistream.planning.laws.family import disk_work
from semistream.planning.laws.setting import DiskWork, Setting
from tests.helpers import model_simulator as simulator
from tests.helpers.fed_join import ROWS, FedJoin, make_store

MODELLED = tuple(name for name in ss.ALGORITHMS if name != "memory")
SMALL = Setting(rows=1000, pages=100, page_bytes=4096, waiting=320, skew=0.0)


# --- by hand ----------------------------------------------------------------------------------


def test_a_scan_by_hand() -> None:
    # 320 rows share each of 100 pages; 10 pages per read; every master row meets the window.
    work = disk_work("meshjoin", replace(SMALL, read_pages=10))
    assert work == DiskWork(
        reads=10 / 320, pages=100 / 320, bytes=100 / 320 * 4096, master_rows=1000 / 320,
        waits=320, jumps=1 / 320,
    )  # fmt: skip
    # A row that matches the n-th of 10 reads keeps its slot for n reads, 5.5 on average.
    early = disk_work("rmeshjoin", replace(SMALL, read_pages=10, release="match"))
    used = family.MATCHED * 320
    assert early.pages == pytest.approx(100 / (used * 10 / 5.5))
    assert early.waits == pytest.approx(used)


def test_a_sweep_that_needs_every_page_is_a_scan() -> None:
    mapped = replace(SMALL, waiting=32_000, mapped=True)
    work = disk_work("sweepjoin", replace(mapped, read_pages=100))
    assert work.pages == pytest.approx(100 / 32_000)
    assert work.reads == pytest.approx(1 / 32_000, rel=0.02)
    assert work.waits == pytest.approx(32_000 / 2)
    cut = disk_work("sweepjoin", replace(mapped, read_pages=25))
    assert cut.reads == pytest.approx(4 / 32_000, rel=0.02)
    # Behind a cache that answers half of the rows a 16th to a 32nd of the slots is free.
    half = disk_work("sweepjoin", replace(mapped, read_pages=100, cached=500))
    assert half.waits == pytest.approx((1 - 1.5 / 32) * 32_000 / 2 / 0.5)


def test_a_sweep_in_parts_by_hand() -> None:
    """If all slots were in use: 1 + 2 + .. + 7 parts' worth of new rows wait in 4 parts' room."""
    full = replace(SMALL, waiting=8_000 / sweeps.ROLLED)
    assert sweeps.rounds(full) == pytest.approx((14_000, 7))
    assert disk_work("sweepjoin", full).pages == pytest.approx(100 / 14_000)
    # Two pages are two parts: when one comes all its rows wait and half of the other's.
    two = replace(full, pages=2)
    assert sweeps.rounds(two) == pytest.approx((16_000 * 2 / 3, 2.0))
    # Answers that are held until older rows have theirs: all at once.
    whole = disk_work("sweepjoin", replace(full, in_order=True))
    assert whole == disk_work("sweepjoin", replace(full, mapped=True))


def test_a_lookup_by_hand() -> None:
    # Two uniform draws meet on the same of 100 pages once in 100.
    assert disk_work("inlj", SMALL).pages == pytest.approx(0.99, rel=1e-3)
    assert disk_work("inlj", replace(SMALL, pool_pages=100)).pages == 0
    assert disk_work("inlj", replace(SMALL, pool_pages=30)).pages == pytest.approx(0.7, rel=0.01)
    assert disk_work("cinlj", replace(SMALL, cached=500)).pages == pytest.approx(0.495, rel=2e-3)


def test_what_is_cached_needs_no_disk() -> None:
    nothing = DiskWork(0, 0, 0, 0, 0, 0)
    for name in ("sweepjoin", "cmeshjoin", "chybridjoin", "xhybridjoin", "cinlj"):
        assert disk_work(name, replace(SMALL, cached=1000)) == nothing
    assert disk_work("meshjoin", replace(SMALL, cached=1000)).pages > 0  # it has no cache


def test_pinned_pages_that_are_not_popular_answer_as_much_as_others() -> None:
    pinned = disk_work("xhybridjoin", replace(SMALL, skew=1.0, cached=250))
    cached = disk_work("chybridjoin", replace(SMALL, skew=1.0, cached=250))
    none = disk_work("hybridjoin", replace(SMALL, skew=1.0))
    assert cached.pages < 0.6 * pinned.pages
    assert pinned.pages < none.pages


def test_what_has_no_model_is_refused() -> None:
    with pytest.raises(SpecError, match="algorithm='memory' has no model"):
        disk_work("memory", SMALL)
    with pytest.raises(SpecError, match="a page has at least one row"):
        replace(SMALL, pages=2000)
    with pytest.raises(SpecError, match="waiting is 0"):
        replace(SMALL, waiting=0)


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(MODELLED), waiting=st.floats(100, 1e6), more=st.floats(1.2, 20),
    skew=st.floats(0, 1.4), ordered=st.booleans(), cached=st.floats(0, 1e5),
)  # fmt: skip
def test_more_slots_never_cost_more_pages(
    name: str, waiting: float, more: float, skew: float, ordered: bool, cached: float
) -> None:
    setting = Setting(1e7, 1e5, 16384, waiting, skew, ordered, cached, read_pages=4)
    few, many = (disk_work(name, replace(setting, waiting=w)) for w in (waiting, more * waiting))
    assert 0 <= many.pages <= few.pages * 1.01
    assert all(value >= 0 for value in (few.reads, few.bytes, few.master_rows, few.waits))
    assert few.jumps <= few.reads * (1 + 1e-9)
    assert few.reads <= few.pages * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("name", MODELLED)
def test_a_huge_master_costs_no_more_to_think_about(name: str) -> None:
    huge = Setting(1e11, 1e9, 65536, 1e6, 1.0, False, 1e5, read_pages=8, pool_pages=1000)
    work = disk_work(name, huge)
    assert 0 < work.pages < np.inf


# --- against simulators -------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("skew", [0.0, 1.0])
@pytest.mark.parametrize("gap", [0, 3])
def test_a_sweep_matches_simulation(ordered: bool, skew: float, gap: int) -> None:
    rows, pages, waiting = 50_000, 1000, 1600
    draws = simulator.Draws(rows, skew, seed=5)
    page = simulator.page_of_rank(rows, pages, ordered, draws.random)
    filled = waiting
    sweeps = [simulator.sweep(page[draws.take(filled)], gap) for _ in range(60)]
    reads, brought = np.mean(sweeps, axis=0)
    work = disk_work(
        "sweepjoin",
        Setting(rows, pages, 1, waiting, skew, ordered, gap=gap, read_pages=pages, in_order=True),
    )
    noise = 4 * np.std(sweeps, axis=0) / np.sqrt(len(sweeps))
    assert work.pages * filled == pytest.approx(brought, rel=0.005, abs=noise[1])
    assert work.reads * filled == pytest.approx(reads, rel=0.02, abs=noise[0])


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("slots", "gap"), [(200, 0), (1_000, 0), (1_000, 3), (8_000, 0)])
def test_a_sweep_in_parts_matches_simulation(ordered: bool, skew: float, slots: int, gap) -> None:
    rows, pages = 50_000, 500
    draws = simulator.Draws(rows, skew, seed=5)
    page = simulator.page_of_rank(rows, pages, ordered, draws.random)
    rolled = simulator.Rolled(draws, page, slots, SWEEP_PARTS, gap)
    reads, brought = rolled.per_row(6, 12 if slots > 500 else 120)
    all_used = slots / sweeps.ROLLED  # the simulator has no bytes to wait for
    work = disk_work(
        "sweepjoin", Setting(rows, pages, 1, all_used, skew, ordered, gap=gap, read_pages=pages)
    )
    hot = ordered and skew == 1  # the first page alone is a part
    assert work.pages == pytest.approx(brought, rel=0.12 if hot else 0.04)
    assert work.reads == pytest.approx(reads, rel=0.4 if hot else 0.06)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("skew", [0.0, 0.7, 1.2])
def test_the_page_pool_matches_simulation(ordered: bool, skew: float) -> None:
    rows, pages, pool = 50_000, 1000, 150
    draws = simulator.Draws(rows, skew, seed=6)
    page = simulator.page_of_rank(rows, pages, ordered, draws.random)
    seen = simulator.pool_miss_rate(draws, page, pool, 10_000, 40_000)
    setting = Setting(rows, pages, 1, 100, skew, ordered, pool_pages=pool)
    assert family.pool_misses(setting) == pytest.approx(seen, rel=0.03, abs=0.002)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("skew", [0.0, 1.0, 1.3])
@pytest.mark.parametrize(("pages", "slots"), [(10_000, 5_000), (1_000, 10_000)])
def test_ssij_without_a_page_cache_matches_simulation(
    ordered: bool, skew: float, pages: int, slots: int
) -> None:
    draws = simulator.Draws(100_000, skew, seed=3)
    page = simulator.page_of_rank(100_000, pages, ordered, draws.random)
    seen = simulator.Planned(draws, page, slots, pool=0).pages_per_row(46, 46)
    law = ssij.solve(slots, 100_000, pages, skew, ordered, pool_pages=0)
    # (Rows are over age after 23 phases, many pages at once: so count whole multiples of that.)
    assert law.pages_per_row == pytest.approx(seen, rel=0.06)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("skew", [0.5, 1.0])
def test_ssij_with_a_page_cache_is_a_little_worse_than_its_model(
    ordered: bool, skew: float
) -> None:
    """The model's cache holds the best pages, the real one errs: up to 15 % more reads."""
    draws = simulator.Draws(100_000, skew, seed=3)
    page = simulator.page_of_rank(100_000, 1000, ordered, draws.random)
    seen = simulator.Planned(draws, page, 60_000, pool=50).pages_per_row(15, 15)
    law = ssij.solve(60_000, 100_000, 1000, skew, ordered, pool_pages=50)
    assert 0.85 * seen < law.pages_per_row < 1.03 * seen


# --- against the real joins ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("model") / "store")


@dataclass
class Run:
    """What a warm join read per row that it answered, and the numbers that the model wants."""

    pages: float
    hits: float
    setting: Setting


class Fed(FedJoin):
    def run(self, warm: int, rows: int) -> Run:
        self.feed(warm)
        before = self.join.stats
        self.feed(rows)
        after = self.join.stats
        answered = after.rows_matched - before.rows_matched
        hits = (after.front_hits - before.front_hits) / (after.rows_in - before.rows_in)
        return Run((after.pages_read - before.pages_read) / answered, hits, self._setting(hits))

    def _setting(self, hits: float) -> Setting:
        engine, info = self.join._engine, self.master.describe()
        assert engine is not None
        assert engine.phase is not None
        parts = engine.phase.parts
        pool = len(getattr(engine.phase, "_pool", ())) or len(getattr(engine.phase, "_held", ()))
        return Setting(
            rows=ROWS, pages=info.pages, page_bytes=info.bytes / info.pages,
            waiting=parts.backlog.capacity, skew=self.skew, ordered=self.ordered,
            cached=zipf.top_for(hits, ROWS, self.skew), pool_pages=pool,
            read_pages=max(1, parts.read_bytes // info.max_page_bytes),
            release=parts.params.release, mapped=self.master.mapped,
        )  # fmt: skip


@pytest.fixture
def fed(store: Path, request: pytest.FixtureRequest) -> Iterator[Fed]:
    made = Fed(store, *request.param)
    yield made
    made.close()


def _words(value: object) -> str:
    """A short name of a case."""
    if not isinstance(value, tuple):
        return str(value)
    name, params, skew, ordered, io = value
    return f"{name}-{params.release}-{skew}-{'ordered' if ordered else 'anywhere'}-{io}"


NONE = ss.Params(front_share=0.0)
SCAN = ss.Params(front_share=0.0, read_bytes=256 << 10)
EARLY = replace(SCAN, release="match")
SEEK = ss.Params(front_share=0.0, read_bytes=4 * (17 << 10))
POOL = ss.Params(page_pool=0.5)
ALONE = ss.Params(page_pool=1e-9)  # 0 would be tuned; this is less than a byte


@pytest.mark.parametrize(
    ("fed", "warm", "rows", "within"),
    [
        (("sweepjoin", NONE, 0.0, False, "pread"), 60_000, 80_000, 0.04),
        (("sweepjoin", NONE, 1.0, False, "pread"), 60_000, 80_000, 0.04),
        (("sweepjoin", NONE, 1.0, True, "pread"), 60_000, 80_000, 0.08),
        (("sweepjoin", NONE, 1.0, True, "map"), 0, 60_000, 0.02),
        (("meshjoin", SCAN, 1.0, False, "pread"), 20_000, 30_000, 0.03),
        (("rmeshjoin", SCAN, 1.0, True, "map"), 20_000, 30_000, 0.03),
        (("rmeshjoin", EARLY, 0.5, False, "pread"), 30_000, 40_000, 0.06),
        (("rmeshjoin", EARLY, 1.0, True, "map"), 30_000, 40_000, 0.10),
        (("cmeshjoin", SCAN, 1.0, False, "pread"), 20_000, 30_000, 0.03),
        (("hybridjoin", SEEK, 0.0, False, "map"), 30_000, 40_000, 0.08),
        (("hybridjoin", SEEK, 0.5, False, "pread"), 30_000, 40_000, 0.06),
        (("hybridjoin", SEEK, 1.0, False, "pread"), 30_000, 40_000, 0.06),
        (("chybridjoin", SEEK, 1.0, False, "map"), 30_000, 40_000, 0.08),
        (("inlj", ALONE, 1.0, False, "pread"), 0, 500, 0.02),
        (("inlj", ALONE, 1.0, True, "pread"), 0, 1_000, 0.06),
        (("inlj", POOL, 1.0, True, "pread"), 500, 1_500, 0.06),
        (("ssij", NONE, 1.0, True, "pread"), 30_000, 30_000, 0.06),
        (("ssij", NONE, 1.0, False, "map"), 30_000, 30_000, 0.06),
    ],
    indirect=["fed"],
    ids=_words,
)  # fmt: skip
def test_the_real_joins_read_what_the_model_says(
    fed: Fed, warm: int, rows: int, within: float
) -> None:
    run = fed.run(warm, rows)
    work = disk_work(fed.join.stats.algorithm, run.setting)
    assert work.pages == pytest.approx(run.pages, rel=within)


CACHE = ss.Params(front_share=0.3)


@pytest.mark.parametrize(
    ("fed", "warm", "rows"),
    [
        (("sweepjoin", CACHE, 1.0, False, "map"), 100_000, 100_000),
        (("sweepjoin", CACHE, 1.0, False, "pread"), 100_000, 100_000),
        (("cmeshjoin", replace(SCAN, front_share=0.3), 1.0, False, "pread"), 60_000, 60_000),
        (("chybridjoin", replace(SEEK, front_share=0.3), 1.0, False, "pread"), 60_000, 60_000),
        (("chybridjoin", replace(SEEK, front_share=0.3), 1.0, False, "map"), 60_000, 60_000),
        (("xhybridjoin", replace(SEEK, front_share=0.3), 0.7, True, "pread"), 30_000, 40_000),
    ],
    indirect=["fed"],
    ids=_words,
)
def test_behind_a_front_stage_too(fed: Fed, warm: int, rows: int) -> None:
    """With as many of the most popular keys in the cache as give the hit rate that was measured."""
    run = fed.run(warm, rows)
    assert run.hits > 0.15
    work = disk_work(fed.join.stats.algorithm, run.setting)
    assert work.pages == pytest.approx(run.pages, rel=0.1)


@pytest.mark.parametrize(
    "fed", [("hybridjoin", SEEK, 1.0, True, "pread")], indirect=True, ids=_words
)
def test_where_one_block_has_most_of_the_stream_the_model_promises_too_much(fed: Fed) -> None:
    run = fed.run(30_000, 40_000)
    work = disk_work("hybridjoin", run.setting)
    assert 0.75 * run.pages < work.pages < 0.95 * run.pages
