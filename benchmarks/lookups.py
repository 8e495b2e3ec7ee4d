"""Random keys out of a large table, by everything that can look them up.

    python -m benchmarks.lookups --rows 10M --keys 10k

The same rows lie in a store, a sorted Parquet file, an Arrow file, and in tables of private
PostgreSQL and MariaDB servers on this machine (loopback, everything in their memory). Every look-up
is for keys that were not asked for before, and ends with all columns of their rows in new Arrow
arrays; they are taken in turns, so that no one has the quiet minute. The yardstick is what can be
written by hand on a mapped Arrow file: binary search in its key column, then `take`.

A store is measured mapped, read by position, and cold: the pages of a copy, which nobody maps, are
dropped from the page cache before each look-up, so the device has to bring them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

import semistream as ss
from benchmarks.lib import workload
from benchmarks.lib.report import Row, count_text, keep, parse_count, print_table, spread
from benchmarks.lib.servers import MariaDB, PostgreSQL, ServerError

STEP = 500_000  # rows made and loaded at a time
LookUp = Callable[[pa.RecordBatch], pa.Table]
PG_TYPES = {"int64": "bigint", "int32": "int", "double": "double precision", "string": "text"}
MY_TYPES = {"int64": "bigint", "int32": "int", "double": "double", "string": "varchar(60)"}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lookups", description=__doc__.split("\n")[0] if __doc__ else None
    )
    parser.add_argument("--rows", type=parse_count, default=10_000_000, help="of the table")
    parser.add_argument("--keys", type=parse_count, default=10_000, help="of one look-up")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-out"))
    parser.add_argument("--no-servers", action="store_true", help="leave the databases out")
    return parser.parse_args(arguments)


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def slices(rows: int) -> Iterator[pa.Table]:
    for at in range(0, rows, STEP):
        yield workload.master_table(at, min(STEP, rows - at))


# --- making the data ----------------------------------------------------------------------------


def write_files(folder: Path, rows: int) -> None:
    """The store, a Parquet file and an Arrow file; kept from run to run."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "store").exists():
        log("building the store")
        batches = (b for t in slices(rows) for b in t.to_batches())
        reader = pa.RecordBatchReader.from_batches(workload.MASTER_SCHEMA, batches)
        ss.Store.create(folder / "store", reader, key=workload.KEY).close()
    if not (folder / "cold").exists():  # mapped pages cannot be dropped from the page cache
        shutil.copytree(folder / "store", folder / "copy")
        os.rename(folder / "copy", folder / "cold")
        os.sync()
    if not (folder / "table.arrow").exists():
        log("writing the Parquet and the Arrow file")
        with pq.ParquetWriter(folder / "table.parquet", workload.MASTER_SCHEMA) as parquet:
            for table in slices(rows):
                parquet.write_table(table, row_group_size=100_000)
        whole = pa.concat_tables(slices(rows)).combine_chunks()
        with pa.ipc.new_file(str(folder / "part.arrow"), whole.schema) as sink:
            sink.write_table(whole)
        os.rename(folder / "part.arrow", folder / "table.arrow")


def as_csv(table: pa.Table, null: str) -> bytes:
    plain = table.cast(
        pa.schema([(f.name, pa.timestamp("us") if pa.types.is_timestamp(f.type) else f.type)
                   for f in table.schema])
    )  # fmt: skip
    sink = io.BytesIO()
    options = pc.WriteOptions(include_header=False, quoting_style="needed")
    assert all(c.null_count == 0 for c in plain.columns), null
    pc.write_csv(plain, sink, options)
    return sink.getvalue()


def load_postgresql(server: PostgreSQL, rows: int) -> None:
    names = {f.name: PG_TYPES.get(str(f.type), "timestamptz") for f in workload.MASTER_SCHEMA}
    with server.connect() as connection:
        made = ", ".join(f"{n} {t}" for n, t in names.items())
        connection.execute(f"CREATE UNLOGGED TABLE products ({made})")
        connection.execute("SET timezone = 'UTC'")
        with connection.cursor().copy("COPY products FROM STDIN (FORMAT csv)") as copy:
            for table in slices(rows):
                copy.write(as_csv(table, ""))
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute(f"ALTER TABLE products ADD PRIMARY KEY ({workload.KEY})")
        connection.execute("VACUUM ANALYZE products")


def load_mariadb(server: MariaDB, rows: int, folder: Path) -> None:
    names = {f.name: MY_TYPES.get(str(f.type), "datetime(6)") for f in workload.MASTER_SCHEMA}
    part = folder / "part.csv"
    with server.connect() as connection, connection.cursor() as cursor:
        made = ", ".join(f"{n} {t}" for n, t in names.items())
        cursor.execute(f"CREATE TABLE products ({made}, PRIMARY KEY ({workload.KEY}))")
        cursor.execute("SET unique_checks = 0, foreign_key_checks = 0")
        for table in slices(rows):
            part.write_bytes(as_csv(table, "\\N"))
            cursor.execute(
                f"LOAD DATA LOCAL INFILE '{part}' INTO TABLE products "
                "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"'"
            )
        part.unlink()
        cursor.execute("ANALYZE TABLE products")


# --- looking up ---------------------------------------------------------------------------------


def yardstick(path: Path) -> LookUp:
    source = pa.memory_map(str(path))
    table = pa.ipc.open_file(source).read_all()
    keys = np.asarray(table[workload.KEY].chunk(0))

    def look_up(wanted: pa.RecordBatch) -> pa.Table:
        asked = np.asarray(wanted.column(0))
        at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        return table.take(pa.array(at[keys[at] == asked]))

    return look_up


def drop_pages(folder: Path) -> None:
    """Out of the page cache: what the next look-up needs comes from the device."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def servers(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, LookUp]]:
    with contextlib.ExitStack() as stack:
        found: dict[str, LookUp] = {}
        if not args.no_servers:
            memory = 256 + args.rows * 250 // 1_000_000  # all of the table, with its index
            try:
                postgresql = stack.enter_context(PostgreSQL(memory))
                mariadb = stack.enter_context(MariaDB(memory))
            except ServerError as error:
                log(f"databases are left out: {error}")
            else:
                log("loading PostgreSQL")
                load_postgresql(postgresql, args.rows)
                log("loading MariaDB")
                load_mariadb(mariadb, args.rows, folder)
                for name, server in (("PostgreSQL", postgresql), ("MariaDB", mariadb)):
                    master = ss.open_master(server.url(), workload.KEY, table="products")
                    found[name] = master.lookup
        yield found


def contenders(folder: Path, more: dict[str, LookUp]) -> dict[str, LookUp]:
    store = folder / "store"
    parquet = ss.open_master(folder / "table.parquet", workload.KEY)
    return {
        "search + take, mapped Arrow file": yardstick(folder / "table.arrow"),
        "store, mapped, warm": ss.Store.open(store).lookup,
        "store, read by position, warm": ss.Store.open(store, io="pread").lookup,
        "store, read by position, cold": ss.Store.open(folder / "cold", io="pread").lookup,
        **more,
        "Parquet, sorted": parquet.lookup,
    }


def measure(args: argparse.Namespace, found: dict[str, LookUp], folder: Path) -> list[Row]:
    rng = np.random.default_rng(args.seed)
    times: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(args.repeat + 1):
        for name, look_up in found.items():
            if name.startswith("Parquet") and turn > min(3, args.repeat):
                continue  # by far the slowest
            asked = rng.choice(args.rows, args.keys, replace=False).astype(np.int64)
            keys = pa.record_batch({workload.KEY: asked})
            if name.endswith("cold"):
                drop_pages(folder / "cold")
            begin = time.perf_counter()
            table = look_up(keys)
            took = time.perf_counter() - begin
            assert table.num_rows == args.keys, f"{name}: {table.num_rows} rows"
            if turn:  # the first one warms caches and compiles kernels
                times[name].append(1000 * took)
        log(f"turn {turn} of {args.repeat} done")
        if turn == 0:
            warm(folder, found, args)
    return [row(name, values, args.keys) for name, values in times.items()]


def warm(folder: Path, found: dict[str, LookUp], args: argparse.Namespace) -> None:
    """Verify every page of the mapped store once, so that none is checked while it is timed."""
    some = np.arange(0, args.rows, 50, dtype=np.int64)
    found["store, mapped, warm"](pa.record_batch({workload.KEY: some}))


def row(name: str, values: list[float], keys: int) -> Row:
    found = spread(values)
    return {
        "look-up": name,
        "ms": found.median,
        "least": found.low,
        "most": found.high,
        "keys/s": keys / found.median * 1000,
        "n": found.n,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    folder = args.out / f"lookups-{count_text(args.rows)}"
    write_files(folder, args.rows)
    with servers(args, folder) as more:
        rows = measure(args, contenders(folder, more), folder)
    by_name = {str(r["look-up"]): float(r["ms"]) for r in rows}
    base = by_name["store, mapped, warm"]
    rows = [{**r, "x store": float(r["ms"]) / base} for r in rows]
    print(f"\n{args.keys:,} random keys out of {args.rows:,} rows, all columns, milliseconds")
    print_table(rows)
    print(f"\nwrote {keep(args.out, 'lookups', rows, args)}")


if __name__ == "__main__":
    main()
