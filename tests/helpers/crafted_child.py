"""Crafted stores: every checksum fits, and the content was chosen to do harm. Runs in a process of
its own, which says what it is about to try before it does: if it dies, the parent knows of what.

    python -m tests.helpers.crafted_child FOLDER FIRST LAST
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import semistream as ss
from semistream.master.store import change as store_change
from semistream.master.store.manifest import _json_crc
from semistream.safety.sealed import checksum

HOSTILE = [0, 1, -1, 7, 8, 63, -8, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, -(2**63), -(2**31)]
ODD = [
    *HOSTILE, 2**63, 2**64, -(2**63) - 1, 10**30, 1.5, float("nan"), True, False, None, "", "x",
    "1", "../x", "a/b", "\0", "\ud800", [], {}, [[]], {"a": 1}, ["x"], "9" * 5000,
]  # fmt: skip
WAYS = [("map", "sweepjoin"), ("pread", "meshjoin"), ("map", "chybridjoin"), ("pread", "inlj"),
        ("map", "memory"), ("map", "hybridjoin"), ("pread", "sweepjoin")]  # fmt: skip


# --- stores to change -----------------------------------------------------------------------------


def one_run(path: Path) -> pa.RecordBatch:
    """A natural key whose column has the codes; text, nested and nullable columns; NULL keys."""
    keys = [*range(0, 60, 2), 4, 4, 4, None, None]
    table = pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array([None if k == 6 else f"name {k}" for k in keys]),
            "flag": pa.array([None if k == 8 else k == 4 for k in keys]),
            "tags": pa.array([None if k is None else [str(k), "x"] for k in keys]),
            "price": pa.array([k for k in range(len(keys))], pa.int16()),
        }
    )
    ss.Store.create(path, table, "id", page_bytes=256).close()
    return pa.record_batch({"id": pa.array([*range(-1, 62), None], pa.int64())})


def runs(path: Path) -> pa.RecordBatch:
    """A hashed key, and changes: codes in a column of their own, claims."""

    def rows(keys: range, what: str) -> pa.Table:
        return pa.table(
            {
                "id": [f"key {k}" for k in keys],
                "v": pa.array([f"{what} {k}".encode() for k in keys], pa.large_binary()),
                "n": pa.array([None if k % 5 == 0 else k for k in keys], pa.int32()),
            }
        )

    merge_from = store_change.merge_from
    store_change.merge_from = lambda some, most: len(some) - 1
    try:
        store = ss.Store.create(path, rows(range(40), "base"), "id", page_bytes=256)
        store = store.upsert(rows(range(5, 20), "new")).append(rows(range(15, 45), "more"))
        store.delete(pa.table({"id": ["key 1", "key 17"]})).close()
    finally:
        store_change.merge_from = merge_from
    return pa.record_batch({"id": [*(f"key {k}" for k in range(46)), None]})


STORES: dict[str, Callable[[Path], pa.RecordBatch]] = {"one run": one_run, "runs": runs}


# --- changing them, with checksums that fit -------------------------------------------------------


class Crafted:
    """The files of a store, to be changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = sorted((path / "manifests").glob("*.json"))[-1]
        self.body: dict[str, Any] = json.loads(self.file.read_bytes())

    def save(self) -> None:
        self.body["crc32c"] = _json_crc(self.body)
        self.file.write_text(json.dumps(self.body))

    def table(self, run: dict[str, Any], kind: str) -> pa.Table:
        content = (self.path / "data" / f"{run['id']}.{kind}").read_bytes()
        return pa.ipc.open_file(content).read_all()

    def put_table(self, run: dict[str, Any], kind: str, table: pa.Table, **options: Any) -> None:
        memory = pa.BufferOutputStream()
        with pa.ipc.new_file(memory, table.schema, options=options.get("options")) as writer:
            writer.write_table(table, max_chunksize=options.get("chunk"))
        content = memory.getvalue().to_pybytes()
        (self.path / "data" / f"{run['id']}.{kind}").write_bytes(content)
        run[f"{kind}_bytes"], run[f"{kind}_crc"] = len(content), checksum(content)


def leaves(value: Any, path: tuple = ()) -> list[tuple]:
    """Where all numbers, names and switches of a JSON value are."""
    if isinstance(value, dict):
        return [leaf for k, v in value.items() for leaf in leaves(v, (*path, k))] or [path]
    if isinstance(value, list):
        return [leaf for k, v in enumerate(value) for leaf in leaves(v, (*path, k))] or [path]
    return [path]


def put(value: Any, path: tuple, new: Any) -> None:
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = new


def manifest_value(store: Crafted, rng: random.Random) -> str:
    """One number, name or switch of the manifest, or a whole part of it."""
    skip = ("crc32c", "format", "format_version", "columns")
    place = rng.choice([leaf for leaf in leaves(store.body) if leaf[0] not in skip])
    place = place[: rng.choice([1, len(place), len(place), len(place)])]
    new = rng.choice(ODD)
    put(store.body, place, new)
    return f"manifest {place} = {str(new)[:30]!r}"


def manifest_runs(store: Crafted, rng: random.Random) -> str:
    some = store.body["runs"]
    shards = rng.choice(some)["shards"]
    how = rng.choice(["drop", "double", "swap", "no shards", "two shards", "of another"])
    at, other = rng.randrange(len(some)), rng.randrange(len(some))
    if how == "drop":
        del some[at]
    elif how == "double":
        some.append(some[at])
    elif how == "swap":
        some[at], some[other] = some[other], some[at]
    elif how == "no shards":
        shards.clear()
    elif how == "two shards":
        shards.append(shards[0])
    else:
        shards[:] = some[other]["shards"]
    return f"runs: {how} {at} {other}"


def schema(store: Crafted, rng: random.Random) -> str:
    """Other columns than the pages have."""
    types = [
        pa.int8(), pa.int64(), pa.string(), pa.large_string(), pa.bool_(), pa.list_(pa.int64()),
        pa.decimal128(38, 2), pa.null(), pa.binary(7), pa.binary(2**31 - 1), pa.float64(),
        pa.dictionary(pa.int8(), pa.string()), pa.string_view(), pa.map_(pa.string(), pa.int8()),
        pa.struct([("a", pa.string())]), pa.timestamp("ns"), pa.date32(), pa.uint64(),
        pa.list_(pa.string()), pa.list_(pa.int64(), 3), pa.dense_union([pa.field("a", pa.int8())]),
        pa.list_view(pa.int8()), pa.run_end_encoded(pa.int32(), pa.int64()),
    ]  # fmt: skip
    found = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(store.body["schema"])))
    at = rng.randrange(len(found))
    how = rng.choice(["type", "type", "type", "drop", "double", "rename", "more"])
    field = found.field(at)
    if how == "type":
        found = found.set(at, field.with_type(rng.choice(types)))
    elif how == "drop":
        found = found.remove(at)
    elif how == "double":
        found = found.append(field)
    elif how == "rename":
        found = found.set(at, field.with_name("__semistream_code"))
    else:
        found = found.append(pa.field("more", rng.choice(types)))
    if rng.random() < 0.5:  # codes as the new types would have them
        for name, words in (("code", ["value", "column"]), ("hash", [None, "xxh64-chained-seed0"])):
            store.body[name] = rng.choice(words)
    store.body["schema"] = base64.b64encode(found.serialize().to_pybytes()).decode()
    return f"schema: {how} of column {at}, now {found.field(min(at, len(found) - 1)).type}"


def _cell(values: np.ndarray, rng: random.Random) -> int:
    near = int(rng.choice(list(values)))
    bounds = np.iinfo(values.dtype)
    new = rng.choice([*HOSTILE, near, near + 1, near - 1, near + 8, near - 8, near * 2])
    return new if bounds.min <= new <= bounds.max else int(bounds.max)


def index_cell(store: Crafted, rng: random.Random) -> str:
    run = rng.choice(store.body["runs"])
    kind = "claims" if run["kind"] != "base" and rng.random() < 0.3 else "index"
    table = store.table(run, kind)
    if table.num_rows == 0:
        return "nothing"
    name = rng.choice([*table.column_names, "buffers", "buffers"] if kind == "index" else ["code"])
    array = table[name].combine_chunks()
    nested = pa.types.is_fixed_size_list(array.type)
    values = (array.values if nested else array).to_numpy().copy()
    told = []
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at, new = rng.randrange(len(values)), _cell(values, rng)
        told.append(f"[{at}] {values[at]} -> {new}")
        values[at] = new
    flat = pa.array(values)
    new_array = pa.FixedSizeListArray.from_arrays(flat, array.type.list_size) if nested else flat
    at = table.column_names.index(name)
    store.put_table(run, kind, table.set_column(at, table.schema.field(at), new_array))
    if kind == "index" and rng.random() < 0.7:  # what the manifest sums up fits as well
        rows, length = (np.array(store.table(run, kind)[n]) for n in ("rows", "length"))
        run["rows"], run["page_bytes"] = int(rows.sum()), int(length.sum())
        run["max_page_bytes"] = int(length.max())
    return f"{kind} {name}: {told}"


def index_form(store: Crafted, rng: random.Random) -> str:
    """A table of another form."""
    run = rng.choice(store.body["runs"])
    kind = "claims" if run["kind"] != "base" and rng.random() < 0.4 else "index"
    table, at = store.table(run, kind), 0
    how = rng.choice(["fewer", "more", "reversed", "nulls", "type", "name", "chunks", "squeezed"])
    options: dict[str, Any] = {}
    if how == "fewer":
        table = table.slice(0, max(0, table.num_rows - 1))
    elif how == "more":
        table = pa.concat_tables([table, table]).combine_chunks()
    elif how == "reversed":
        table = table.take(pa.array(range(table.num_rows)[::-1], pa.int64()))
    elif how == "nulls":
        at = rng.randrange(table.num_columns)
        nothing = pa.nulls(table.num_rows, table.schema.field(at).type)
        table = table.set_column(at, table.schema.field(at), nothing)
    elif how == "type":
        small = pa.nulls(table.num_rows, pa.int32()).fill_null(1)
        table = table.set_column(0, table.column_names[0], small)
    elif how == "name":
        table = table.rename_columns([f"{n}2" for n in table.column_names])
    elif how == "chunks":
        options["chunk"] = 1
    else:
        options["options"] = pa.ipc.IpcWriteOptions(compression="lz4")
    if rng.random() < 0.7:
        run["pages" if kind == "index" else "claims"] = table.num_rows
    store.put_table(run, kind, table, **options)
    return f"{kind}: {how} {at}"


def index_bytes(store: Crafted, rng: random.Random) -> str:
    """Any byte of the file: Arrow's own description of it, too."""
    run = rng.choice(store.body["runs"])
    kind = "claims" if run["kind"] != "base" and rng.random() < 0.4 else "index"
    file = store.path / "data" / f"{run['id']}.{kind}"
    content = bytearray(file.read_bytes())
    told = _scribble(content, 0, len(content), rng)
    file.write_bytes(content)
    run[f"{kind}_crc"] = checksum(bytes(content))
    return f"bytes of {kind}: {told}"


def _scribble(content: bytearray, begin: int, end: int, rng: random.Random) -> list[str]:
    told = []
    for _ in range(rng.choice([1, 1, 2, 6])):
        size = rng.choice([1, 4, 8])
        at = begin + rng.randrange(max(1, end - begin - size))
        at -= at % size if rng.random() < 0.7 else 0
        at = max(begin, at)
        new = rng.choice(HOSTILE) % 256**size if rng.random() < 0.7 else rng.randrange(256**size)
        content[at : at + size] = new.to_bytes(size, "little")
        told.append(f"[{at}:{at + size}] = {new:#x}")
    return told


def page_bytes(store: Crafted, rng: random.Random) -> str:
    """Any bytes of a page: offsets of strings and lists, values, Arrow's description."""
    run = rng.choice(store.body["runs"])
    table = store.table(run, "index")
    if table.num_rows == 0:
        return "nothing"
    page = rng.randrange(table.num_rows)
    entry = {name: table[name][page].as_py() for name in ("shard", "offset", "length")}
    file = store.path / "data" / run["shards"][entry["shard"]]["name"]
    content = bytearray(file.read_bytes())
    begin, end = entry["offset"], entry["offset"] + entry["length"]
    told = _scribble(content, begin, end, rng)
    file.write_bytes(content)
    sums = table["crc"].to_numpy().copy()
    sums[page] = checksum(bytes(content[begin:end]))
    at = table.column_names.index("crc")
    store.put_table(run, "index", table.set_column(at, table.schema.field(at), pa.array(sums)))
    return f"bytes of page {page}: {told}"


CHANGES = [
    manifest_value, manifest_value, manifest_runs, schema, index_cell, index_cell, index_cell,
    index_form, index_bytes, page_bytes, page_bytes, page_bytes,
]  # fmt: skip
SAME_ROWS = (manifest_value, index_cell, index_form, index_bytes)  # or verify says why not


# --- what comes of it -----------------------------------------------------------------------------


def plain(batches: list[pa.RecordBatch]) -> list[tuple]:
    """Rows to compare; text as bytes, which need not be UTF-8 any more."""
    columns = []
    for column in pa.Table.from_batches(batches).columns if batches else ():
        if pa.types.is_string(column.type):
            column = column.cast(pa.binary())
        elif pa.types.is_list(column.type):
            column = column.cast(pa.list_(pa.binary()))
        columns.append(column.to_pylist())
    return sorted(zip(*columns, strict=True), key=repr)


def answer(path: Path, stream: pa.RecordBatch, io: str, algorithm: str) -> list[tuple] | None:
    """The rows of a join; None: refused."""
    try:
        store = ss.Store.open(path, io=io)
    except ss.SemiStreamError:
        return None
    try:
        join = ss.SemiStreamJoin(store, "id", "left", algorithm=algorithm, memory="600kB")
        return plain([*join.push(stream), *join.drain()])
    except ss.SemiStreamError:
        return None
    finally:
        store.close()


def sound(path: Path) -> bool:
    try:
        ss.Store.open(path, io="pread").verify()
        return True
    except ss.SemiStreamError:
        return False


def attempt(path: Path, stream: pa.RecordBatch, right: list[tuple], change: Any, seed: int) -> str:
    rng = random.Random(seed)
    ways = [WAYS[0], WAYS[1], rng.choice(WAYS[2:])]
    found = [answer(path, stream, *way) for way in ways]
    if not sound(path):
        return "refused" if None in found else "not sound"
    if None in found:
        if change is schema:
            return "refused"  # other types are another question
        raise AssertionError("verify finds nothing wrong, and a join is refused")
    if any(rows != found[0] for rows in found):
        raise AssertionError(f"{ways} give different rows")
    if change in SAME_ROWS and found[0] != right:
        raise AssertionError("verify finds nothing wrong, and the rows are wrong")
    ss.Store.open(path).compact()
    return "sound"


def main(folder: Path, first: int, last: int) -> None:
    made = {}
    for name, make in STORES.items():
        stream = make(folder / name)
        right = answer(folder / name, stream, "map", "sweepjoin")
        assert right is not None
        made[name] = stream, right
    for seed in range(first, last):
        rng = random.Random(seed)
        name, change = rng.choice(list(STORES)), rng.choice(CHANGES)
        path = folder / f"{seed}"
        shutil.copytree(folder / name, path)
        store = Crafted(path)
        told = change(store, rng)
        store.save()
        print(json.dumps({"seed": seed, "store": name, "did": told}), flush=True)
        try:
            result = attempt(path, *made[name], change, seed)
        except Exception as error:  # which the parent shows, with what led to it
            result = f"{type(error).__name__}: {str(error)[:300]}"
        print(json.dumps({"seed": seed, "kind": change.__name__, "result": result}), flush=True)
        shutil.rmtree(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
