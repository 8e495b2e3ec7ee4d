"""What campaigns of kills share: a master that changes, a stream of files, processes to kill.

One process upserts, deletes, compacts and expires, about once a second. Every master row names the
version that wrote it, and every output row the version it was joined with, so each row certifies
itself: what it must say follows from its key, its version and the seed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import semistream as ss
from semistream.kernels.arrays import I64, Mask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import DataStreamWriter

KEYS, UNKNOWN = 20_000, 500  # sales are of unknown keys too
SALES_SCHEMA = "sale long, file long, id long"
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


# --- the master: what a version changes follows from its number and the seed ----------------------


def payloads(keys: I64, version: I64 | int) -> pa.Array:
    """f(key, version); NULL where the version is 0: there is no such row."""
    version = np.broadcast_to(version, keys.shape)
    words = [pa.array(part).cast(pa.string()) for part in (keys, version, keys * 7919 % 10_007)]
    text = pc.binary_join_element_wise(words[0], " by ", words[1], ", ", words[2], "")
    return pc.if_else(pa.array(version == 0), pa.scalar(None, pa.string()), text)


def touched(seed: int, version: int) -> I64:
    rng = np.random.default_rng([seed, version])
    return np.flatnonzero(rng.random(KEYS) < rng.uniform(0.01, 0.3))


def write(folder: Path, seed: int, expire: str = "5s") -> None:
    """Change the store until there is a file "stop"; write down what each version was."""
    rng, parent = random.Random(seed), os.getppid()
    with open(folder / "writer.jsonl", "a") as log:
        while not (folder / "stop").exists() and os.getppid() == parent:
            began = time.monotonic()
            store = ss.Store.open(folder / "store")
            kind = rng.choice(["upsert"] * 7 + ["delete", "compact"])
            newer = _change(store, kind, seed)
            if newer.version > store.version:
                log.write(json.dumps({"version": newer.version, "kind": kind}) + "\n")
                log.flush()
            if rng.random() < 0.3:
                gone = newer.expire(older_than=expire, keep=2, pins=folder / "pins")
                log.write(json.dumps({"expired": gone}) + "\n")
                log.flush()
            time.sleep(max(0.0, 1 - (time.monotonic() - began)))


def _change(store: ss.Store, kind: str, seed: int) -> ss.Store:
    version = store.version + 1
    keys = touched(seed, version)
    if kind == "compact":
        return store.compact()
    if kind == "delete":
        return store.delete(pa.table({"id": keys}))
    return store.upsert(pa.table({"id": keys, "payload": payloads(keys, version)}))


class Truth:
    """What every row must say, from the writer's log."""

    def __init__(self, folder: Path, seed: int) -> None:
        entries = [json.loads(line) for line in (folder / "writer.jsonl").read_text().splitlines()]
        self.expired = sum(len(entry.get("expired", ())) for entry in entries)
        self._wrote = {1: np.ones(KEYS, np.int64)}  # by version: who wrote each key last; 0: nobody
        state = self._wrote[1].copy()
        for entry in entries:
            if "version" not in entry:
                continue
            version = entry["version"]
            if entry["kind"] != "compact":
                state[touched(seed, version)] = version if entry["kind"] == "upsert" else 0
            self._wrote[version] = state.copy()

    @property
    def versions(self) -> int:
        return len(self._wrote)

    def payloads(self, key: I64, version: I64) -> pa.Array:
        """What rows of these keys say, each joined with its version; a version that was never
        published says what no row does."""
        wrote = np.zeros(len(key), np.int64)
        for number in np.unique(version):
            mine = (version == number) & (key < KEYS)
            known = self._wrote.get(int(number))
            wrote[mine] = -1 if known is None else known[key[mine]]
        return payloads(key, wrote)


def enriched(sales: DataFrame, folder: Path) -> DataStreamWriter:
    """The query under trial, but for its trigger: the join, and where its rows and versions go."""
    from semistream.spark import enrich  # late: who writes the master needs no Spark

    ours = enrich(
        sales, folder / "store", on="id", how="left", memory_per_task="2MB",
        version_column="version", pins=folder / "pins",
    )  # fmt: skip
    writer = ours.writeStream.format("parquet")
    return writer.option("checkpointLocation", str(folder / "checkpoint"))


def differing(left: pa.Array | pa.ChunkedArray, right: pa.Array) -> Mask:
    """Where two columns are not the same; NULL is the same as NULL."""
    same = pc.fill_null(pc.equal(left, right), False)
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return ~np.asarray(pc.or_(same, both))


# --- the stream and the processes -----------------------------------------------------------------


class Campaign:
    """A folder with a store that changes and a stream of files, and processes that work there."""

    module: str  # that `start` runs
    sales: int  # rows in a file

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.rng = folder, seed, random.Random(seed)
        self.files = 0

    def prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("sales", "pins", "logs"):
            (self.folder / name).mkdir(parents=True)
        keys = np.arange(KEYS)
        first = pa.table({"id": keys, "payload": payloads(keys, 1)})
        ss.Store.create(self.folder / "store", first, key="id", page_bytes=8192).close()
        (self.folder / "writer.jsonl").touch()
        self.feed()

    def feed(self) -> None:
        """One more file of sales, whole when it can be seen."""
        rng = np.random.default_rng([self.seed, 10**9 + self.files])
        first, count = self.files * self.sales, self.sales
        table = pa.table(
            {
                "sale": np.arange(first, first + count),
                "file": np.full(count, self.files),
                "id": (KEYS * rng.random(count) ** 3).astype(np.int64) + rng.integers(0, UNKNOWN),
            }
        )
        hidden = self.folder / "sales" / f".{self.files}.tmp"
        pq.write_table(table, hidden)
        hidden.rename(self.folder / "sales" / f"{self.files:06}.parquet")
        self.files += 1

    def wanted(self) -> int:
        """How many files there should be by now, so that some wait to be read."""
        raise NotImplementedError

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        log = self.folder / "logs" / f"{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", self.module, "--out", str(self.folder), *words]
        command += ["--seed", str(self.seed)]
        with open(log, "w") as file:
            return subprocess.Popen(
                command, env=os.environ | python | environment, stdout=file, stderr=file,
                start_new_session=True, cwd=Path(__file__).resolve().parents[2],
            )  # fmt: skip

    def numbers(self, what: str) -> set[int]:
        """The micro-batches that a folder of the checkpoint has a file of."""
        found = (self.folder / "checkpoint" / what).glob("[0-9]*")
        return {int(path.name.partition(".")[0]) for path in found}

    def under_way(self) -> int | None:
        """The micro-batch that has begun and is not committed."""
        return max(self.numbers("offsets") - self.numbers("commits"), default=None)

    def live(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Feed the stream meanwhile. Who ends by itself has failed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            assert process.poll() is None, f"a process ended by itself; see {self.folder / 'logs'}"
            while self.files < self.wanted():
                self.feed()
            time.sleep(min(0.2, left))


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and its JVM; its Python workers lose their JVM and end by themselves."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for other in await_end(family, 30):
        other.kill()


def await_end(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still live after so long. They need not be children of ours, and their ids may
    belong to others by now, which psutil's own way of waiting does not take well."""
    end = time.monotonic() + seconds
    while (left := [one for one in processes if _lives(one)]) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
