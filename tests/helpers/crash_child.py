"""Kill a writer at every step. Run as a script, so that forking is safe: one thread, no Spark.

    python -m tests.helpers.crash_child OPERATION FOLDER

Every attempt is a fork that dies (SIGKILL, so nothing is tidied up) at its n-th call of something
that changes the file system, for n = 0, 1, ... until the operation ends by itself. Then the parent
looks at what is left. Two kinds of death: a process that is killed loses nothing that it has
written; a machine that loses its power also loses what was not synced, contents and names.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import semistream as ss
from semistream.testing import assert_same_rows

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})
TIMES_OUT = 30  # seconds, for a child that hangs


def rows(keys: range, what: str) -> list[dict]:
    return [{"id": k, "v": f"{what} {k}"} for k in keys]


def table(content: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(content, schema=SCHEMA)


BASE = [*rows(range(24), "base"), {"id": None, "v": "no key"}]
NEW = rows(range(12, 36), "new")
AFTER = {"id": 1000, "v": "after"}


class Deaths:
    """Counts what changes files, and dies at the chosen call, in the middle of it."""

    def __init__(self, at: int, power: bool) -> None:
        self.at, self.power, self.calls, self.writes = at, power, 0, 0
        self.unsynced: set[str] = set()  # files with content that is not on disk for sure
        self.names: dict[str, set[str]] = {}  # by folder: names that are not on disk for sure
        self.removed: dict[str, dict[str, bytes]] = {}  # by folder: files that may come back

    def step(self, half: Callable[[], object] | None = None) -> None:
        if self.calls == self.at:
            if half is not None:
                half()
            if self.power:
                self.lose()
            os.kill(os.getpid(), signal.SIGKILL)
        self.calls += 1

    def lose(self) -> None:
        for path in self.unsynced:
            if os.path.isfile(path):
                os.truncate(path, os.path.getsize(path) // 2)
        for name in [n for names in self.names.values() for n in names]:
            if os.path.isfile(name):
                REAL["unlink"](name)
        for name, content in [f for files in self.removed.values() for f in files.items()]:
            if name.endswith(".json"):  # the worst case: manifests come back, other files do not
                with OPEN(name, "wb") as file:
                    file.write(content)

    def named(self, path: object) -> None:
        name = os.fspath(path)
        self.names.setdefault(os.path.dirname(name), set()).add(name)

    def removes(self, path: object) -> None:
        name = os.fspath(path)
        if os.path.isfile(name):
            with OPEN(name, "rb") as file:
                self.removed.setdefault(os.path.dirname(name), {})[name] = file.read()

    def synced(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        self.unsynced.discard(path)
        self.names.pop(path, None)
        self.removed.pop(path, None)


REAL = {name: getattr(os, name) for name in ("open", "rename", "link", "unlink", "mkdir", "rmdir")}
OPEN = builtins.open


def dying_files(deaths: Deaths) -> Callable:
    """`open`, where every write may be the last."""

    class Dying(io.FileIO):
        def write(self, data) -> int:
            content = bytes(data)
            deaths.writes += 1
            if deaths.writes % 2 and not deaths.power:  # then fsync is as good a moment
                deaths.step(lambda: io.FileIO.write(self, content[: len(content) // 2]))
            deaths.unsynced.add(os.path.abspath(str(self.name)))
            return io.FileIO.write(self, content)

    def open_(path, mode="r", *more, **named):
        if "w" not in mode:
            return OPEN(path, mode, *more, **named)
        deaths.step()
        deaths.named(path)
        return Dying(path, mode.replace("b", ""), opener=named.get("opener"))

    return open_


def arm(deaths: Deaths) -> None:
    """Put the deaths around everything that writes."""

    def os_open(path, flags, *more, **named):
        if flags & os.O_CREAT:
            deaths.step()
        return REAL["open"](path, flags, *more, **named)

    def fsync(handle: int) -> None:  # the disk itself is not asked: its part is played here
        deaths.step()
        deaths.synced(handle)

    def moves(name: str):
        def call(source, target, **named):
            deaths.step()
            deaths.removes(target)
            REAL[name](source, target, **named)
            deaths.named(target)
            if os.path.abspath(source) in deaths.unsynced:
                deaths.unsynced.add(os.path.abspath(target))

        return call

    def changes(name: str):
        def call(path, *more, **named):
            deaths.step()
            if name == "unlink":
                deaths.removes(path)
            return REAL[name](path, *more, **named)

        return call

    builtins.open = io.open = dying_files(deaths)
    os.open, os.fsync = os_open, fsync
    os.rename, os.link = moves("rename"), moves("link")
    for name in ("unlink", "mkdir", "rmdir"):
        setattr(os, name, changes(name))
    os.remove = os.unlink


# --- operations: (how the store is before, what is done, the rows before and after) ---------------


def replaced(old: list[dict], new: list[dict]) -> list[dict]:
    keys = {r["id"] for r in new}
    return [r for r in old if r["id"] is None or r["id"] not in keys] + new


def nothing(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)


def base(path: Path) -> None:
    ss.Store.create(path, table(BASE), "id", page_bytes=512).close()


def changed(path: Path) -> None:
    base(path)
    ss.Store.open(path).upsert(table(NEW)).close()


def two_runs(path: Path) -> None:
    """The next upsert of any size merges the change that is there."""
    base(path)
    ss.Store.open(path).upsert(table(NEW[:1])).close()


def compacted(path: Path) -> None:
    changed(path)
    ss.Store.open(path).compact().close()


def keeping(path: Path) -> None:
    """The next change lets the version expire that is there."""
    ss.Store.create(path, table(BASE), "id", page_bytes=512, keep=1).close()


def latest(path: Path) -> ss.Store:
    return ss.Store.open(path)


DELETED = [r for r in replaced(BASE, NEW) if r["id"] is None or r["id"] >= 12]
OPERATIONS = {
    "create": (
        nothing,
        lambda p: ss.Store.create(p, table(BASE), "id", page_bytes=512),
        None,
        BASE,
    ),
    "create, spilled": (
        nothing,
        lambda p: ss.Store.create(
            p, table(BASE).to_batches(max_chunksize=40), "id", page_bytes=2048, spill_bytes=1
        ),
        None,
        BASE,
    ),
    "append": (base, lambda p: latest(p).append(table(NEW)), BASE, BASE + NEW),
    "upsert": (base, lambda p: latest(p).upsert(table(NEW)), BASE, replaced(BASE, NEW)),
    "upsert, merging": (
        two_runs,
        lambda p: latest(p).upsert(table(NEW)),
        replaced(BASE, NEW[:1]),
        replaced(BASE, NEW),
    ),
    "upsert, keeping": (
        keeping,
        lambda p: latest(p).upsert(table(NEW)),
        BASE,
        replaced(BASE, NEW),
    ),
    "delete": (
        changed,
        lambda p: latest(p).delete(pa.table({"id": range(12)})),
        replaced(BASE, NEW),
        DELETED,
    ),
    "compact": (changed, lambda p: latest(p).compact(), replaced(BASE, NEW), replaced(BASE, NEW)),
    "expire": (
        compacted,
        lambda p: latest(p).expire(0.0),
        replaced(BASE, NEW),
        replaced(BASE, NEW),
    ),
}


def attempt(operate: Callable[[Path], object], path: Path, at: int, power: bool) -> int | None:
    """The operation in a fork; how many steps it had, or None if it died."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(TIMES_OUT)
        deaths = Deaths(at, power)
        arm(deaths)
        code = 1
        try:
            operate(path)
            os.write(writer, str(deaths.calls).encode())
            code = 0
        except BaseException as error:  # it must not go on as the parent
            os.write(2, f"{error!r}\n".encode())
        os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with OPEN(reader, "rb") as pipe:
        said = pipe.read()
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"killed by {os.WTERMSIG(status)}"
        return None
    assert status == 0, "the operation failed by itself"
    return int(said)


def check(path: Path, before: list[dict] | None, after: list[dict], versions: list[int]) -> str:
    """Old or new, all of it; then the next writer makes everything clean."""
    try:
        store = ss.Store.open(path)
    except ss.StoreError as error:
        if before is not None or "is not a store" not in str(error):
            raise
        ss.Store.create(path, table([AFTER]), "id").close()
        check_clean(path)
        return "old"
    state = "old" if store.version == versions[0] else "new"
    assert store.version in versions, f"version {store.version}"
    expected = after if state == "new" else before
    assert expected is not None
    there = [p for p in path.glob("manifests/[0-9]*.json") if p.stat().st_size > 8]
    for number in [int(p.stem) for p in there]:
        ss.Store.open(path, number).verify()
    assert_same_rows(pa.Table.from_batches(store.batches(), SCHEMA), table(expected))
    following = store.upsert(table([AFTER]))
    following.verify()
    assert_same_rows(
        pa.Table.from_batches(following.batches(), SCHEMA), table(replaced(expected, [AFTER]))
    )
    check_clean(path)
    store.close()
    following.close()
    return state


def check_clean(path: Path) -> None:
    """Nothing that no manifest names: no draft, no lock, no file of a sort. The newest version is
    noted, and no other."""
    manifests = sorted((path / "manifests").iterdir())
    assert all(p.suffix == ".json" for p in manifests), manifests
    (noted,) = (path / "newest").iterdir()
    newest = json.loads(manifests[-1].read_bytes())
    assert noted.name == f"{newest['version']:08d}.{newest['id']}"
    assert list((path / "writers").iterdir()) == []
    bodies = [json.loads(p.read_bytes()) for p in manifests if p.stat().st_size > 8]
    named = set()
    for run in [run for body in bodies for run in body["runs"]]:
        named |= {f"{run['id']}.index", *(shard["name"] for shard in run["shards"])}
        named |= set() if run["kind"] == "base" else {f"{run['id']}.claims"}
    found = {p.name for p in (path / "data").iterdir()}
    assert found == named, f"left over: {found - named}; missing: {named - found}"


def run(name: str, folder: Path, power: bool) -> dict[str, int]:
    prepare, operate, before, after = OPERATIONS[name]
    fresh = folder / "fresh"
    prepare(fresh)
    first = max([int(p.stem) for p in fresh.glob("manifests/*.json")], default=0)
    versions = [first, first if name == "expire" else first + 1]
    seen = {"old": 0, "new": 0}
    for at in range(1000):
        path = folder / f"{name}-{at}"
        if fresh.exists():
            shutil.copytree(fresh, path)
        steps = attempt(operate, path, at, power)
        if steps is not None:
            assert steps == at, f"{steps} steps, but {at} deaths"
        seen[check(path, before, after, versions)] += 1
        shutil.rmtree(path)
        if steps is not None:
            return {**seen, "steps": steps}
    raise AssertionError("it never came to its end")


if __name__ == "__main__":
    where = Path(sys.argv[2]).resolve()
    os.fsync = lambda handle: None  # the parent's writers need not wait for the disk
    for operation in sys.argv[1].split("|"):
        for lose in (False, True):
            found = run(operation, where / f"{operation}-{lose}", lose)
            print(json.dumps({"operation": operation, "power": lose, **found}), flush=True)
