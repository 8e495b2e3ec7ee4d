"""What changes of a store cost: to write, to open, and to join with before they are compacted.

    python -m benchmarks.versions
    python -m benchmarks.versions --versions 10000      only: a small upsert at 10 and at as many

A store of products gets upserts of 1 % of random keys each. Then the same Zipf stream is joined
with the version that has all of them as changes and with the compacted one, in turns, every file
in the page cache. Last, by pread, bytes read for scattered keys against the pages that hold them.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from benchmarks.lib.report import count_text, keep, parse_count, print_table
from benchmarks.lib.workload import KEY, master_table, stream_table

SLICE = 250_000
BATCH = 100_000
ALGORITHMS = ("sweepjoin", "chybridjoin", "cinlj", "inlj", "hybridjoin", "cmeshjoin")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def slices(rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, SLICE):
        yield from master_table(first, min(SLICE, rows - first)).to_batches()


def change(rows: int, count: int, number: int) -> pa.Table:
    """Other products for some random keys."""
    keys = np.random.default_rng(number).choice(rows, count, replace=False)
    fresh = master_table(rows + number * count, count)
    return fresh.set_column(0, fresh.schema.field(KEY), pa.array(keys, pa.int64()))


# --- writing -------------------------------------------------------------------------------------


def write(path: Path, args: argparse.Namespace) -> tuple[list[dict[str, Any]], int, int]:
    """All versions; what each kind of work took, and the versions to compare."""
    count = max(1, int(args.rows * args.share))
    took: dict[str, list[float]] = {"create": [], "upsert": [], "upsert of 1 row": []}
    seconds, store = timed(lambda: ss.Store.create(path, slices(args.rows), KEY))
    took["create"].append(seconds)
    for number in range(args.changes):
        data = change(args.rows, count, number)
        seconds, store = timed(lambda data=data, store=store: store.upsert(data))
        took["upsert"].append(seconds)
    changed = store.version
    took["open"] = [timed(lambda: ss.Store.open(path))[0] for _ in range(9)]
    resident = store.describe().resident_bytes
    runs = [run.rows for run in store.manifest.runs]
    took["compact"], store = [(found := timed(store.compact))[0]], found[1]
    compacted = store.version
    took["open, compacted"] = [timed(lambda: ss.Store.open(path))[0] for _ in range(9)]
    for number in range(9):
        data = change(args.rows, 1, 1000 + number)
        seconds, store = timed(lambda data=data, store=store: store.upsert(data))
        took["upsert of 1 row"].append(seconds)
    print(f"rows of runs after {args.changes} changes: {runs}")
    print(f"index in memory: {resident / 1e6:.2f} MB, compacted: "
          f"{ss.Store.open(path, compacted).describe().resident_bytes / 1e6:.2f} MB")  # fmt: skip
    table = [
        {"work": k, "median s": statistics.median(v), "low": min(v), "high": max(v), "n": len(v)}
        for k, v in took.items()
    ]
    return table, changed, compacted


# --- joining -------------------------------------------------------------------------------------


def join_rate(store: ss.Store, stream: list[pa.RecordBatch], algorithm: str, memory: int) -> float:
    """Rows per second of CPU time of a join whose cache starts empty. The files are in memory, so
    it waits for nothing, and what else the machine does shows less."""
    begin = time.process_time()
    with ss.SemiStreamJoin(store, KEY, algorithm=algorithm, memory=memory) as join:
        rows = sum(len(out) for batch in stream for out in join.push(batch))
        rows += sum(len(out) for out in join.drain())
    assert rows == sum(len(batch) for batch in stream), "every sale has one product"
    return rows / (time.process_time() - begin)


def compare(
    path: Path, versions: tuple[int, int], args: argparse.Namespace
) -> list[dict[str, Any]]:
    changed, compacted = (ss.Store.open(path, version) for version in versions)
    memory = int(changed.describe().bytes * args.memory)
    table = stream_table(
        np.random.default_rng(args.seed), args.batches * BATCH, args.rows, args.skew
    )
    stream = table.combine_chunks().to_batches(max_chunksize=BATCH)
    lines = []
    for algorithm in args.algorithms:
        some = stream if algorithm == "sweepjoin" else stream[: len(stream) // 4 + 1]
        rates: dict[str, list[float]] = {"changed": [], "compacted": []}
        for turn in range(args.rounds + 1):
            for name, store in (("changed", changed), ("compacted", compacted)):
                rate = join_rate(store, some, algorithm, memory)
                if turn:  # the first one compiles, and checks every page
                    rates[name].append(rate)
        slower = [b / a for a, b in zip(rates["changed"], rates["compacted"], strict=True)]
        lines.append(
            {
                "algorithm": algorithm,
                "rows": count_text(args.rows),
                "changed, M rows/s": statistics.median(rates["changed"]) / 1e6,
                "compacted, M rows/s": statistics.median(rates["compacted"]) / 1e6,
                "times slower": statistics.median(slower),
                "low": min(slower),
                "high": max(slower),
            }
        )
        print(f"  {algorithm}: {lines[-1]['times slower']:.2f} x", flush=True)
    return lines


# --- reading -------------------------------------------------------------------------------------


def read_so_far() -> int:
    """Bytes that this process has asked the system for."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def scattered(path: Path, version: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """By pread: bytes read for some scattered keys, against the pages that hold them."""
    lines = []
    for n in (10, 1_000, 100_000):
        store = ss.Store.open(path, version, io="pread")
        keys = np.unique(np.random.default_rng(n).integers(0, args.rows, n))
        low, high = store.seek(keys)
        pages = np.unique(np.concatenate([np.arange(a, b) for a, b in zip(low, high, strict=True)]))
        touched = int(store.page_bytes(pages).sum())
        batch = pa.record_batch({KEY: keys})
        for algorithm in ("sweepjoin", "inlj"):
            list(ss.join_batches([batch.slice(0, 1)], store, KEY, algorithm=algorithm))
            before, asked = store.traffic.bytes, read_so_far()
            out = ss.join_batches([batch], store, KEY, algorithm=algorithm, memory="64MB")
            assert sum(len(b) for b in out) == len(keys)
            asked = read_so_far() - asked
            counted = store.traffic.bytes - before
            lines.append(
                {
                    "keys": len(keys), "algorithm": algorithm, "pages": len(pages),
                    "pages MB": touched / 1e6, "read MB": counted / 1e6, "rchar MB": asked / 1e6,
                    "read / pages": counted / touched, "rchar / pages": asked / touched,
                }
            )  # fmt: skip
        store.close()
    return lines


# --- many versions -------------------------------------------------------------------------------


def at_versions(path: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Upserts of one row in turns, in a store of 10 versions and in one of many."""
    stores = {}
    for versions in (10, args.versions):
        store = ss.Store.create(path / str(versions), slices(args.rows), KEY)
        while store.version < versions:
            store, before = store.upsert(change(args.rows, 1, store.version)), store
            before.close()
        stores[versions] = store
    took: dict[int, list[float]] = {versions: [] for versions in stores}
    for number in range(64):
        for versions, store in stores.items():
            data = change(args.rows, 1, 10**6 + number)
            seconds, stores[versions] = timed(lambda data=data, store=store: store.upsert(data))
            took[versions].append(seconds)
            store.close()
    return [
        {"versions": k, "median ms": 1e3 * statistics.median(v), "low": 1e3 * min(v),
         "high": 1e3 * max(v), "n": len(v)} for k, v in took.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rows", type=parse_count, default=1_000_000, help="of the master")
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--share", type=float, default=0.01, help="of the rows, per change")
    parser.add_argument("--memory", type=float, default=0.1, help="of the store's bytes")
    parser.add_argument("--batches", type=int, default=10, help=f"of {BATCH} sales")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skew", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--versions", type=int, help="an upsert of one row at 10 and at as many")
    parser.add_argument("--out", type=Path, default=Path("bench-out"))
    args = parser.parse_args()
    path = args.out / "versions-store"
    shutil.rmtree(path, ignore_errors=True)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        if args.versions:
            print_table(at_versions(path, args))
            return
        took, changed, compacted = write(path, args)
        print_table(took)
        joins = compare(path, (changed, compacted), args)
        print_table(joins)
        reads = scattered(path, changed, args)
        print_table(reads)
    finally:
        shutil.rmtree(path, ignore_errors=True)
    print(f"wrote {keep(args.out, 'versions', [*took, *joins, *reads], args)}")


if __name__ == "__main__":
    main()
