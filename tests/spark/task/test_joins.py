"""The joins of a worker process share its memory, and remember what they have learnt."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.spark.task import hot_keys, joins
from semistream.spark.task.enrich import EnrichTask
from semistream.spark.task.joins import POOL
from semistream.testing import assert_same_rows, oracle
from tests.helpers.damage import outcomes
from tests.helpers.spark_data import master_table, task_of, warm_joins

KEYS = 3_000
MASTER = master_table([*range(KEYS)])
LEAST = 100_000  # bytes, about: a join with a front stage


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch) -> Iterator[None]:
    """No join before, none left behind; a scratch folder of its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(POOL, "living", {})
    yield
    POOL.drop(warm_joins())


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr(POOL, "_clock", lambda: now[0])
    return now


@pytest.fixture
def stores(tmp_path) -> list[Path]:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for path in paths:
        ss.Store.create(path, MASTER, key="id", page_bytes=1024).close()
    return paths


def sales(rows: int = 2_000, seed: int = 1) -> pa.RecordBatch:
    rng = random.Random(seed)
    ids = [min(int(rng.paretovariate(0.8)), KEYS + 50) for _ in range(rows)]
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "nr": pa.array(range(rows))})


def run(task: EnrichTask, batch: pa.RecordBatch, how: str = "left") -> None:
    out = list(task(iter(batch.slice(at, 500) for at in range(0, len(batch), 500))))
    assert_same_rows(out, oracle(pa.Table.from_batches([batch]), MASTER, "id", how))


def held() -> int:
    return sum(join.stats.bytes_held for join in warm_joins())


def test_joins_in_turn_share_the_memory_of_a_task(stores, clock) -> None:
    """Each is warm when its turn comes again, and together they never have more than a task asked
    for."""
    memory = 600_000
    cache = ss.Params(front_share=0.5)  # so small a master may do without
    tasks = [task_of(path, memory=memory, params=cache) for path in stores]
    for turn in range(4):
        for task in tasks:
            run(task, sales(seed=turn))
            assert sum(join.budget for join in warm_joins()) <= memory
            assert held() <= memory
        if turn == 1:
            steady = warm_joins()
    assert len(steady) == 3
    assert warm_joins() == steady, "a join was made anew although nothing had changed"
    assert all(join.stats.front_hits > 1_000 for join in steady)


def test_the_larger_question_gets_the_larger_share(stores, clock) -> None:
    run(task_of(stores[0], memory=900_000), sales())
    run(task_of(stores[1], memory=300_000), sales())
    run(task_of(stores[0], memory=900_000), sales())
    assert sorted(join.budget for join in warm_joins()) == [225_000, 675_000]


def test_what_is_not_used_makes_room_and_comes_back_warm(stores, clock) -> None:
    a, b = (task_of(path, memory=700_000) for path in stores[:2])
    for task in (a, b, a, b):
        run(task, sales())
    assert [join.budget for join in warm_joins()] == [350_000] * 2
    clock[0] += joins.IDLE + 1
    run(b, sales())
    (join,) = warm_joins()
    assert join.budget == 700_000
    later = sales(300, seed=9)
    run(a, later)
    back = warm_joins()[-1]
    assert back.stats.front_hits > 100, "it has forgotten what was popular"


def test_too_little_to_share(stores, clock) -> None:
    """Where half is not enough for a join, the other one goes."""
    with pytest.raises(ss.BudgetError) as refused:
        run(task_of(stores[0], memory=1_000), sales(10))
    tasks = [task_of(path, memory=int(refused.value.least * 1.2)) for path in stores]
    for _ in range(2):
        for task in tasks:
            run(task, sales(300))
            assert len(warm_joins()) == 1


def test_a_worker_that_ended_is_followed_by_a_warm_one(stores, clock) -> None:
    """Only a file is left of it."""
    task = task_of(stores[0], memory=400_000)
    run(task, sales())
    POOL.drop(warm_joins())  # as when the process ends
    later = sales(300, seed=9)
    run(task, later)
    assert warm_joins()[0].stats.front_hits > 100
    POOL.drop(warm_joins())
    (kept,) = Path(tempfile.gettempdir()).glob("*/hot-keys/*.hot")
    os.truncate(kept, kept.stat().st_size // 2)
    run(task, later)
    assert warm_joins()[0].stats.front_hits == 0, "half a file is a miss"


def test_saving_is_rare_and_can_be_switched_off(stores, clock, monkeypatch) -> None:
    saved: list[Any] = []
    monkeypatch.setattr(joins, "save_hot", lambda name, learnt: saved.append(learnt))
    task = task_of(stores[0], memory=400_000)
    for _ in range(5):
        run(task, sales())
        clock[0] += joins.SAVE / 4
    assert len(saved) == 2
    monkeypatch.setenv(hot_keys.OFF, "off")
    hot_keys.save_hot("x", saved[0])
    assert hot_keys.load_hot("x") == b""
    monkeypatch.delenv(hot_keys.OFF)
    hot_keys.save_hot("x", saved[0])
    assert hot_keys.load_hot("x") == saved[0]


def test_a_folder_that_cannot_be_used_costs_no_answer(stores, clock, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    for _ in range(2):
        run(task_of(stores[0], memory=400_000), sales())


def test_old_files_go(tmp_path) -> None:
    for i in range(hot_keys.MOST_FILES + 5):
        hot_keys.save_hot(f"join {i}", b"learnt")
    assert len(list(Path(tempfile.gettempdir()).glob("*/hot-keys/*"))) == hot_keys.MOST_FILES
    assert hot_keys.load_hot(f"join {hot_keys.MOST_FILES + 4}") == b"learnt"


def test_every_damaged_byte_of_a_file_is_a_miss() -> None:
    hot_keys.save_hot("join", b"learnt")
    (kept,) = Path(tempfile.gettempdir()).glob("*/hot-keys/*.hot")

    def use(raw: bytes) -> bytes:
        kept.write_bytes(raw)
        found = hot_keys.load_hot("join")
        if not found:
            raise ss.DamagedError("a miss")
        return found

    assert set(outcomes(kept.read_bytes(), use)) == {"DamagedError"}


def test_a_file_or_folder_that_others_could_have_written_is_a_miss() -> None:
    hot_keys.save_hot("join", b"learnt")
    (kept,) = Path(tempfile.gettempdir()).glob("*/hot-keys/*.hot")
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    for path in (kept, kept.parent, kept.parents[1]):
        before = path.stat().st_mode & 0o777
        path.chmod(0o777)
        assert hot_keys.load_hot("join") == b""
        hot_keys.save_hot(f"another {path}", b"theirs to read")
        path.chmod(before)
        assert hot_keys.load_hot("join") == b"learnt"
        assert (hot_keys.load_hot(f"another {path}") == b"") == (path is not kept)
    moved = kept.rename(kept.parent / "elsewhere")
    kept.symlink_to(moved)
    assert hot_keys.load_hot("join") == b""


def test_what_killed_workers_were_writing_goes() -> None:
    hot_keys.save_hot("join", b"learnt")
    (kept,) = Path(tempfile.gettempdir()).glob("*/hot-keys/*.hot")
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine, dead = (kept.with_suffix(f".{pid}.tmp") for pid in (os.getppid(), ended.pid))
    for half in (mine, dead):
        half.touch()
    hot_keys.save_hot("join", b"learnt more")
    assert sorted(kept.parent.iterdir()) == sorted([kept, mine])


def test_the_same_question_twice_in_one_task(stores, clock) -> None:
    """A semi join adds no columns, so the next one looks the same; they are two joins all the
    same."""
    step = task_of(stores[0], how="semi", added=pa.schema([]), memory=300_000).steps[0]
    run(EnrichTask([step, step]), sales(), "semi")
    assert len(warm_joins()) == 2
    run(EnrichTask([step, step]), sales(seed=3), "semi")
    assert len(warm_joins()) == 2


def test_the_memory_of_a_join_is_not_part_of_what_it_is(stores, clock) -> None:
    """Two queries that differ in their budget only share a join."""
    run(task_of(stores[0], memory=400_000), sales())
    (join,) = warm_joins()
    run(task_of(stores[0], memory=450_000), sales())
    assert warm_joins() == [join]
    run(task_of(stores[0], memory=300_000), sales())
    (other,) = warm_joins()
    assert other is not join
    assert other.budget == 300_000


def test_a_master_that_outgrows_the_algorithm(tmp_path, clock) -> None:
    """What "auto" chose on the driver may not fit any more; then it chooses again."""
    store = ss.Store.create(tmp_path / "m", MASTER.slice(0, 300), key="id", page_bytes=1024)
    step = task_of(tmp_path / "m", algorithm="memory", memory=300_000, auto=True).steps[0]
    batch = sales(500)
    list(EnrichTask([step])(iter([batch])))
    assert [join.algorithm.name for join in warm_joins()] == ["memory"]
    store.append(MASTER.slice(300)).close()
    newer = replace(step, locator=ss.Store.open(tmp_path / "m").locator())
    out = list(EnrichTask([newer])(iter([batch])))
    assert [join.algorithm.name for join in warm_joins()] == ["sweepjoin"]
    assert_same_rows(out, oracle(pa.Table.from_batches([batch]), MASTER, "id", "left"))
    POOL.drop(warm_joins())
    with pytest.raises(ss.BudgetError):
        list(EnrichTask([replace(newer, auto=False)])(iter([batch])))


def test_what_was_learnt_and_does_not_work_is_forgotten(stores, clock, monkeypatch) -> None:
    task = task_of(stores[0], memory=400_000)
    run(task, sales())
    POOL.drop(warm_joins())
    kept = list(Path(tempfile.gettempdir()).glob("*/hot-keys/*.hot"))
    assert kept

    def fails(self: ss.SemiStreamJoin, learnt: bytes) -> None:
        if learnt:
            raise ss.OverrunError("too much", 1)

    monkeypatch.setattr(ss.SemiStreamJoin, "learn", fails)
    monkeypatch.setattr(joins, "save_hot", lambda name, learnt: None)
    run(task, sales(300, seed=9))
    assert not kept[0].exists()
    assert len(warm_joins()) == 1
