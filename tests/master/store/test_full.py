"""A disk that is full, at any step of any operation: a typed error, nothing half-written, and with
space again the same call works."""

from __future__ import annotations

import builtins
import errno
import io
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from tests.helpers.crash_child import OPERATIONS, check

REAL = {name: getattr(os, name) for name in ("open", "fsync", "rename", "link", "mkdir")}
OPEN = builtins.open


class Full:
    """After so many steps that take space, there is none left."""

    def __init__(self, room: int) -> None:
        self.room, self.hits = room, 0

    def take(self) -> None:
        self.room -= 1
        if self.room < 0:
            self.hits += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def disk(full: Full) -> Iterator[None]:
    class Small(io.FileIO):
        def write(self, data) -> int:
            full.take()
            return super().write(data)

    def open_(path, mode="r", *more, **named):
        if "w" not in mode:
            return OPEN(path, mode, *more, **named)
        full.take()
        return Small(path, mode.replace("b", ""), opener=named.get("opener"))

    def os_open(path, flags, *more, **named):
        if flags & os.O_CREAT:
            full.take()
        return REAL["open"](path, flags, *more, **named)

    def taking(name: str):
        def call(*more, **named):
            full.take()
            return None if name == "fsync" else REAL[name](*more, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "open", open_)
        patch.setattr(io, "open", open_)
        patch.setattr(os, "open", os_open)
        for name in ("fsync", "rename", "link", "mkdir"):
            patch.setattr(os, name, taking(name))
        yield


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)


# How many of its steps are tried: all of those with most ways to fail.
EVERY = {"create, spilled": 1, "upsert, merging": 1, "expire": 1, "compact": 3, "delete": 3}


@pytest.mark.parametrize("operation", EVERY)
def test_a_full_disk_at_every_step(operation, tmp_path) -> None:
    prepare, operate, before, after = OPERATIONS[operation]
    prepare(tmp_path / "fresh")
    first = max([int(p.stem) for p in tmp_path.glob("fresh/manifests/*.json")], default=0)
    versions = [first, first if operation == "expire" else first + 1]
    refused = 0
    for room in range(0, 1000, EVERY[operation]):
        path = tmp_path / f"{room}"
        if (tmp_path / "fresh").exists():
            shutil.copytree(tmp_path / "fresh", path)
        full = Full(room)
        said = attempt(operate, path, full)
        if said is not None:
            refused += 1
            assert os.strerror(errno.ENOSPC) in said
            assert str(path) in said
            check_nothing_left(path)
            if "do not repeat the change" not in said:
                operate(path)
        check(path, before, after, versions)
        shutil.rmtree(path)
        if not full.hits:
            break
    assert refused >= (5 if operation == "expire" else 10) // (1 + EVERY[operation] // 3)


def attempt(operate: Callable[[Path], object], path: Path, full: Full) -> str | None:
    """What the error says, if there is one."""
    try:
        with disk(full):
            operate(path)
    except (ss.ConflictError, ss.DamagedError) as error:
        raise AssertionError("it is neither") from error
    except ss.StoreError as error:
        return str(error)
    return None


def check_nothing_left(path: Path) -> None:
    """The failed writer took all back that it had written."""
    left = [p.name for p in path.rglob("*") if p.name.startswith(".")]
    assert left == []
    manifests = [p for p in path.glob("manifests/*.json") if p.stat().st_size > 8]
    named = {n for p in manifests for r in ss.Store.open(path, int(p.stem)).manifest.runs
             for n in r.files}  # fmt: skip
    assert {p.name for p in path.glob("data/*")} == named


# --- the real thing -------------------------------------------------------------------------------


def rows(keys: range, what: str = "x") -> pa.Table:
    return pa.table({"id": pa.array(keys, pa.int64()), "v": [what * 100] * len(keys)})


def test_files_that_may_not_grow(tmp_path) -> None:
    """What `ulimit -f` sets; the message says so."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = ss.Store.create(tmp_path / "s", rows(range(10)), "id")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        for call in (
            lambda: ss.Store.create(tmp_path / "t", rows(range(9_000)), "id"),
            lambda: ss.Store.create(tmp_path / "t", rows(range(9_000)), "id", spill_bytes=1),
            lambda: store.upsert(rows(range(9_000))),
            lambda: store.append(rows(range(9_000))),
        ):
            with pytest.raises(
                ss.StoreError, match=r"cannot be written: File too large.*ulimit -f"
            ):
                call()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "t").exists()
    assert store.upsert(rows(range(9_000))).describe().rows == 9_000


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    where = tmp_path / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(where)]
    if os.geteuid() or shutil.which("mount") is None or subprocess.call(mount) != 0:
        pytest.skip("a small disk can be made by root only")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


def test_a_small_disk(small_disk) -> None:
    path, filler = small_disk / "s", small_disk / "filler"
    with pytest.raises(ss.StoreError, match=r"No space left on device.*free some space"):
        ss.Store.create(path, rows(range(30_000)), "id")
    store = ss.Store.create(path, rows(range(3_000)), "id")
    changes = {
        "upsert": lambda s: s.upsert(rows(range(9_000), "u")),
        "append": lambda s: s.append(rows(range(20_000, 29_000))),
        "delete": lambda s: s.delete(pa.table({"id": range(9_000)})),
        "compact": lambda s: s.compact(),
    }
    store = store.upsert(rows(range(5), "a"))
    fill(filler)
    for change in changes.values():
        with pytest.raises(ss.StoreError, match="No space left on device"):
            change(store)
    assert ss.Store.open(path).version == 2
    assert store.verify() > 1
    assert store.expire(0) == [1], "expiring makes space, so it needs none"
    filler.unlink()
    assert store.compact().upsert(rows(range(5), "b")).verify() > 1


def fill(path: Path) -> None:
    with OPEN(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
