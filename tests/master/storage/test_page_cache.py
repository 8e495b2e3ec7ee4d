"""How much of files stays in memory: in a container's limit, and what a store makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import semistream as ss
from semistream.master.storage import page_cache

MB = 1 << 20
MEMINFO = "MemTotal:       16000000 kB\nMemAvailable:   8000000 kB\n"


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(MEMINFO)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_a_limit_it_is_what_the_machine_has(tmp_path) -> None:
    found = {"memory.stat": "anon 5\n"}  # the top group has no memory.max
    root = machine(tmp_path, "0::/\n", found)
    assert page_cache.room_for_files(root) == 8_000_000 * 1024
    assert page_cache.stays_in_memory(4_000_000_000, root)
    assert not page_cache.stays_in_memory(8_000_000_000, root)


def test_where_nothing_can_be_known_files_are_assumed_to_stay(tmp_path) -> None:
    assert page_cache.room_for_files(tmp_path) is None
    assert page_cache.stays_in_memory(1 << 60, tmp_path)


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        (
            "0::/box/inner\n",
            {
                "box/inner/memory.max": "max\n",
                "box/inner/memory.stat": f"anon {10 * MB}\nfile 0\n",
                "box/memory.max": f"{100 * MB}\n",
                "box/memory.stat": f"anon {30 * MB}\nfile {60 * MB}\n",
            },
        ),
        (
            "5:cpu:/\n4:memory:/box\n0::/\n",
            {
                "memory/box/memory.limit_in_bytes": f"{100 * MB}\n",
                "memory/box/memory.stat": f"cache 1\nrss 1\ntotal_cache 9\ntotal_rss {30 * MB}\n",
            },
        ),
        (  # in a container: the path is the host's, and the group itself is mounted at the top
            "0::/system/box-4711\n",
            {"memory.max": f"{100 * MB}\n", "memory.stat": f"anon {30 * MB}\n"},
        ),
    ],
    ids=["version 2, of a parent", "version 1", "inside a container"],
)
def test_a_limit_leaves_what_programs_do_not_hold(cgroup, files, tmp_path) -> None:
    root = machine(tmp_path, cgroup, files)
    assert page_cache.room_for_files(root) == 70 * MB


def test_damaged_files_of_the_system_are_no_limit(tmp_path) -> None:
    files = {"memory.max": "ninety\n", "memory.stat": "\n", "b/memory.max": f"{MB}\n"}
    root = machine(tmp_path, "0::/b\nnot a line\n", {**files, "b/memory.stat": "what 1\n"})
    assert page_cache.room_for_files(root) == 8_000_000 * 1024


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A group of processes with a real limit of 200 MB, where one can be made."""
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                        ("/sys/fs/cgroup", "memory.max")):  # fmt: skip
        group = Path(base) / f"semistream-test-{os.getpid()}"
        if not (Path(base) / "memory.stat").exists():
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(200 * MB))
        except OSError:
            group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no control group can be made here")


def test_a_store_larger_than_the_limit_is_read_and_not_mapped(small_group, tmp_path) -> None:
    blob = b"x" * 1000
    wide = pa.table({"id": range(250_000), "text": pa.array([blob] * 250_000)})
    ss.Store.create(tmp_path / "large", wide, key="id").close()
    ss.Store.create(tmp_path / "small", wide.slice(0, 1000), key="id").close()
    child = (
        "import os, sys, semistream as ss\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "for path in sys.argv[2:]: print(ss.Store.open(path).io)\n"
        "print(ss.Store.open(sys.argv[2], io='map').io)\n"
    )
    places = [str(tmp_path / "large"), str(tmp_path / "small")]
    done = subprocess.run(
        [sys.executable, "-c", child, str(small_group), *places], capture_output=True, text=True
    )
    assert done.stdout.split() == ["pread", "map", "map"], done.stderr


def test_a_store_that_is_open_keeps_its_way_of_reading(tmp_path, monkeypatch) -> None:
    """A join that runs has memory for one of them: reading takes more."""
    rows = pa.table({"id": [1, 2], "v": ["a", "b"]})
    store = ss.Store.create(tmp_path / "s", rows, key="id")
    assert (store.io, store.locator()["io"]) == ("map", "map")
    join = ss.SemiStreamJoin(store, on="id", memory=200_000, algorithm="sweepjoin")
    monkeypatch.setattr("semistream.master.store.read.stays_in_memory", lambda size: False)
    newer = store.append(rows.slice(0, 1))  # memory has become scarce
    assert (newer.io, store.newest().io) == ("map", "map")
    assert list(join.refresh()) == []
    assert ss.Store.open(tmp_path / "s").io == "pread"
