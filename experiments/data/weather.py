"""Cloud reports from all over the world: a reader of the papers' set, and a synthetic surrogate.

The papers join reports of the set NDP-026B (Hahn, Warren and London) of different months on their
longitude, LON, in hundredths of a degree, 0 to 36000. The set is no longer to be had. So there is

- `read_reports`, which reads its fixed-width lines, for whoever has them;
- a surrogate that is **synthetic** and says so in every name: rows of 32 bytes and the papers'
  many-to-many shape, on average 278 master rows per key at 10 million rows (P4) and 555 at 20
  million (P0, P3). How popular the longitudes are in the real set is not known here: the surrogate
  is uniform unless a skew is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from benchmarks.lib import workload
from experiments.data.generate import kept_rows
from experiments.data.kept_stores import PAGE_BYTES, kept_table
from experiments.data.many_to_many import BLOCK, drawn_in_blocks
from experiments.data.trace import one_batch
from semistream.kernels.arrays import I64

KEY = "lon"
LONGITUDES = 36_001
"""0 to 36000, both ends in."""

# --- the reader ---------------------------------------------------------------------------------

LAT = slice(9, 14)
LON = slice(14, 19)
"""Columns of a line, from 0. Only these two are taken apart: the join needs no other."""

REPORT_SCHEMA = pa.schema(
    [pa.field(KEY, pa.int32(), nullable=False), ("lat", pa.int32()), ("report", pa.string())]
)


def read_reports(path: Path) -> pa.Table:
    """Reports of a file, one per line: longitude and latitude in hundredths, and the line."""
    lines = csv.read_csv(
        path,
        read_options=csv.ReadOptions(column_names=["report"], encoding="latin-1"),
        # One column: a separator that no line has, and no quotes. Blank lines are faults too.
        parse_options=csv.ParseOptions(
            delimiter="\x01", quote_char=False, ignore_empty_lines=False
        ),
        convert_options=csv.ConvertOptions(column_types={"report": pa.string()}),
    ).column("report")
    _refuse(
        path, pc.less(pc.utf8_length(lines), LON.stop), f"is shorter than {LON.stop} characters"
    )
    lat = _hundredths(path, lines, LAT, "LAT", -9_000, 9_000)
    lon = _hundredths(path, lines, LON, "LON", 0, LONGITUDES - 1)
    return pa.Table.from_arrays([lon, lat, lines], schema=REPORT_SCHEMA)


def reports_master(folder: Path, reports: Path, page_bytes: int = PAGE_BYTES) -> Path:
    """The store of a file of reports, on LON; it is named after the file."""
    path = folder / f"ndp026b-{reports.name}-page{page_bytes}"
    return kept_table(path, lambda: read_reports(reports), KEY, page_bytes)


def _hundredths(
    path: Path, lines: pa.ChunkedArray, columns: slice, name: str, low: int, high: int
) -> pa.ChunkedArray:
    text = pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(lines, columns.start, columns.stop))
    where = f"{name} in columns {columns.start}-{columns.stop - 1}"
    _refuse(path, pc.invert(pc.match_substring_regex(text, r"^-?\d+$")), f"has no {where}")
    values = text.cast(pa.int32())
    outside = pc.or_(pc.less(values, low), pc.greater(values, high))
    _refuse(path, outside, f"has {where} outside {low}..{high}")
    return values


def _refuse(path: Path, faults: pa.ChunkedArray, what: str) -> None:
    first = pc.index(faults, True).as_py()
    if first >= 0:
        raise ValueError(f"{path}: line {first + 1} {what}; is this an NDP-026B file?")


# --- the surrogate ------------------------------------------------------------------------------

SURROGATE_SCHEMA = pa.schema(
    [
        pa.field(name, pa.int32(), nullable=False)
        for name in (KEY, "lat", "hour", "station", "weather", "cover", "low_cover", "base_height")
    ]
)
"""Eight numbers of four bytes: 32 bytes, as P4's rows. Those of P0 and P3 have 128."""

STREAM_SCHEMA = pa.schema(
    [f if f.name == KEY else f.with_name(f"new_{f.name}") for f in SURROGATE_SCHEMA]
)
"""The same fields; named apart, so that both can be in a joined row."""

_BELOW = (18_001, 31 * 24, 100_000, 100, 9, 9, 10)  # of the columns after the key
_MONTHS = {"master": 1, "stream": 2}  # different months of one world: they must not be equal


def synthetic_master(
    folder: Path, rows: int = 10_000_000, skew: float = 0.0, page_bytes: int = PAGE_BYTES
) -> Path:
    """The store of the surrogate: `rows` / 36,001 rows per longitude on average."""
    path = folder / f"synthetic-weather-{rows}-zipf{skew:g}-page{page_bytes}"
    return kept_rows(path, rows, partial(synthetic_rows, skew=skew), KEY, page_bytes)


@dataclass(frozen=True)
class SyntheticReports:
    """The surrogate's stream. Popular longitudes are the same as in a master with a skew."""

    skew: float = 0.0

    key = KEY
    schema = STREAM_SCHEMA

    @property
    def name(self) -> str:
        return f"synthetic weather surrogate, Zipf {self.skew:g}"

    def batches(self, seed: int, rows: int) -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng([_MONTHS["stream"], seed])
        while True:
            drawn = one_batch(_reports(_drawn(rng, rows, self.skew)))
            yield pa.RecordBatch.from_arrays(drawn.columns, schema=STREAM_SCHEMA)


def synthetic_rows(first: int, count: int, *, skew: float) -> pa.Table:
    """Rows `first` .. `first + count - 1` of the surrogate's master."""

    def block(number: int) -> I64:
        return _drawn(np.random.default_rng([_MONTHS["master"], number]), BLOCK, skew)

    empty = np.zeros((0, len(SURROGATE_SCHEMA)), dtype=np.int64)
    return _reports(drawn_in_blocks(first, count, block, empty))


def _drawn(rng: np.random.Generator, rows: int, skew: float) -> I64:
    """One line per report, one column per field."""
    ranks = workload.zipf_ranks(rng, rows, LONGITUDES, skew)
    lon = workload.rank_to_key(ranks, LONGITUDES, seed=0)
    others = [rng.integers(0, below, rows) for below in _BELOW]
    others[0] -= 9_000  # latitudes reach from pole to pole
    return np.stack([lon, *others], axis=1)


def _reports(values: I64) -> pa.Table:
    arrays = [pa.array(column.astype(np.int32)) for column in values.T]
    return pa.Table.from_arrays(arrays, schema=SURROGATE_SCHEMA)
