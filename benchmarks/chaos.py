"""Kill a streaming query again and again while its master changes, and look at what it wrote.

    python -m benchmarks.chaos --kills 20

One process upserts, deletes, compacts and expires, about once a second. Another is a Spark driver
with a query that enriches a stream of files; it is killed with SIGKILL at random moments and
started again from its checkpoint. Every master row names the version that wrote it, and every
output row the version it was joined with, so each row certifies itself:

    lost, duplicated   sales that are not in the output just once
    wrong              rows whose payload is not what their version says
    mixed              micro-batches with rows of more than one version
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import semistream as ss

KEYS, UNKNOWN = 20_000, 500  # sales are of unknown keys too
SALES = 400  # in a file, which is a micro-batch
AHEAD = 4  # files that wait to be read
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


# --- the master: what a version changes follows from its number and the seed ----------------------


def payloads(keys: NDArray[np.int64], version: NDArray[np.int64] | int) -> pa.Array:
    """f(key, version); NULL where the version is 0: there is no such row."""
    version = np.broadcast_to(version, keys.shape)
    text = [f"{k} by {v}, {k * 7919 % 10_007}" for k, v in zip(keys, version, strict=True)]
    return pa.array(text, mask=version == 0)


def touched(seed: int, version: int) -> NDArray[np.int64]:
    rng = np.random.default_rng([seed, version])
    return np.flatnonzero(rng.random(KEYS) < rng.uniform(0.01, 0.3))


def write(folder: Path, seed: int) -> None:
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
                gone = newer.expire(older_than="5s", keep=2, pins=folder / "pins")
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


def states(folder: Path, seed: int) -> dict[int, NDArray[np.int64]]:
    """Of every version that was published: who wrote each key last; 0: it was deleted."""
    state = np.ones(KEYS, np.int64)
    found = {1: state.copy()}
    for line in (folder / "writer.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "version" not in entry:
            continue
        version = entry["version"]
        if entry["kind"] != "compact":
            state[touched(seed, version)] = version if entry["kind"] == "upsert" else 0
        found[version] = state.copy()
    return found


# --- the query ------------------------------------------------------------------------------------


def query(folder: Path, finish: bool) -> None:
    from pyspark.sql import SparkSession

    from semistream.spark import enrich

    config = {
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.enabled": "false",
    }
    spark = SparkSession.builder.master("local[2]").config(map=config).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    schema = "sale long, file long, id long"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    # Three tasks in two slots: versions come and go while a micro-batch runs.
    slow = stream.parquet(str(folder / "sales")).repartition(3).mapInArrow(_dawdle, schema)
    ours = enrich(
        slow, folder / "store", on="id", how="left", memory_per_task="2MB",
        version_column="version", pins=folder / "pins",
    )  # fmt: skip
    writer = ours.writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if finish:
        writer = writer.trigger(availableNow=True)
    writer.start(str(folder / "out")).awaitTermination()
    pq.write_table(spark.read.parquet(str(folder / "out")).toArrow(), folder / "result.parquet")


def _dawdle(batches):  # type: ignore[no-untyped-def]  # pickled into the workers as it is
    import random
    import time

    for batch in batches:
        time.sleep(random.uniform(0, 0.4))
        yield batch


# --- the campaign ---------------------------------------------------------------------------------


class Campaign:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.rng = folder, seed, random.Random(seed)
        self.files = 0
        self.within = 0  # kills that came between the begin and the commit of a micro-batch

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
        first = self.files * SALES
        table = pa.table(
            {
                "sale": np.arange(first, first + SALES),
                "file": np.full(SALES, self.files),
                "id": (KEYS * rng.random(SALES) ** 3).astype(np.int64) + rng.integers(0, UNKNOWN),
            }
        )
        hidden = self.folder / "sales" / f".{self.files}.tmp"
        pq.write_table(table, hidden)
        hidden.rename(self.folder / "sales" / f"{self.files:06}.parquet")
        self.files += 1

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        log = self.folder / "logs" / f"{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "benchmarks.chaos", "--out", str(self.folder), *words]
        command += ["--seed", str(self.seed)]
        with open(log, "w") as file:
            return subprocess.Popen(
                command, env=os.environ | python, stdout=file, stderr=file, start_new_session=True
            )

    def numbers(self, what: str) -> set[int]:
        found = (self.folder / "checkpoint" / what).glob("[0-9]*")
        return {int(path.name.partition(".")[0]) for path in found}

    def live(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        """Feed the stream meanwhile. Who ends by itself has failed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            assert process.poll() is None, f"a process ended by itself; see {self.folder / 'logs'}"
            if self.files < max(self.numbers("commits"), default=-1) + 1 + AHEAD:
                self.feed()
            time.sleep(min(0.2, left))

    def kill_once(self, number: int) -> None:
        """Start the query, and kill it: mostly within three seconds from when it begins a new
        micro-batch, sometimes at any moment, while it starts or replays the last one."""
        driver, before = self.start("--role", "query"), self.numbers("offsets")
        try:
            began = time.monotonic()
            if self.rng.random() < 0.3:
                self.live(driver, self.rng.uniform(0, 25))
            else:
                while self.numbers("offsets") == before:
                    assert time.monotonic() < began + 180, "no micro-batch began within 180 s"
                    self.live(driver, 0.2)
                self.live(driver, self.rng.uniform(0, 3))
        finally:
            kill(driver)
        open_ = sorted(self.numbers("offsets") - self.numbers("commits"))
        self.within += bool(open_)
        where = f"within micro-batch {open_[-1]}" if open_ else "between micro-batches"
        print(
            f"  kill {number}: {where}, {max(self.numbers('commits'), default=-1) + 1} committed",
            flush=True,
        )

    def run(self, kills: int) -> bool:
        self.prepare()
        writer = self.start("--role", "write")
        try:
            for number in range(1, kills + 1):
                self.kill_once(number)
            last = self.start("--role", "finish")
            assert last.wait(600) == 0, f"the last run failed; see {self.folder / 'logs'}"
            (self.folder / "stop").touch()
            assert writer.wait(60) == 0, f"the writer failed; see {self.folder / 'logs'}"
        finally:
            if writer.poll() is None:
                kill(writer)
        return self.verdict(kills)

    def verdict(self, kills: int) -> bool:
        result = pq.read_table(self.folder / "result.parquet")
        sale, key = np.asarray(result["sale"]), np.asarray(result["id"])
        file, version = np.asarray(result["file"]), np.asarray(result["version"])
        seen = np.bincount(sale, minlength=self.files * SALES)
        known = states(self.folder, self.seed)
        wrote = np.zeros(len(key), np.int64)
        for number in np.unique(version):
            mine = (version == number) & (key < KEYS)
            wrote[mine] = known[int(number)][key[mine]] if int(number) in known else -1
        right = result["payload"].combine_chunks().to_pylist()
        wrong = sum(a != b for a, b in zip(right, payloads(key, wrote).to_pylist(), strict=True))
        pairs = np.unique(np.stack([file, version]), axis=1)
        mixed = int((np.bincount(pairs[0]) > 1).sum())
        lost, doubled = int((seen == 0).sum()), int(np.maximum(seen - 1, 0).sum())
        entries = (self.folder / "writer.jsonl").read_text().splitlines()
        expired = sum(len(json.loads(line).get("expired", ())) for line in entries)
        print(
            f"seed {self.seed}: {kills} kills, {self.within} of them within a micro-batch; "
            f"{self.files} micro-batches, {len(sale):,} rows; {len(known)} versions published, "
            f"{len(np.unique(version))} used, {expired} expired\n"
            f"{lost} lost, {doubled} duplicated, {wrong} wrong, {mixed} mixed"
        )
        return lost == doubled == wrong == mixed == 0 and len(sale) == self.files * SALES


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and its JVM; its Python workers lose their JVM and end by themselves."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _, left = psutil.wait_procs(family, timeout=30)
    for other in left:
        other.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-out/chaos"), help="made anew")
    parser.add_argument("--role", choices=["query", "finish", "write"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.out.absolute()
    if arguments.role == "write":
        write(folder, arguments.seed)
    elif arguments.role is not None:
        query(folder, finish=arguments.role == "finish")
    else:
        began = time.monotonic()
        good = Campaign(folder, arguments.seed).run(arguments.kills)
        print(f"{'passed' if good else 'FAILED'} in {time.monotonic() - began:.0f} s")
        return 0 if good else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
