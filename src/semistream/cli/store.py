"""The commands that make and change stores, and look at them: build, append, upsert, delete,
compact, restore, expire, retain, verify, inspect."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ..budget import parse_bytes, show_bytes
from ..errors import ConflictError, SpecError
from ..master import Store
from ..master.store import read_manifest, versions
from .commands import Result, names
from .files import Rows, read_rows
from .parser import command, local
from .progress import Progress

_BUILD = """\
Sort a table by its key and write it as a store: pages on disk with a small index, so that a join
reads just the pages it needs. INPUT is a Parquet file, a folder of Parquet files, an Arrow file, or
a CSV file. A store appears whole or not at all; an existing one is never changed."""

_UPSERT = """\
Replace all rows of the keys in INPUT by its rows, and add keys that are new. A new version of the
store appears, whole, when all is done; who reads an older one goes on reading it."""

_APPEND = """\
Add the rows of INPUT to those that their keys have. A new version of the store appears, whole, when
all is done; who reads an older one goes on reading it."""

_DELETE = """\
Remove all rows of the keys in INPUT, a table with at least the key columns. A new version of the
store appears, whole, when all is done; who reads an older one goes on reading it."""

_COMPACT = """\
Changes lie beside the table until they are brought together with it: joins are faster then. Writes
everything anew as a new version. Old versions keep their files until they expire."""

_EXPIRE = """\
Delete versions that were replaced longer ago than an age, and the files that only they need. The
latest version stays, and versions that pins of running Spark queries name."""

_RETAIN = """\
Let every change of a store, from now on and whoever makes it, delete versions that are not among
the last ones: what `expire` does when it is asked to. Versions that pins of running Spark queries
name stay."""

_RESTORE = """\
Publish the rows of an older version as a new one, the newest. Writes everything anew. Also the way
out when the newest manifest is lost or damaged."""

_VERIFY = """\
Read every byte of a store's versions and compare it with its checksums; check that rows lie where
readers look for them. Exit code 0: sound. Exit code 1: damaged, and the message names the file."""

_INSPECT = """\
Show what a store holds: rows, pages, key, columns, and its last versions. Reads indexes only."""

ATTEMPTS = 5  # to publish, while others publish too
_INPUT = "Parquet file or folder, Arrow or CSV file"
_STORE = "folder of the store, or s3://bucket/prefix"


# --- how they are called -----------------------------------------------------------------------


def add_build(found: Any) -> None:
    examples = (
        "  semistream build products.parquet products --key product_id\n"
        "  semistream build prices.csv prices --key country,product_id --memory 200MB"
    )
    parser = command(found, "build", _BUILD, build, "make a store of a table", examples)
    add = parser.add_argument
    add("input", type=local, metavar="INPUT", help=_INPUT)
    add("store", metavar="STORE", help="folder to make, or s3://bucket/prefix")
    add("--key", required=True, metavar="A,B", help="column to join on, or several")
    add("--unique", action="store_true", help="refuse keys with two rows, now and in every change")
    add("--keep", type=int, metavar="N", help="of the last versions; every change drops others")
    add("--memory", default="1GB", metavar="SIZE", help="rows beyond this are sorted on disk [1GB]")
    add("--page-bytes", default="64KiB", metavar="SIZE", help="size of a page [64KiB]")


def add_changes(found: Any) -> None:
    _add_change(found, "upsert", _UPSERT, upsert, "replace and add rows by key", "changes.parquet")
    _add_change(found, "append", _APPEND, append, "add rows", "new.parquet")
    _add_change(found, "delete", _DELETE, delete, "remove rows by key", "gone.csv")
    parser = _on_store(found, "compact", _COMPACT, compact, "bring changes and table together")
    parser = _on_store(
        found, "expire", _EXPIRE, expire, "delete old versions", "--older-than 1d --keep 3"
    )
    add = parser.add_argument
    add("--older-than", default="7d", metavar="AGE", help="as 90s, 30m, 12h, 7d, 2w [7d]")
    add("--keep", type=int, default=1, metavar="N", help="of the last versions [1]")
    add("--pins", action="append", metavar="DIR", help="pins of Spark queries; may be repeated")
    parser = _on_store(
        found, "retain", _RETAIN, retain, "delete old versions with every change", "--keep 20"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--keep", type=int, metavar="N", help="of the last versions")
    which.add_argument("--all", action="store_true", help="versions stay until `expire`, as before")
    add = parser.add_argument
    add("--older-than", default="0s", metavar="AGE", help="and replaced longer ago: 30m, 12h [0s]")
    add("--pins", action="append", metavar="DIR", help="pins of Spark queries; may be repeated")
    parser = _on_store(
        found, "restore", _RESTORE, restore, "publish an older version anew", "--version 1"
    )
    parser.add_argument("--version", type=int, required=True, metavar="N", help="whose rows")


def _add_change(
    found: Any, name: str, text: str, run: Callable[..., Any], help: str, example: str
) -> None:
    examples = (
        f"  semistream {name} {example} products\n  semistream {name} {example} products --json"
    )
    parser = command(found, name, text, run, help, examples)
    add = parser.add_argument
    add("input", type=local, metavar="INPUT", help=_INPUT)
    add("store", metavar="STORE", help=_STORE)
    add("--memory", default="1GB", metavar="SIZE", help="rows beyond this are sorted on disk [1GB]")


def add_looks(found: Any) -> None:
    for name, text, call, help in (
        ("verify", _VERIFY, verify, "check every byte of a store"),
        ("inspect", _INSPECT, inspect, "show what a store holds"),
    ):
        parser = _on_store(found, name, text, call, help, "--version 1")
        which = "all" if name == "verify" else "the latest"
        parser.add_argument("--version", type=int, metavar="N", help=f"of the store [{which}]")


def _on_store(
    found: Any, name: str, text: str, run: Callable[..., Any], help: str, example: str = ""
) -> Any:
    examples = f"  semistream {name} products\n  semistream {name} products --json"
    if example:
        examples = f"  semistream {name} products\n  semistream {name} products {example}"
    if name in ("retain", "restore"):  # which need to be told more
        example = f"  semistream {name} products {example}"
        examples = f"{example}\n{example} --json"
    parser = command(found, name, text, run, help, examples)
    parser.add_argument("store", metavar="STORE", help=_STORE)
    return parser


# --- what they do ------------------------------------------------------------------------------


# --- making -------------------------------------------------------------------------------------


def build(args: Namespace) -> Result:
    began = time.monotonic()
    rows = read_rows(args.input)
    with (
        Progress("read", total=rows.count, show=args.progress) as reading,
        Progress("written", total=rows.count, show=args.progress) as writing,
    ):
        batches = _watched(rows.batches, reading)
        store = Store.create(
            args.store,
            pa.RecordBatchReader.from_batches(rows.schema, batches),
            key=names(args.key),
            unique=args.unique,
            keep=args.keep,
            page_bytes=parse_bytes(args.page_bytes),
            spill_bytes=parse_bytes(args.memory),
            progress=writing,
        )
    seconds = time.monotonic() - began
    data = {"command": "build", "input": str(args.input), **_described(store)}
    data["seconds"] = round(seconds, 3)
    text = (
        f"Built the store {args.store} from {args.input} in {seconds:.1f} s\n"
        f"  rows    {data['rows']:,}, key {', '.join(data['key'])}"
        f"{_said_unique(data, ' (each once)', '', ' (some keys have several rows)')}\n"
        f"  pages   {data['pages']:,}, {show_bytes(data['bytes'])}"
    )
    return Result(data, text)


def _watched(batches: Iterator[pa.RecordBatch], progress: Progress) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress(done)
    progress.close()


# --- changing -----------------------------------------------------------------------------------


def append(args: Namespace) -> Result:
    return _change(args, "append", "Added {rows} rows to")


def upsert(args: Namespace) -> Result:
    return _change(args, "upsert", "Upserted {rows} rows into")


def delete(args: Namespace) -> Result:
    return _change(args, "delete", "Deleted the rows of {rows} keys from")


def _change(args: Namespace, kind: str, said: str) -> Result:
    """Publish a version; where another writer was faster, begin again from its version."""
    began = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        before = Store.open(args.store)
        rows = read_rows(args.input)
        schema = before.manifest.schema
        if kind == "delete":
            schema = pa.schema([schema.field(name) for name in before.manifest.key])
        done = [0]
        with Progress(f"{kind}: read", total=rows.count, show=args.progress) as progress:
            batches = _fitted(rows, schema, done, progress)
            reader = pa.RecordBatchReader.from_batches(schema, batches)
            change: Callable[..., Store] = getattr(before, kind)
            try:
                after = change(reader, spill_bytes=parse_bytes(args.memory))
                break
            except ConflictError:
                if attempt == ATTEMPTS:
                    raise
    data = {"command": kind, "input": str(args.input), "input_rows": done[0], **_described(after)}
    data |= {"rows_before": before.manifest.rows, "changed": after is not before}
    data["seconds"] = round(time.monotonic() - began, 3)
    text = (
        f"{said.format(rows=f'{done[0]:,}')} {args.store} in {data['seconds']:.1f} s: "
        f"version {after.version}, {after.manifest.rows:,} rows "
        f"({after.manifest.rows - before.manifest.rows:+,})"
    )
    if after is before:
        text = f"{args.store} stays at version {after.version}: there was nothing to change"
    return Result(data, text)


def _fitted(
    rows: Rows, schema: pa.Schema, done: list[int], progress: Progress
) -> Iterator[pa.RecordBatch]:
    """Batches with a store's columns and types: a CSV file does not say what its types are."""
    missing = [name for name in schema.names if name not in rows.schema.names]
    if missing:
        raise SpecError(f"the input lacks the column {missing[0]!r}; it has {rows.schema.names}")
    for batch in rows.batches:
        try:
            yield batch.select(schema.names).cast(schema)
        except pa.ArrowException as error:
            raise SpecError(f"the input does not fit the store's columns: {error}") from error
        done[0] += len(batch)
        progress(done[0])


def compact(args: Namespace) -> Result:
    began = time.monotonic()
    before = Store.open(args.store)
    total = before.manifest.rows
    with Progress("compacted", total=total, show=args.progress) as progress:
        after = before.compact(progress)
    seconds = time.monotonic() - began
    runs = len(before.manifest.runs)
    data = {"command": "compact", **_described(after), "runs_before": runs}
    data |= {"changed": after is not before, "seconds": round(seconds, 3)}
    text = (
        f"Compacted {args.store} in {seconds:.1f} s: version {after.version} is one run of "
        f"{after.manifest.rows:,} rows, it was {runs}"
    )
    if after is before:
        text = f"{args.store} stays at version {after.version}: it is one run already"
    return Result(data, text)


def expire(args: Namespace) -> Result:
    store = Store.open(args.store)
    gone = store.expire(args.older_than, keep=args.keep, pins=args.pins or ())
    left = versions(store.place)
    data = {"command": "expire", "store": str(store.place), "expired": gone, "versions": left}
    if not gone:
        text = f"{args.store}: no version is to go; there are {len(left):,}"
    else:
        text = f"{args.store}: {len(gone):,} versions expired, {len(left):,} are left"
    return Result(data, text)


def retain(args: Namespace) -> Result:
    before = Store.open(args.store)
    had = versions(before.place)
    after = before.retain(args.keep, older_than=args.older_than, pins=args.pins or ())
    left = versions(after.place)
    gone = sorted(set(had) - set(left))
    data = {"command": "retain", **_described(after), "expired": gone, "versions": left}
    said = f"keeps the last {args.keep:,}" if args.keep is not None else "keeps all its versions"
    text = f"{args.store} {said} from version {after.version} on; {len(gone):,} expired now"
    return Result(data, text)


def restore(args: Namespace) -> Result:
    began = time.monotonic()
    before = Store.open(args.store, args.version)
    with Progress("restored", total=before.manifest.rows, show=args.progress) as progress:
        after = before.restore(progress)
    seconds = time.monotonic() - began
    data = {"command": "restore", **_described(after), "restored": args.version}
    data |= {"changed": after is not before, "seconds": round(seconds, 3)}
    text = (
        f"Restored version {args.version} of {args.store} in {seconds:.1f} s: version "
        f"{after.version} has its {after.manifest.rows:,} rows"
    )
    if after is before:
        text = f"{args.store} stays at version {after.version}: it is the newest already"
    return Result(data, text)


# --- looking ------------------------------------------------------------------------------------


def verify(args: Namespace) -> Result:
    """All versions, or one. Pages that versions share are read once for each."""
    began = time.monotonic()
    latest = Store.open(args.store, args.version)
    numbers = [latest.version] if args.version is not None else versions(latest.place)
    pages = size = 0
    for number in numbers:
        store = latest if number == latest.version else Store.open(latest.place, number)
        info = store.describe()
        label = f"verified version {number}"
        with Progress(label, "pages", info.pages, show=args.progress) as progress:
            pages += store.verify(progress)
        size += info.bytes
    seconds = time.monotonic() - began
    data = {"command": "verify", **_described(latest), "ok": True, "versions": numbers}
    data |= {"pages_verified": pages, "seconds": round(seconds, 3)}
    which = f"version {numbers[0]}" if len(numbers) == 1 else f"{len(numbers):,} versions"
    text = (
        f"{args.store} is sound: every byte of {pages:,} pages ({which}, {show_bytes(size)}) is as "
        f"it was written ({seconds:.1f} s)"
    )
    return Result(data, text)


def inspect(args: Namespace) -> Result:
    store = Store.open(args.store, args.version)
    data = {"command": "inspect", **_described(store), "versions": _history(store)}
    wide = max(len(name) for name in data["columns"])
    lines = [
        f"{args.store}, version {data['version']}",
        f"  rows     {data['rows']:,}",
        f"  pages    {data['pages']:,}, {show_bytes(data['bytes'])} "
        f"(the largest has {show_bytes(data['max_page_bytes'])}) in {data['runs']} runs",
        f"  key      {', '.join(data['key'])}, {_said_unique(data, *_ONCE)}",
        f"  keeps    {_said_keep(data['keep'])}",
        "  columns",
        *(f"    {name:<{wide}}  {kind}" for name, kind in data["columns"].items()),
        "  versions",
        *(_line(entry) for entry in data["versions"]),
    ]
    return Result(data, "\n".join(lines))


_ONCE = (
    "each at most once, in every version (unique)",
    "each at most once",
    "some keys have several rows",
)


def _said_unique(data: dict[str, Any], promised: str, found: str, several: str) -> str:
    return promised if data["promises_unique"] else found if data["unique"] else several


def _said_keep(keep: dict[str, Any] | None) -> str:
    if keep is None:
        return "all versions, until they are told to expire"
    said = f"the last {keep['versions']:,} versions"
    if keep["seconds"]:
        said += f", and those replaced less than {keep['seconds']:g} s ago"
    return said + (f", and those that pins name in {', '.join(keep['pins'])}" * bool(keep["pins"]))


def _history(store: Store) -> list[dict[str, Any]]:
    """What each version is, the latest first; at most the last 20."""
    entries = []
    for number in versions(store.place)[:-21:-1]:
        manifest = read_manifest(store.place, number)
        made = datetime.fromtimestamp(manifest.created, UTC)  # format 1 does not say
        created = made.isoformat() if manifest.created else None
        entry = {"version": number, "created": created, "operation": manifest.operation}
        entries.append({**entry, "rows": manifest.rows, "runs": len(manifest.runs)})
    return entries


def _line(entry: dict[str, Any]) -> str:
    runs = "1 run" if entry["runs"] == 1 else f"{entry['runs']} runs"
    when = (entry["created"] or "").removesuffix("+00:00").replace("T", " ")
    return (
        f"    {entry['version']:>6}  {when:<19}  {entry['operation']:<7}  "
        f"{entry['rows']:,} rows, {runs}"
    )


def _described(store: Store) -> dict[str, Any]:
    info = store.describe()
    return {
        "store": str(store.place),
        "version": info.version,
        "runs": len(store.manifest.runs),
        "rows": info.rows,
        "pages": info.pages,
        "bytes": info.bytes,
        "max_page_bytes": info.max_page_bytes,
        "key": list(info.key),
        "unique": info.unique,
        "promises_unique": store.manifest.unique,
        "keep": None if store.manifest.keep is None else asdict(store.manifest.keep),
        "columns": {f.name: str(f.type) for f in info.schema},
    }
