"""What a join is said to do per stream row, against the counters of real ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import semistream as ss
from semistream.budget.sizes import STREAM_ROW
from semistream.budget.split import split_memory
from semistream.master.facts import facts
from semistream.planning.device import DEVICES
from semistream.planning.machine import DEFAULT_MACHINE
from semistream.planning.phases import LookupRhythm, Rhythm, ScanRhythm, SeekRhythm, SweepRhythm
from semistream.planning.predict import predict
from semistream.planning.tune import tune
from semistream.planning.work import Case, Work, work_of
from semistream.rows.layout import row_bytes
from semistream.spec import MasterFacts, Workload
from tests.helpers.fed_join import SCHEMA, FedJoin, make_store
from tests.helpers.plan_data import READ, STORE, TABLE, case

PLAIN = ss.Params(front_share=0.3, page_pool=1e-9)  # of the pool less than a byte: none
SCAN = replace(PLAIN, read_bytes=128 << 10)
SEEK = replace(PLAIN, read_bytes=4 * (17 << 10))
EARLY = replace(SCAN, release="match")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("work") / "store")


@pytest.fixture
def fed(store: Path, request: pytest.FixtureRequest) -> Iterator[FedJoin]:
    name, params, io, *batch = request.param
    made = FedJoin(store, name, params, 1.2, False, io, *batch)
    yield made
    made.close()


def _work(fed: FedJoin) -> Work:
    stream = Workload(
        skew=fed.skew, row_bytes=row_bytes(SCHEMA) - 1, columns=len(SCHEMA), batch_rows=fed.batch
    )
    join, engine = fed.join, fed.join._engine
    assert engine is not None
    asked = Case(join.algorithm, facts(fed.master), stream, 5 << 19, join.params)
    return work_of(asked, engine.split)


def _words(value: object) -> str:
    return f"{value[0]}-{value[1].release}-{value[2]}" if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(
    ("fed", "warm", "rows", "pages", "steps", "pieces"),
    [
        (("sweepjoin", PLAIN, "pread"), 660_000, 560_000, 0.05, 0.05, 0.30),
        (("meshjoin", SCAN, "pread"), 20_000, 30_000, 0.05, 0.05, 0.10),
        (("rmeshjoin", EARLY, "pread"), 20_000, 40_000, 0.10, 0.10, 0.30),
        (("cmeshjoin", SCAN, "pread"), 60_000, 60_000, 0.15, 0.15, 0.50),
        (("hybridjoin", SEEK, "pread"), 30_000, 40_000, 0.05, 0.05, 0.60),
        (("xhybridjoin", SEEK, "pread"), 30_000, 40_000, 0.10, 0.10, 0.70),
        (("chybridjoin", SEEK, "pread"), 60_000, 60_000, 0.15, 0.15, 0.50),
        (("inlj", PLAIN, "pread", 500), 500, 1_000, 0.05, 0.01, 0.01),
        (("ssij", PLAIN, "pread"), 30_000, 30_000, 0.10, 0.05, 0.10),
        (("sweepjoin", PLAIN, "map"), 100_000, 140_000, 0.05, 0.05, 0.20),
        (("meshjoin", SCAN, "map"), 20_000, 30_000, 0.05, 0.05, 0.10),
        (("rmeshjoin", EARLY, "map"), 20_000, 40_000, 0.10, 0.10, 0.30),
        (("cmeshjoin", SCAN, "map"), 60_000, 60_000, 0.15, 0.15, 0.50),
        (("hybridjoin", SEEK, "map"), 30_000, 60_000, 0.10, 0.25, 0.20),
        (("xhybridjoin", SEEK, "map"), 30_000, 60_000, 0.10, 0.25, 0.20),
        (("chybridjoin", SEEK, "map"), 60_000, 100_000, 0.15, 0.20, 0.40),
        (("inlj", PLAIN, "map"), 20_000, 60_000, 0.03, 0.01, 0.05),
        (("cinlj", PLAIN, "map"), 60_000, 60_000, 0.05, 0.01, 0.05),
        (("ssij", PLAIN, "map"), 40_000, 60_000, 0.20, 0.20, 0.30),
    ],
    indirect=["fed"],
    ids=_words,
)  # fmt: skip
def test_real_joins_do_what_is_said(
    fed: FedJoin, warm: int, rows: int, pages: float, steps: float, pieces: float
) -> None:
    """Per row that came; a sweep's pages and steps per row that it answered, since it comes but a
    few times."""
    fed.feed(warm)
    before = fed.join.stats
    fed.feed(rows)
    after, said = fed.join.stats, _work(fed)
    came, hits = after.rows_in - before.rows_in, after.front_hits - before.front_hits
    each, share = came, 1.0
    if after.algorithm == "sweepjoin":
        each, share = after.rows_matched - before.rows_matched - hits, said.misses
    assert said.waiting == after.slots
    assert said.hits == pytest.approx(hits / came, abs=0.03)
    read, made = after.pages_read - before.pages_read, after.steps - before.steps
    assert said.disk.pages / share == pytest.approx(read / each, rel=pages)
    assert said.steps / share == pytest.approx(made / each, rel=steps)
    assert said.pieces == pytest.approx((after.pieces - before.pieces) / came, rel=pieces)


@pytest.mark.parametrize("skew", [0.3, 0.5, 0.6, 0.7])
def test_the_tuner_knows_whether_the_front_stage_will_sleep(store: Path, skew: float) -> None:
    """Else it would give half of the memory to one that stays awake for a few hits."""
    with closing(ss.Store.open(store, io="pread")) as master:
        stream = Workload(skew, row_bytes=48, columns=2, batch_rows=20_000)
        open_knobs = ss.Params(sketch=False)
        asked = Case(ss.ALGORITHMS["sweepjoin"], facts(master), stream, 5 << 19, open_knobs)
        found = tune(asked, DEFAULT_MACHINE)
    fed = FedJoin(store, "sweepjoin", found.case.params, skew, False, "pread")
    fed.feed(300_000)
    before = fed.join.stats
    fed.feed(200_000)
    after = fed.join.stats
    fed.close()
    read = (after.pages_read - before.pages_read) / (after.rows_matched - before.rows_matched)
    assert found.work.disk.pages == pytest.approx(read, rel=0.05)
    assert found.work.waiting == after.slots


@pytest.mark.parametrize("fed", [("cinlj", PLAIN, "pread", 500)], indirect=True, ids=_words)
def test_a_lookup_behind_a_cache_reads_a_page_per_miss(fed: FedJoin) -> None:
    """A cache of thousands of keys takes long to warm up, page by page: so per miss."""
    fed.feed(3_000)
    before = fed.join.stats
    fed.feed(1_000)
    after, said = fed.join.stats, _work(fed)
    misses = 1_000 - (after.front_hits - before.front_hits)
    read = (after.pages_read - before.pages_read) / misses
    assert said.disk.pages / said.misses == pytest.approx(read, rel=0.02)
    assert said.steps == said.pieces == 1 / 500


# --- by hand --------------------------------------------------------------------------------------


def test_pieces_by_hand() -> None:
    """1,600 slots, pieces of up to 1,000 rows, batches of 10,000."""
    sweep = SweepRhythm(True, 10_000, 1_000, 1_600, 1.0)
    assert sweep.steps == 1 / 1_600
    assert sweep.pieces == pytest.approx(2 / 1_600, rel=0.05), "1,000 rows and 600"
    half = SweepRhythm(True, 10**9, 10**9, 1_600, 0.5)
    # 1600, 800, 400, 200, 100: after these 50 slots are free, less than a 16th.
    assert half.pieces == pytest.approx(5 / 3_100, rel=0.05)
    lookup = LookupRhythm(False, 4_000, 10_000, 1_600, 1.0)
    assert lookup.steps == 3 / 4_000
    assert lookup.pieces == pytest.approx(3 / 4_000, rel=0.05), "1,600, 1,600 and 800"
    seek = SeekRhythm(False, 10**9, 10_000, 1_600, 1.0, reads=1 / 10)
    assert seek.steps == 1 / 10
    assert seek.pieces == pytest.approx(1 / 105, rel=0.05), (
        "when 100 slots are free, and half a read"
    )
    scan = ScanRhythm(False, 10**9, 10_000, 1_600, 1.0, reads=1 / 10)
    assert scan.pieces == pytest.approx(1 / 10)
    assert Rhythm(True, 2_500, 1_000, 0, 0.0).pieces == 3 / 2_500


def _said(asked: Case) -> Work:
    widest = max(STREAM_ROW, asked.workload.row_bytes)
    split = split_memory(asked.algorithm, asked.master, asked.memory, widest, asked.params)
    return work_of(asked, split)


def test_a_database_is_asked_for_as_many_keys_as_may_be_sent() -> None:
    """A row is there three times while it is sent; 10,000 keys at once are the most."""
    asked = case("sweepjoin", TABLE, 24_000_000, skew=0.0, front_share=0.0)
    said = _said(asked)
    split = split_memory(asked.algorithm, TABLE, 24_000_000, STREAM_ROW, asked.params)
    calls = said.disk.reads * said.waiting
    keys = said.disk.pages * said.waiting
    assert 0.9 * said.waiting < keys <= said.waiting, "nearly all are different"
    assert calls == pytest.approx(keys / min(10_000, split.read / 3 / 120), abs=1)
    now = _said(case("inlj", TABLE, 24_000_000, skew=0.0, batch_rows=5_000))
    assert now.disk.reads * 5_000 == pytest.approx(1), "one round trip for a batch"
    assert now.disk.waits == 0


def test_rows_without_a_master_row_wait_like_others() -> None:
    """Whoever is not answered by the cache takes a slot, so the disk has more to do."""
    for name in ("sweepjoin", "cmeshjoin", "chybridjoin"):
        none, some = (
            _said(case(name, READ, orphans=share, front_share=0.3)) for share in (0.0, 0.4)
        )
        assert some.hits == pytest.approx(0.6 * none.hits)
        assert some.disk.pages / none.disk.pages == pytest.approx(some.misses / none.misses)


def test_where_pages_overlap_a_lookup_answers_one_key() -> None:
    overlapping: MasterFacts = replace(READ, overlapping=True, in_key_order=False)
    alone = _said(case("hybridjoin", overlapping, skew=0.0))
    shared = _said(case("hybridjoin", READ, skew=0.0))
    assert alone.disk.reads > 0.9, "keys of a uniform stream hardly ever repeat among those waiting"
    assert shared.disk.reads < 0.1


def test_a_mapped_lookup_uses_a_page_once_for_all_rows_of_a_batch() -> None:
    many = _said(case("inlj", STORE, 24_000_000, skew=0.0, batch_rows=50_000))
    assert many.disk.pages == pytest.approx(STORE.pages / 50_000, rel=0.01)
    read = _said(case("inlj", READ, 24_000_000, skew=0.0, batch_rows=50_000))
    assert read.disk.pages > 0.99


def test_single_pages_are_joined_only_where_a_device_goes_on_for_nothing() -> None:
    """An object store answers each request for itself: no gap is read for ssij."""
    asked = case("ssij", READ, front_share=0.0)
    found = predict(asked, replace(DEFAULT_MACHINE, device=DEVICES["object-store"]))
    assert found.work.disk.bytes == pytest.approx(found.work.disk.pages * READ.page_bytes)
