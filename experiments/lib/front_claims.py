"""What the experiments with a front stage (P0, P3) share: sizes, curves, data sets, predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import semistream as ss
from experiments.data.products import products_for, share_of
from experiments.data.streams import Stream, ZipfStream
from experiments.lib.cell import HDD, PAPER, Cell, cell, facts_of, tuned
from experiments.lib.experiment import Row, Run
from experiments.lib.rows import span, where
from semistream.planning.laws.published import cached
from semistream.planning.work import Case
from semistream.spec import ALGORITHMS, MasterFacts, Workload

PAPER_ROWS = 100_000_000
LAPTOP_ROWS = 2_000_000  # with memory in proportion: a 50th
SWEPT_ROWS = 1_000_000  # the same where many values of a knob are tried
SHARES = (0.01, 0.03, 0.1)
SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
HERE_SECONDS = 0.4  # this machine: of the warm-up, and of what is timed
MOST_ROWS = 800_000  # of a warm-up, and of what is timed
LOOKUP_ROWS = 60_000  # the same without a cache for row after row: a third of a millisecond each
FEW_ROWS = 200_000  # are enough for the bound
STREAM_BYTES = 21  # of a row of the synthetic stream, nulls included


@dataclass(frozen=True)
class Line:
    """A curve: an algorithm on a stream, as published or in a variant (`cmeshjoin: ...`)."""

    name: str
    skew: float = 1.0
    release: str = "cycle"
    cache: float | None = None  # share of the memory; None: tuned
    pool: float = 0.0  # inlj's share of the memory for pages; 0: tuned

    @property
    def algorithm(self) -> str:
        return self.name.partition(": ")[0]

    @property
    def params(self) -> ss.Params:
        return ss.Params(
            sketch=False, release=self.release, front_share=self.cache, page_pool=self.pool
        )


NO_POOL = Line("inlj: no pool", pool=1e-9)  # as in P3, where memory does not matter to INLJ


def rows_of(run: Run) -> int:
    return run.pick(20_000, LAPTOP_ROWS, PAPER_ROWS)


def swept_rows(run: Run) -> int:
    return run.pick(20_000, SWEPT_ROWS, PAPER_ROWS)


def shares_of(run: Run) -> tuple[float, ...]:
    return run.pick((0.06, 0.1), SHARES, SHARES)


def sizes_of(run: Run) -> tuple[int, ...]:
    """A fifth, three fifths and all of the master, as 20 to 100 million rows."""
    return tuple(rows_of(run) * part // 5 for part in run.pick((1, 5), (1, 3, 5), (1, 3, 5)))


def memory_of(run: Run, rows: int, share: float) -> int:
    """Tiny tables need more, or every join would refuse."""
    return share_of(rows, share) * run.pick(5, 1, 1)


def devices(run: Run, part: str = "memory") -> tuple[Any, ...]:
    """Both; this machine by size of the master at paper scale only, at smoke scale only once."""
    once = part in run.pick(("rows", "data"), ("rows",), ())
    return (HDD,) if once else (HDD, None)


# --- cells ---------------------------------------------------------------------------------------


def on_device(run: Run, line: Line, store: Path, stream: Stream, memory: int, device: Any) -> Cell:
    more: dict[str, Any] = {}
    if run.scale != "smoke":
        fewer = {"memory": FEW_ROWS, "inlj": LOOKUP_ROWS}
        more["most_rows"] = fewer.get(line.algorithm, MOST_ROWS)
        more["seconds"] = HERE_SECONDS
    elif ALGORITHMS[line.algorithm].disk == "lookup":
        more = {"warm_rows": 100, "timed_rows": 200, "batch_rows": 100}
    return cell(run, store, stream, line.algorithm, memory, device=device, params=line.params,
                **more)  # fmt: skip


def synthetic(
    run: Run, part: str, points: Sequence[tuple[float, int, int]], lines: Sequence[Line]
) -> Iterator[tuple[Row, Cell]]:
    """Cells of each line at each point (x, rows, memory). The bound does not depend on memory: it
    is measured once for each size of the master."""
    for device in devices(run, part):
        if device is None and part == "skew" and points[0][0] not in (0, 0.5, 1):
            continue
        for line in lines:
            done: set[int] = set()
            for x, rows, memory in _ends(run, points) if device is None else points:
                if line.algorithm == "memory" and rows in done:
                    continue
                done.add(rows)
                store = products_for(line.algorithm, run.data, rows, memory)
                stream = ZipfStream(rows, line.skew)
                labels = {"part": part, "line": line.name, "x": x, "rows": rows, "skew": line.skew}
                yield labels, on_device(run, line, store, stream, memory, device)


def _ends(run: Run, points: Sequence[Any]) -> Sequence[Any]:
    """This machine is measured at the smallest and the largest x; at smoke scale at one."""
    return points[-1:] if run.scale == "smoke" or len(points) == 1 else (points[0], points[-1])


def by_memory(run: Run) -> list[tuple[float, int, int]]:
    """x is the memory in per cent of the master."""
    rows = rows_of(run)
    return [(100 * share, rows, memory_of(run, rows, share)) for share in shares_of(run)]


def by_rows(run: Run) -> list[tuple[float, int, int]]:
    """x is the number of rows; the memory is a tenth of the largest master throughout. The largest
    one is left out: it is a point by memory already, see `both_parts`."""
    memory = memory_of(run, rows_of(run), 0.1)
    return [(rows, rows, memory) for rows in sizes_of(run)[:-1]]


def both_parts(rows: Iterable[Row], lines: Sequence[Line]) -> Iterator[Row]:
    """What was measured by memory at a tenth of the master is also the last point by its size."""
    names = {line.name for line in lines}
    for row in rows:
        yield row
        last = row.get("x") == 10 or row.get("line") == "memory"
        if row.get("part") == "memory" and last and row.get("line") in names:
            yield {**row, "part": "rows", "x": row["rows"]}


# --- predictions at the papers' own sizes --------------------------------------------------------


def grown(known: MasterFacts, rows: int) -> MasterFacts:
    """The facts of a master with more rows of the same kind."""
    times = rows / known.rows
    return replace(known, rows=rows, bytes=int(known.bytes * times),
                   pages=max(1, int(known.pages * times)),
                   resident_bytes=int(known.resident_bytes * times))  # fmt: skip


def at_paper_size(run: Run, part: str, lines: Sequence[Line]) -> Iterator[Row]:
    """What the model predicts for 20 to 100 million rows on the modelled disk, knobs tuned as for
    what is measured. `part`: memory | rows."""
    for line in lines:
        if line.algorithm == "memory":
            continue
        own = rows_of(run)
        known = facts_of(products_for(line.algorithm, run.data, own, memory_of(run, own, 0.1)))
        for x, rows, memory in _paper_points(part):
            case = Case(ALGORITHMS[line.algorithm], grown(known, rows),
                        Workload(line.skew, row_bytes=STREAM_BYTES, batch_rows=2_000),
                        memory, line.params)  # fmt: skip
            yield {"part": f"{part}, model", "line": line.name, "x": x, "rows": rows,
                   "skew": line.skew, "algorithm": line.algorithm, "device": HDD.name,
                   **_predicted(case)}  # fmt: skip


def _paper_points(part: str) -> list[tuple[float, int, int]]:
    if part == "memory":
        return [(100 * s, PAPER_ROWS, share_of(PAPER_ROWS, s)) for s in SHARES]
    memory = share_of(PAPER_ROWS, 0.1)
    return [(n, n, memory) for n in range(PAPER_ROWS // 5, PAPER_ROWS + 1, PAPER_ROWS // 5)]


def _predicted(case: Case) -> Row:
    fake = Cell(Path(), ZipfStream(1, 0.0), case.algorithm.name, case.memory)
    found = tuned(case, fake)
    return {"cpu": PAPER, "memory": case.memory, "predicted": found.rate, "rate": found.rate,
            "hits": found.work.hits, "front_share": found.case.params.front_share}  # fmt: skip


def law_gain(share: float, skew: float = 1.0, rows: float = PAPER_ROWS) -> float:
    """What eq. 4 of P0 allows at best: the gain over no cache, for memory that is this share of R,
    120 bytes a row and 8 more in the cache."""
    memory, each_bytes = share * rows * 120, 128.0
    kept = cached.best_cache(memory, each_bytes, rows, skew)
    return float(cached.cache_gain(memory, kept, each_bytes, rows, skew))


# --- ratios --------------------------------------------------------------------------------------


def ratios(rows: Sequence[Row], above: str, below: str) -> list[Row]:
    """How many times as fast one line is as another, at each x where both are. The interval takes
    both intervals at their worst."""
    under = {row["x"]: row for row in where(rows, line=below) if row.get("rate")}
    found = []
    for row in where(rows, line=above):
        other = under.get(row["x"])
        if other is None or not row.get("rate"):
            continue
        line: Row = {"x": row["x"], "ratio": row["rate"] / other["rate"]}
        if (row.get("rate_low") or 0) > 0 and (other.get("rate_low") or 0) > 0:
            line["ratio_low"] = row["rate_low"] / other["rate_high"]
            line["ratio_high"] = row["rate_high"] / other["rate_low"]
        found.append(line)
    return sorted(found, key=lambda r: float(r["x"]))


def ratio_at(rows: Sequence[Row], above: str, below: str) -> dict[float, float]:
    return {row["x"]: row["ratio"] for row in ratios(rows, above, below)}


def on_data(rows: Sequence[Row], name: str, above: str, below: str) -> list[float]:
    """The ratio on a data set at each memory; empty where it was not measured."""
    some = [{**r, "x": r["percent"]} for r in of_part(rows, "data", data=name)]
    return list(ratio_at(some, above, below).values())


def times(found: Sequence[float]) -> str:
    """A ratio, or several, in words."""
    return f"{span(found)} x" if found else "not measured"


def of_part(rows: Sequence[Row], part: str, **labels: Any) -> list[Row]:
    """Rows of one part, on the modelled disk with the papers' processor unless told otherwise."""
    return where(rows, part=part, **{"device": HDD.name, "cpu": PAPER, **labels})


def within(value: float, published: float, tolerance: float = 0.3) -> bool:
    return abs(value / published - 1) <= tolerance


def by_skew(run: Run, lines: Sequence[Line]) -> Iterator[tuple[Row, Cell]]:
    """All lines at memory of a tenth of the master, from a uniform stream to Zipf 1."""
    rows = swept_rows(run)
    for skew in run.pick((0.0, 1.0), SKEWS, SKEWS):
        some = [replace(line, skew=skew) for line in lines]
        if run.scale == "smoke" and skew < 1:
            some = [line for line in some if line.algorithm != "memory"]
        if run.scale == "laptop" and skew in SKEWS[1::2]:  # look-ups take long
            some = [line for line in some if ALGORITHMS[line.algorithm].disk != "lookup"]
        yield from synthetic(run, "skew", [(skew, rows, memory_of(run, rows, 0.1))], some)
