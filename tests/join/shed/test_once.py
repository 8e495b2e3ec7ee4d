"""Each shed row is answered once: disks that stall, answers that never come, receivers that die."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pytest

import semistream as ss
from semistream.join.shed.keeper import Keeper
from semistream.join.shed.receiver import MOST_CONNECTIONS
from semistream.join.shed.remote import Remote, tcp_address
from semistream.join.shed.segment import Doubtful, Packed, new_name
from semistream.join.shed.state import SavedShed, load_shed, restore_shed
from semistream.join.shed.target import Folder
from semistream.safety.sealed import unseal
from semistream.testing import assert_same_rows, check_faults, oracle
from tests.helpers.sample_data import sales
from tests.helpers.shed_data import (
    MEMORY,
    SHEDS,
    STREAM_KEYS,
    TABLE,
    Run,
    masters,
    overloaded,
    pread,
)

__all__ = ["masters", "pread"]  # fixtures

ROWS = pa.record_batch({"id": [1, 2]})
SYNC = os.fsync


class Stall:
    """The first sync of a kind lasts until `end` is set."""

    def __init__(self, of_directory: bool) -> None:
        self.begun, self.end = Event(), Event()
        self._of_directory = of_directory

    def fsync(self, handle: int) -> None:
        directory = stat.S_ISDIR(os.fstat(handle).st_mode)
        if directory == self._of_directory and not self.begun.is_set():
            self.begun.set()
            assert self.end.wait(60)
        SYNC(handle)


def finished(receiver: ss.ShedReceiver) -> None:
    """Every request has come to its end, also those that nobody waits for any more."""
    free = receiver._server._free
    for _ in range(MOST_CONNECTIONS):
        assert free.acquire(timeout=60)
    for _ in range(MOST_CONNECTIONS):
        free.release()


def pushed(run: Run, stream: pa.Table) -> int:
    """Push it, whatever the target says; returns how often it failed."""
    failed = 0
    for batch in stream.combine_chunks().to_batches(max_chunksize=500):
        try:
            run.read(run.join.push(batch))
        except ss.ShedError:
            failed += 1
        run.check()
    return failed


def drained(run: Run) -> None:
    for _ in range(100):
        try:
            return run.finish()
        except ss.ShedError:
            run.check()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("of_directory", [False, True])
def test_a_disk_that_stalls_longer_than_the_join_waits(
    of_directory, pread, tmp_path, monkeypatch
) -> None:
    """The sync of a segment, or of the directory after it was renamed, takes its time: the join
    goes on with the rows, and the segment must not appear behind its back."""
    with ss.ShedReceiver(tmp_path) as receiver:
        run, stream = overloaded(pread, receiver.address)
        stall = Stall(of_directory)
        run.join._target._timeout = 0.1
        monkeypatch.setattr("semistream.join.shed.target.os.fsync", stall.fsync)
        more = sales(random.Random(8), 1_500, STREAM_KEYS)
        assert pushed(run, more) > 0
        assert stall.begun.is_set()
        stall.end.set()
        run.join._target._timeout = 20.0
        finished(receiver)
        drained(run)
        assert not list(tmp_path.iterdir())
        later = Run(pread, ss.Shedding(receiver.address), stream_schema=stream.schema)
        assert later.join.stats.shed_out == 0
    every = pa.concat_tables([stream, more])
    assert_same_rows(run.out, oracle(every, TABLE, "id", "left"))


def test_drain_does_not_end_in_doubt(pread, tmp_path, monkeypatch) -> None:
    """All rows are answered, and a segment with some of them may be stored: a later join would
    answer them again. So drain says that it has not ended."""
    with ss.ShedReceiver(tmp_path) as receiver:
        run, stream = overloaded(pread, receiver.address)
        run.finish()
        stall = Stall(of_directory=True)
        run.join._target._timeout = 0.1
        monkeypatch.setattr("semistream.join.shed.target.os.fsync", stall.fsync)
        more = sales(random.Random(8), 500, STREAM_KEYS)
        assert pushed(run, more) > 0
        for _ in range(100):
            with pytest.raises(ss.ShedError, match="failed at"):
                run.read(run.join.drain())
            s = run.join.stats
            if s.waiting + s.buffered + s.shed_out == 0:
                break
        assert s.rows_in == len(stream) + len(more), "and all are answered"
        stall.end.set()
        run.join._target._timeout = 20.0
        finished(receiver)
        drained(run)
        assert not receiver.segments()
    every = pa.concat_tables([stream, more])
    assert_same_rows(run.out, oracle(every, TABLE, "id", "left"))


# --- whatever fails -------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", SHEDS)
def test_every_point_fails_once(algorithm, pread, tmp_path) -> None:
    """Memory is refused, a page cannot be read, the disk is full in the middle of a segment."""
    stream = sales(random.Random(1), 900, STREAM_KEYS)
    shed = ss.Shedding(tmp_path)  # every run leaves it empty

    def make() -> ss.SemiStreamJoin:
        memory = MEMORY["pread"]
        return ss.SemiStreamJoin(pread, "id", "left", None, algorithm, memory, shed=shed)

    expected = oracle(stream, TABLE, "id", "left")
    assert check_faults(make, stream, expected, most=8) > 200
    assert not list(tmp_path.iterdir())


class Flaky(Folder):
    """Fails now and then, before or after the work was done."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path)
        self.rng, self.failures = rng, Counter()

    def _fails(self, when: str, kind: type[ss.ShedError] = ss.ShedError) -> None:
        if self.rng.random() < 0.1:
            self.failures[when] += 1
            raise kind(f"injected {when}")

    def put(self, name, rows, question):
        self._fails("before put")
        self._fails("perhaps put", Doubtful)
        size = super().put(name, rows, question)
        self._fails("after put", Doubtful)
        return size

    def get(self, name, size=None):
        self._fails("get")
        return super().get(name, size)

    def delete(self, names):
        self._fails("before delete")
        super().delete(names)
        self._fails("after delete")

    def look(self):
        self._fails("look")
        return super().look()


@pytest.mark.parametrize(("seed", "algorithm"), list(enumerate(SHEDS, 1)))
def test_a_target_that_fails_now_and_then(algorithm, seed, pread, tmp_path, monkeypatch) -> None:
    rng = random.Random(seed)
    target = Flaky(tmp_path, rng)
    monkeypatch.setattr("semistream.join.join.shed_target", lambda *_: target)
    stream = sales(rng, 6_000, STREAM_KEYS)
    run = Run(pread, ss.Shedding(tmp_path), algorithm=algorithm)
    moved = 0
    for batch in stream.combine_chunks().to_batches(max_chunksize=600):
        with suppress(ss.ShedError):
            run.read(run.join.push(batch))
        for _ in range(rng.choice([0, 0, 2])):
            with suppress(ss.ShedError):
                run.read(run.join.step())
        run.check()
        if rng.random() < 0.3:
            fresh = Run(pread, ss.Shedding(tmp_path), algorithm=algorithm).join
            with suppress(ss.ShedError):
                fresh.restore(run.join.snapshot())
                run.join.close()
                run.join, moved = fresh, moved + 1
                run.check()
    drained(run)
    assert moved
    assert len(target.failures) > 4, target.failures
    assert not list(tmp_path.iterdir())
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


# --- receivers that die ---------------------------------------------------------------------------

_DIES = """
import os, signal, stat, sys
import semistream as ss

folder, port, when = sys.argv[1:]
sync = os.fsync

def fsync(handle):  # once somebody wants it
    directory = stat.S_ISDIR(os.fstat(handle).st_mode)
    if os.path.exists(folder + "-die") and directory == (when == "renamed"):
        os.kill(os.getpid(), signal.SIGKILL)
    sync(handle)

os.fsync = fsync
receiver = ss.ShedReceiver(folder, port=int(port))
print(receiver.address, flush=True)
receiver.serve_forever()
"""


@contextmanager
def dying_receiver(folder: Path, when: str) -> Iterator[str]:
    words = [sys.executable, "-c", _DIES, str(folder), "0", when]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip()
        assert child.wait(60) == -signal.SIGKILL
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("when", ["written", "renamed"])
def test_a_receiver_that_is_killed_while_it_stores(when, pread, tmp_path) -> None:
    folder = tmp_path / "kept"
    with dying_receiver(folder, when) as address:
        run, stream = overloaded(pread, ss.Shedding(address, timeout=20))
        before = set(folder.iterdir())
        Path(f"{folder}-die").touch()
        more = sales(random.Random(8), 1_500, STREAM_KEYS)
        assert pushed(run, more) > 0
    if when == "renamed":
        assert len(set(folder.iterdir()) - before) == 1, "stored, and nobody was told"
    port = int(address.rsplit(":", 1)[1])
    with ss.ShedReceiver(folder, port=port):
        run.finish()
    assert not list(folder.iterdir())
    every = pa.concat_tables([stream, more])
    assert_same_rows(run.out, oracle(every, TABLE, "id", "left"))


def test_a_snapshot_in_doubt(pread, tmp_path) -> None:
    """It has the rows, and knows the segment that must not be taken for more of them."""
    folder = tmp_path / "kept"
    with dying_receiver(folder, "renamed") as address:
        shed = ss.Shedding(address, timeout=20)
        run, stream = overloaded(pread, shed)
        Path(f"{folder}-die").touch()
        more = sales(random.Random(8), 500, STREAM_KEYS)
        assert pushed(run, more) == 1
    while run.join._engine.input:  # a snapshot wants them taken in
        with pytest.raises(ss.ShedError):
            run.read(run.join.drain())
    doubtful = run.join._engine.outside.doubtful
    assert len(doubtful) == 1
    saved = run.join.snapshot()
    with ss.ShedReceiver(folder, port=int(address.rsplit(":", 1)[1])) as receiver:
        assert doubtful < {segment.name for segment in receiver.segments()}, "it was stored"
        early = Run(pread, shed, stream_schema=stream.schema)  # has found it before the restore
        late = Run(pread, shed)
        for fresh in (early, late):
            fresh.join.restore(saved)
            assert fresh.join.stats.rows_in == run.join.stats.rows_in
        run.join.close()
        run.join = late.join
        run.finish()
        assert not receiver.segments()
    every = pa.concat_tables([stream, more])
    assert_same_rows(run.out, oracle(every, TABLE, "id", "left"))


def test_a_join_is_restored_only_when_all_of_it_can_be(pread, tmp_path) -> None:
    """The receiver is away: nothing has happened, and the same join may try again."""
    receiver = ss.ShedReceiver(tmp_path).start()
    shed, port = ss.Shedding(receiver.address), int(receiver.address.rsplit(":", 1)[1])
    run, stream = overloaded(pread, shed)
    saved = run.join.snapshot()
    receiver.stop()
    fresh = Run(pread, shed)
    fresh.out = run.out
    with pytest.raises(ss.ShedError, match="failed at 'list'"):
        fresh.join.restore(saved)
    s = fresh.join.stats
    assert (s.rows_in, s.waiting, s.buffered, s.shed) == (0, 0, 0, 0)
    with ss.ShedReceiver(tmp_path, port=port):
        fresh.join.restore(saved)
        fresh.finish()
    assert_same_rows(fresh.out, oracle(stream, TABLE, "id", "left"))


def larger(run: Run, times: int) -> SavedShed:
    """What it has shed and buffered, as if the buffer held so many times the rows."""
    _, saved = load_shed(unseal("snapshot", run.join.snapshot()))
    state = {**saved.state, "origin": [], "buffer": saved.state["buffer"] * times}
    assert any(taken for _, taken in state["segments"].values())
    return SavedShed(saved.rows * times, state)


def test_a_snapshot_with_more_rows_than_the_buffer_takes(pread, tmp_path, monkeypatch) -> None:
    """The newest go out; if that fails nothing has happened."""
    run, stream = overloaded(pread, tmp_path)
    while not run.join.stats.reloaded:
        run.read(run.join.step())
    saved, before = larger(run, 20), sorted(tmp_path.iterdir())
    there = sum(segment.rows for segment in Folder(tmp_path).look().segments)
    fresh = Run(pread, ss.Shedding(tmp_path), stream_schema=stream.schema)
    real, calls = Folder.put, []

    def full(*words):
        calls.append(words)
        if len(calls) > 2:
            raise ss.ShedError("injected")
        return real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "put", full)
        with pytest.raises(ss.ShedError, match="injected"):
            restore_shed(fresh.join._engine, saved)
    s = fresh.join.stats
    assert (s.rows_in, s.shed, s.shed_out, s.buffered) == (there, there, there, 0)
    assert sorted(tmp_path.iterdir()) == before
    restore_shed(fresh.join._engine, saved)
    fresh.check()
    s = fresh.join.stats
    assert s.buffered + s.shed_out > 20 * run.join.stats.buffered
    assert len(list(tmp_path.iterdir())) > len(before)
    fresh.finish()


# --- the keeper -----------------------------------------------------------------------------------


@contextmanager
def half_put(keeper: Keeper, name: str) -> Iterator[Callable[[], None]]:
    """Written and synced; the call stores it."""
    packed = Packed(ROWS, "{}")
    with keeper.taking(name, packed.size) as put:
        with keeper.folder.draft(name) as file:
            packed.write(file)
        yield lambda: keeper.publish(put)


@pytest.fixture
def keeper(tmp_path) -> Iterator[Keeper]:
    keeper = Keeper(tmp_path, 10**6)
    keeper.open()
    yield keeper
    keeper.close()


@pytest.mark.parametrize("how", ["delete", "list", "close"])
def test_what_was_withdrawn_is_not_stored(how, keeper, tmp_path) -> None:
    name = new_name(1)
    with half_put(keeper, name) as publish:
        if how == "delete":
            keeper.delete([name])
        elif how == "list":
            assert not keeper.page("")[0].segments
        else:
            keeper.close()
        with pytest.raises(ss.ShedError, match="was withdrawn"):
            publish()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["delete", "list", "close"])
def test_nobody_overtakes_one_that_is_being_stored(how, keeper, tmp_path, monkeypatch) -> None:
    """Renamed and not yet synced: whoever comes waits for the end of it."""
    name, stall, found = new_name(1), Stall(of_directory=True), []
    monkeypatch.setattr("semistream.join.shed.target.os.fsync", stall.fsync)

    def store() -> None:
        with half_put(keeper, name) as publish:
            publish()

    def come() -> None:
        calls = {"delete": lambda: keeper.delete([name]), "close": keeper.close}
        found.append(calls.get(how, lambda: keeper.page("")[0].segments)())

    threads = [Thread(target=store), Thread(target=come)]
    threads[0].start()
    assert stall.begun.wait(60)
    threads[1].start()
    threads[1].join(0.1)
    assert threads[1].is_alive(), "it waits"
    stall.end.set()
    for thread in threads:
        thread.join(60)
    assert [p.name for p in tmp_path.iterdir()] == ([] if how == "delete" else [name])
    assert how != "list" or found[0][0].name == name


def test_one_receiver_per_directory(tmp_path) -> None:
    with ss.ShedReceiver(tmp_path) as receiver:
        receiver.start()  # once more is the same
        with pytest.raises(ss.ShedError, match=r"another receiver keeps.*another directory"):
            ss.ShedReceiver(tmp_path).start()
    ss.ShedReceiver(tmp_path).start().stop()


def test_a_directory_that_cannot_be_synced(tmp_path, monkeypatch) -> None:
    """Whether the new name lasts is not known: it has to be deleted before its rows are used."""
    folder, name = Folder(tmp_path), new_name(1)
    monkeypatch.setattr(Folder, "_sync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
    with pytest.raises(Doubtful):
        folder.put(name, ROWS, "{}")
    with pytest.raises(ss.ShedError, match="cannot be deleted"):
        folder.delete([name])
    monkeypatch.undo()
    folder.delete([name])
    assert not list(tmp_path.iterdir())


def test_doubt_in_a_directory_is_settled_before_anything_else(pread, tmp_path, monkeypatch) -> None:
    run, stream = overloaded(pread, tmp_path)
    real, fail = Folder._sync, [True]

    def sync(self) -> None:
        if fail:
            fail.pop()
            raise OSError(5, "I/O error")
        real(self)

    monkeypatch.setattr(Folder, "_sync", sync)
    more = sales(random.Random(8), 1_500, STREAM_KEYS)
    assert pushed(run, more) == 1
    run.finish()
    assert not list(tmp_path.iterdir())
    every = pa.concat_tables([stream, more])
    assert_same_rows(run.out, oracle(every, TABLE, "id", "left"))


def test_a_delete_over_the_network_of_many(tmp_path) -> None:
    names = [new_name(n) for n in range(1, 251)]
    with ss.ShedReceiver(tmp_path) as receiver:
        address = tcp_address(receiver.address)
        assert address is not None
        Folder(tmp_path).put(names[249], ROWS, "{}")
        Remote(*address, 20.0).delete(names)
    assert not list(tmp_path.iterdir())
