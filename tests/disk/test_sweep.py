"""A sweep over pages that are read takes part after part of the waiting rows, and goes round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream.errors import MasterError
from semistream.master.facts import facts
from semistream.planning.machine import DEFAULT_MACHINE
from semistream.planning.predict import predict
from semistream.planning.work import Case
from semistream.spec import Workload

ROWS, MEMORY = 60_000, 1 << 20
SCHEMA = pa.schema({"id": pa.int64(), "n": pa.int64()})
NO_CACHE = ss.Params(front_share=0.0, sketch=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts") / "store"
    ids = np.arange(ROWS)
    table = pa.table({"id": ids, "text": [f"row {i} " + "x" * 40 for i in ids]})
    ss.Store.create(path, table, "id", page_bytes=16 << 10).close()
    return path


class Fed:
    """Uniform keys; every row has its own number."""

    def __init__(self, store: Path, io: str = "pread", **more: object) -> None:
        self.master = ss.Store.open(store, io=io)
        more = {"params": NO_CACHE, "how": "inner", **more}
        self.join = ss.SemiStreamJoin(
            self.master, "id", memory=MEMORY, algorithm="sweepjoin", stream_schema=SCHEMA, **more
        )
        self.rng, self.sent, self.answered = np.random.default_rng(3), 0, []

    def push(self, rows: int) -> list[int]:
        """The numbers of the rows that were answered meanwhile."""
        numbers = np.arange(self.sent, self.sent + rows)
        self.sent += rows
        batch = pa.record_batch({"id": self.rng.integers(0, ROWS, rows), "n": numbers})
        return self.take(self.join.push(batch))

    def take(self, answers) -> list[int]:
        """Also what comes before an error."""
        before = len(self.answered)
        for out in answers:
            self.answered += out.column("n").to_pylist()
        return self.answered[before:]

    def close(self) -> None:
        self.join.close()
        self.master.close()


@pytest.fixture
def fed(store: Path):
    made: list[Fed] = []

    def make(**more: object) -> Fed:
        made.append(Fed(store, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def rows_per_slot(run: Fed) -> float:
    """That are answered while the master is read once."""
    slots, pages = _slots(run), run.master.describe().pages
    run.push(6 * slots)
    before = run.join.stats
    run.push(12 * slots)
    after = run.join.stats
    rounds = (after.pages_read - before.pages_read) / pages
    return (after.rows_matched - before.rows_matched) / slots / rounds


def _slots(run: Fed) -> int:
    run.push(1)
    return run.join.stats.slots


def test_a_round_answers_nearly_two_rows_per_slot(fed) -> None:
    assert rows_per_slot(fed(io="map")) == pytest.approx(1, rel=0.02)
    assert rows_per_slot(fed()) > 1.6


def test_no_row_waits_for_more_than_a_round(fed) -> None:
    run = fed()
    slots = _slots(run)
    run.push(4 * slots)
    mine = set(range(run.sent, run.sent + slots // 2))
    run.push(slots // 2)
    run.push(2 * slots)  # a round answers less than that
    assert mine <= set(run.answered)


def test_every_row_is_answered_once(fed) -> None:
    run = fed()
    for rows in (7, 5_000, 1, 20_000, 333):
        run.push(rows)
    run.take(run.join.drain())
    assert sorted(run.answered) == list(range(run.sent))


def test_the_last_rows_are_answered_by_one_sweep(fed) -> None:
    run = fed()
    slots = _slots(run)
    run.push(slots - slots // 8)
    for _ in range(2):
        before = run.join.stats
        run.take(run.join.drain())
        after = run.join.stats
        assert after.steps - before.steps == 1
        assert after.pages_read - before.pages_read <= run.master.describe().pages
        run.push(slots // 2)


def test_a_failed_read_within_a_round_loses_nothing(fed, monkeypatch) -> None:
    run = fed()
    run.push(3 * _slots(run))
    read, calls = type(run.master).read, []

    def fails_once(self, numbers, columns):
        calls.append(len(numbers))
        if len(calls) == 2:
            raise MasterError("gone")
        return read(self, numbers, columns)

    monkeypatch.setattr(type(run.master), "read", fails_once)
    with pytest.raises(MasterError, match="gone"):
        run.push(2 * run.join.stats.slots)
    run.take(run.join.drain())
    assert sorted(run.answered) == list(range(run.sent))


def test_where_answers_keep_the_order_a_step_answers_all(fed) -> None:
    run = fed(ordered=True)
    slots = _slots(run)
    run.push(3 * slots + slots // 2)
    assert run.join.stats.waiting > 0
    run.take(run.join.step())
    assert run.join.stats.waiting == 0
    run.take(run.join.drain())
    assert run.answered == list(range(run.sent))


def test_a_front_stage_that_falls_asleep_lends_its_memory_and_gets_it_back(fed) -> None:
    """For that nobody may wait, so one sweep answers all."""
    run = fed(params=ss.Params(front_share=0.3, sketch=False))
    before = _slots(run)
    run.push(20 * before)
    lent = run.join.stats.slots
    assert lent > 1.2 * before
    hot = pa.record_batch({"id": np.full(500, 7), "n": np.zeros(500, np.int64)})
    for _ in range(40 * lent // 500):
        for _ in run.join.push(hot):
            pass
    assert run.join.stats.slots == before
    assert run.join.stats.front_hits > 0


def ascending(run: Fed, rows: int) -> None:
    """Keys that only grow, as new ids do: a round would never end."""
    numbers = np.arange(run.sent, run.sent + rows)
    run.take(run.join.push(pa.record_batch({"id": ROWS + numbers, "n": numbers})))
    run.sent += rows


def behind(run: Fed) -> set[int]:
    """A hundred rows whose key had its turn in this round."""
    mine = np.arange(run.sent, run.sent + 100)
    run.take(run.join.push(pa.record_batch({"id": np.full(100, 3), "n": mine})))
    run.sent += 100
    return set(mine.tolist())


def test_rows_that_always_come_just_ahead_do_not_keep_others_waiting(fed) -> None:
    run = fed(how="left")
    slots = _slots(run)
    ascending(run, 2 * slots)
    mine = behind(run)
    for _ in range(40):
        ascending(run, slots // 8)
    assert mine <= set(run.answered)


def test_few_rows_that_come_just_ahead_do_not_either(fed) -> None:
    """Whoever calls step() has few rows waiting, and slots by the thousand."""
    run = fed(how="left")
    for _ in range(20):
        ascending(run, 200)
        run.take(run.join.step())
    mine = behind(run)
    for _ in range(20):
        ascending(run, 200)
        run.take(run.join.step())
    assert run.join.stats.slots > 20 * 200
    assert mine <= set(run.answered)


def test_restoring_again_and_again_does_not_make_rows_young(store: Path) -> None:
    run = Fed(store, how="left")
    slots = _slots(run)
    ascending(run, 2 * slots)
    mine = behind(run)
    for _ in range(40):
        ascending(run, slots // 8)
        saved, sent, answered = run.join.snapshot(), run.sent, run.answered
        run.close()
        run = Fed(store, how="left")
        run.join.restore(saved)
        run.sent, run.answered = sent, answered
    run.close()
    assert mine <= set(run.answered)


def test_a_restored_join_goes_on_where_it_was(store: Path) -> None:
    """Else whoever restores often would always answer the lowest keys."""
    run = Fed(store)
    slots = _slots(run)
    run.push(3 * slots)
    for _ in range(40):
        run.push(slots // 5)
        saved, sent, answered = run.join.snapshot(), run.sent, run.answered
        run.close()
        run = Fed(store)
        run.join.restore(saved)
        run.sent, run.answered = sent, answered
        run.rng = np.random.default_rng(sent)
    run.close()
    assert set(range(run.sent - 3 * slots)) <= set(run.answered)


@pytest.mark.parametrize("hot", [0, ROWS - 300])
def test_a_part_without_hot_keys_does_not_send_the_front_stage_to_sleep(fed, hot) -> None:
    run = fed(params=ss.Params(front_share=0.1, sketch=False))
    run.push(1)
    for _ in range(200):
        keys = run.rng.integers(0, ROWS, 1_000)
        keys[:500] = hot + run.rng.integers(0, 300, 500)
        batch = pa.record_batch({"id": run.rng.permutation(keys), "n": np.zeros(1_000, np.int64)})
        for _ in run.join.push(batch):
            pass
    assert run.join.stats.front_hits > 0.4 * run.join.stats.rows_in


def groups(path: Path, rows: int, many: int) -> Path:
    """A Parquet file in no order within each row group."""
    rng, size = np.random.default_rng(1), rows // many
    ids = np.concatenate([i * size + rng.permutation(size) for i in range(many)])
    pq.write_table(pa.table({"id": ids, "pid": 10 * ids, "t": ["x" * 50] * rows}), path,
                   row_group_size=size)  # fmt: skip
    return path


@pytest.mark.parametrize("many", [1, 2, 10])
def test_a_row_group_is_not_read_again_for_what_came_meanwhile(many, tmp_path) -> None:
    master = ss.open_master(groups(tmp_path / "p.parquet", 20_000, many), key="id")
    params = ss.Params(front_share=0.0, sketch=False)
    join = ss.SemiStreamJoin(
        master, "id", memory=1 << 20, algorithm="sweepjoin", params=params, columns=["pid"]
    )
    rng, slots = np.random.default_rng(2), 0
    for i in range(60):
        for _ in join.push(pa.record_batch({"id": rng.integers(0, 20_000, 1_000)})):
            pass
        if i == 10:
            first, slots = join.stats, join.stats.slots
    now = join.stats
    rounds = (now.pages_read - first.pages_read) / master.describe().pages
    per_slot = (now.rows_matched - first.rows_matched) / slots / rounds
    assert per_slot > {1: 0.9, 2: 1.2, 10: 1.45}[many]
    found = predict(Case(ss.ALGORITHMS["sweepjoin"], facts(master), Workload(0.0), 1 << 20, params),
                    DEFAULT_MACHINE)  # fmt: skip
    assert facts(master).spans == many
    pages = (now.pages_read - first.pages_read) / (now.rows_matched - first.rows_matched)
    assert found.work.disk.pages == pytest.approx(pages, rel=0.15)
    join.close()


def test_no_match_is_lost_after_a_failed_read_of_pages_that_overlap(tmp_path, monkeypatch) -> None:
    """Rows that go on at a later page, beside new ones with larger keys that begin."""
    master = ss.open_master(groups(tmp_path / "p.parquet", 8_000, 1), key="id")
    assert master.describe().pages > 3
    params = ss.Params(front_share=0.0, sketch=False)
    join = ss.SemiStreamJoin(master, "id", "left", memory=1 << 20, algorithm="sweepjoin",
                             params=params, columns=["pid"])  # fmt: skip
    read, calls, out = type(master).read, [], []

    def fails_once(self, numbers, columns):
        calls.append(1)
        if len(calls) == 3:
            raise MasterError("gone")
        return read(self, numbers, columns)

    monkeypatch.setattr(type(master), "read", fails_once)
    out += join.push(pa.record_batch({"id": np.arange(100)}))
    with pytest.raises(MasterError, match="gone"):
        out.extend(join.step())
    out += join.push(pa.record_batch({"id": np.arange(100, 160)}))
    out += join.drain()
    found = pa.Table.from_batches(out).sort_by("id")
    assert found["id"].to_pylist() == list(range(160))
    assert found["pid"].to_pylist() == [10 * i for i in range(160)]
    join.close()


def test_wide_rows_go_round_too(store: Path) -> None:
    """Where bytes are short and not slots a part is one of those that wait."""
    schema = pa.schema({"id": pa.int64(), "note": pa.string()})
    master = ss.Store.open(store, io="pread")
    join = ss.SemiStreamJoin(master, "id", memory=MEMORY, algorithm="sweepjoin", params=NO_CACHE,
                             stream_schema=schema)  # fmt: skip
    rng, most = np.random.default_rng(5), 0
    for i in range(100):
        keys = rng.integers(0, ROWS, 200)
        for _ in join.push(pa.record_batch({"id": keys, "note": ["y" * 400] * 200})):
            pass
        most = max(most, join.stats.waiting)
        if i == 30:
            first = join.stats
    now = join.stats
    rounds = (now.pages_read - first.pages_read) / master.describe().pages
    steps = now.steps - first.steps
    answered = now.rows_matched - first.rows_matched
    assert most < 0.5 * now.slots
    assert answered / steps < 0.5 * most
    assert answered / most / max(rounds, 1e-9) > 1.0
    join.close()
    master.close()
