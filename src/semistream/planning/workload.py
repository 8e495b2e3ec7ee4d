"""What a stream is like, in numbers: from a sample of it, or from a join that runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from ..errors import SpecError
from ..kernels.arrays import I64, Mask
from ..master import Master, MasterInfo, Source, find_rows, open_master
from ..rows.keys import KeyCoder, On, codes_of, is_natural, key_coder, pair_names
from ..rows.layout import plain, row_bytes
from ..spec import Workload
from .sample import Generation, StreamSample
from .skew import Counts, counts_of, fit_skew, popularity, without_orphans

Stream: TypeAlias = "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch]"
ASKED = 2000  # keys that a master is asked for, half of them the most frequent ones
FEW_ROWS = 256  # rows of a sample that say too little
FEW_ARRIVALS = 8
STRANGERS = 0.005  # share of rows with a key that the master lacks, beyond which they matter
PER_INTERVAL = 64  # rows of an interval of time, on average
MOST_INTERVALS = 4096


def sketch_stream(
    stream: Stream,
    on: On,
    master: Source | None = None,
    *,
    time: str | None = None,
    keys: int | None = None,
) -> Workload:
    """What a sample of a stream tells: a table, or batches as they arrive.

    The master says how many keys there are and, where it has an index, which of 2,000 keys of the
    sample it does not have. Without one, `keys` says how many there are, or the sample itself.
    `time` is a column with the time of arrival; without it the sizes of batches tell how even the
    arrivals are, if there are several. The sample should be rows that follow each other.
    """
    opened = None
    if master is not None:
        names = [name for _, name in pair_names(on)]
        opened = master if isinstance(master, Master) else open_master(master, names)
    try:
        return _sketch(stream, on, opened, time, keys)
    finally:
        if opened is not None and opened is not master:
            opened.close()


@dataclass(frozen=True)
class Seen:
    """What a running join has seen of its stream so far."""

    schema: pa.Schema
    keyed: bool  # it joins on keys
    sample: StreamSample | None  # None: there is no room for one
    rows_in: int
    rows_matched: int
    rows_unmatched: int
    keys: float  # of the master


def workload_of(seen: Seen | None) -> Workload:
    """What a running join knows of its stream. Where there is no room for a sample, the skew is
    the usual assumption, and has no error."""
    if seen is None:
        return Workload()
    known = Workload(row_bytes=row_bytes(seen.schema), columns=len(seen.schema))
    sample = seen.sample
    if sample is None or not seen.keyed:
        orphans = _share(seen.rows_unmatched, seen.rows_matched)
        return replace(known, orphans=orphans, rows=seen.rows_in)
    now, last = sample.current, sample.last
    if now.rows < FEW_ROWS <= last.rows:
        now, last = last, Generation.none()
    if sample.sized:
        known = replace(known, row_bytes=-(-sample.bytes // sample.sized))
    since = last if last.rows else now
    matched = seen.rows_matched - since.begun[0]
    orphans = _share(seen.rows_unmatched - since.begun[1], matched)
    strangers = orphans - (1 - sample.keyed / max(1, sample.rows))  # orphans with a key
    known = _with_skew(known, _evidence(now, strangers), seen.keys)
    before, after = (last.sample, now.sample) if last.rows >= FEW_ROWS else _halves(now.sample)
    return replace(
        known,
        orphans=orphans,
        rows=now.rows,
        distinct=round(len(now.times) / now.share),
        popularity=popularity(before, after, 1.0),
    )


def _evidence(generation: Generation, strangers: float) -> list[Counts]:
    """Both samples, or one of them where it is the whole stream and the other a part of it. Where
    the master lacks many keys, most of these are keys that a small sample sees once: such keys
    tell nothing then."""
    sample = generation.sample
    of_rows = counts_of(np.unique(sample, return_counts=True)[1], len(sample))
    if strangers > STRANGERS:
        return [replace(of_rows, rows=of_rows.rows * (1 - strangers), least=2)]
    of_keys = counts_of(generation.times, generation.rows, generation.share)
    if len(sample) == generation.rows:
        return [of_rows]
    return [of_keys] if generation.share == 1 else [of_rows, of_keys]


def _with_skew(
    known: Workload, evidence: list[Counts], keys: float | None, unsure: Counts | None = None
) -> Workload:
    """With the skew, its error being larger where the evidence itself may as well be `unsure`."""
    fit = fit_skew(evidence, keys)
    other = None if unsure is None else fit_skew([unsure], keys)
    if fit is None:
        return known
    error = fit.error if other is None else float(np.hypot(fit.error, other.skew - fit.skew))
    return replace(known, skew=fit.skew, skew_error=error)


def _share(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest > 0 else 0.0


def _halves(codes: I64) -> tuple[I64, I64]:
    """Two halves of some rows, at random: rows may come in an order."""
    first = np.random.default_rng(0).permutation(len(codes)) % 2 == 0
    return codes[first], codes[~first]


# --- a sample ----------------------------------------------------------------------------------


@dataclass
class _Sample:
    """What was read of the sample."""

    codes: I64
    arrays: list[pa.Array]  # their key columns, in the master's types
    rows: int  # those without a usable key included
    bytes: int
    columns: int
    sizes: list[int]  # rows of each batch
    times: I64


def _sketch(
    stream: Stream, on: On, master: Master | None, time: str | None, keys: int | None
) -> Workload:
    arrived = not isinstance(stream, pa.Table | pa.RecordBatch)
    sample = _read(stream, on, master, time)
    if sample is None:
        return Workload(rows=0, distinct=0)
    distinct, first, times = np.unique(sample.codes, return_index=True, return_counts=True)
    counts = counts_of(times, len(sample.codes))
    unsure: Counts | None = None
    missing = np.zeros(0, np.int64)
    if master is not None:
        info = master.describe()
        keys = info.rows if keys is None else keys
        if len(distinct) and (info.indexed or master.by_key):
            asked = _choose(times)
            found, pairs = _ask(master, sample, distinct[asked], first[asked])
            missing = distinct[asked[~found]]
            counts, unsure = without_orphans(counts, times[asked], found)
            keys = round(keys / max(1.0, pairs)) if not info.unique else keys
    halves = _halves(sample.codes[~np.isin(sample.codes, missing)])
    scale = sum(map(len, halves)) / max(1, sample.rows)
    known = Workload(
        row_bytes=max(1, -(-sample.bytes // max(1, sample.rows))),
        columns=sample.columns,
        orphans=1 - counts.rows / sample.rows if sample.rows else 0.0,
        rows=sample.rows,
        distinct=len(distinct),
        burstiness=_burstiness(sample, time is not None, arrived),
        popularity=popularity(*halves, scale),
    )
    return _with_skew(known, [counts], keys, unsure)


def _read(stream: Stream, on: On, master: Master | None, time: str | None) -> _Sample | None:
    if isinstance(stream, pa.Table):
        stream = stream.to_batches() or [pa.RecordBatch.from_pylist([], schema=stream.schema)]
    elif isinstance(stream, pa.RecordBatch):
        stream = [stream]
    coder: KeyCoder | None = None
    sample = _Sample(np.zeros(0, np.int64), [], 0, 0, 0, [], np.zeros(0, np.int64))
    codes, arrays, times = [], [], []
    for batch in stream:
        if not isinstance(batch, pa.RecordBatch):
            kind = type(batch).__name__
            raise SpecError(f"a stream is a pyarrow Table or RecordBatches, not {kind}")
        coder = coder or _coder(on, batch.schema, master)
        encoded = coder.encode(batch)
        usable = slice(None) if encoded.usable is None else encoded.usable
        codes.append(encoded.codes[usable])
        if master is not None and master.by_key:
            kept = encoded.arrays
            if encoded.usable is not None:
                kept = [a.filter(pa.array(encoded.usable)) for a in kept]
            arrays.append(kept)
        if time is not None:
            times.append(_times(batch, time))
        sample.rows += len(batch)
        sample.bytes += batch.nbytes
        sample.columns = batch.num_columns
        sample.sizes.append(len(batch))
    if coder is None:
        return None
    sample.codes = np.concatenate(codes)
    sample.arrays = [pa.concat_arrays(column) for column in zip(*arrays, strict=True)]
    sample.times = np.concatenate([sample.times, *times])
    return sample


def _coder(on: On, stream: pa.Schema, master: Master | None) -> KeyCoder:
    """Keys in the order of the master's; without one, in the types that the stream has."""
    pairs = pair_names(on)
    if master is None:
        return key_coder([s for s, _ in pairs], stream, stream)
    info: MasterInfo = master.describe()
    if sorted(m for _, m in pairs) != sorted(info.key):
        raise SpecError(
            f"on={on!r} names the master's columns {[m for _, m in pairs]}, but the key of "
            f"{info.name} is {list(info.key)}; name all of its key columns and no other"
        )
    pairs.sort(key=lambda pair: info.key.index(pair[1]))
    return key_coder(dict(pairs), stream, info.schema)


def _times(batch: pa.RecordBatch, name: str) -> I64:
    if name not in batch.schema.names:
        raise SpecError(f"time={name!r} is not a column of the stream; it has {batch.schema.names}")
    column = plain(batch.column(name))
    if not is_natural([column.type]):
        raise SpecError(f"time={name!r} is {column.type}; give a timestamp, date or integer column")
    return codes_of([column.drop_null()])


def _burstiness(sample: _Sample, timed: bool, arrived: bool) -> float | None:
    """Variance over mean of the rows that came in equal intervals of time, or at each arrival."""
    rows: I64 | None = None
    if timed:
        intervals = min(len(sample.times) // PER_INTERVAL, MOST_INTERVALS)
        if intervals >= FEW_ARRIVALS and sample.times.min() < sample.times.max():
            rows = np.histogram(sample.times.astype(np.float64), intervals)[0]
    elif arrived and len(sample.sizes) >= FEW_ARRIVALS and sample.rows:
        rows = np.array(sample.sizes, np.int64)
    return None if rows is None else float(rows.var(ddof=1) / rows.mean())


# --- orphans -----------------------------------------------------------------------------------


def _choose(times: I64) -> I64:
    """Which keys to ask for: the most frequent, since most rows are theirs, and some others."""
    random = np.random.default_rng(0)
    order = random.permutation(len(times))  # keys seen equally often: in no order
    order = order[np.argsort(-times[order], kind="stable")]
    heavy, others = order[: ASKED // 2], order[ASKED // 2 :]
    some = random.permutation(others)[: ASKED - ASKED // 2]
    return np.sort(np.concatenate([heavy, some]))


def _ask(master: Master, sample: _Sample, codes: I64, first: I64) -> tuple[Mask, float]:
    """Which of some sorted codes the master has, and how many rows each of those on average."""
    names = list(master.describe().key)
    if master.by_key:
        taken = [a.take(pa.array(first)) for a in sample.arrays]
        batch = pa.RecordBatch.from_arrays(taken, names=names)
        rows = master.table(master.fetch(batch, names))
        owners = codes_of([plain(rows.column(name)) for name in names])
    else:
        owners, _ = find_rows(master, codes, names)
    found = np.isin(codes, owners)
    return found, len(owners) / max(1, int(found.sum()))
