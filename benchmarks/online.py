"""A join that adapts against one that does not: rows per second over the rows of a stream whose
popular keys change in the middle.

    python -m benchmarks.online                    on a modelled disk, then on this machine's own
    python -m benchmarks.online --devices hdd-7200 --algorithms sweepjoin

Three joins get the same rows: a bad division of memory that stays, the same one with adapt=True,
and the best of some fixed divisions, which is found first. On a modelled device time is the
device's alone (no CPU), and the numbers are the same everywhere; on the real one (`real`, a store
that is read and not mapped) it is what the join took. Writes a table and a chart to bench-out/.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

import semistream as ss
from experiments.lib.modelled import ModelledMaster
from experiments.lib.paper_cpu import Cpu
from semistream.join.adapt.climb import Pace
from semistream.master import Master
from semistream.planning.device import DEVICES
from semistream.planning.machine import Machine
from semistream.testing import ManualClock

OUT = Path("bench-out")
NO_CPU = Cpu(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7)
READS = {"cmeshjoin": (1, 4, 16), "chybridjoin": (4, 16, 32)}  # pages


@dataclass(frozen=True)
class Setup:
    keys: int = 20_000
    rows: int = 600_000
    memory: int = 600_000
    skew: float = 1.0
    bad_share: float = 0.9
    page_bytes: int = 8_192
    batch: int = 5_000
    seed: int = 1

    def ids(self) -> np.ndarray:
        """Zipf ranks sent through a permutation, and from the middle on through another."""
        rng = np.random.default_rng(self.seed)
        weight = 1 / np.arange(1, self.keys + 1) ** self.skew
        ranks = np.searchsorted(np.cumsum(weight) / weight.sum(), rng.random(self.rows))
        ranks = np.minimum(ranks, self.keys - 1)
        half = self.rows // 2
        first, second = rng.permutation(self.keys), rng.permutation(self.keys)
        return np.concatenate([first[ranks[:half]], second[ranks[half:]]])

    def create(self, path: Path) -> None:
        ids = np.arange(self.keys, dtype=np.int64)
        table = pa.table({"id": ids, "text": pa.array([f"{i:096d}" for i in ids])})
        ss.Store.create(path, table, "id", page_bytes=self.page_bytes).close()


@dataclass(frozen=True)
class Course:
    """A run: rate[i] is that of the rows up to rows[i]."""

    name: str
    rows: list[int]
    rate: list[float]
    moves: int

    def mean(self, begin: float, end: float) -> float:
        """Rows per second between two parts of the run."""
        last = self.rows[-1]
        some = [1 / r for n, r in zip(self.rows, self.rate, strict=True)
                if begin * last < n <= end * last]  # fmt: skip
        return len(some) / sum(some)


@contextmanager
def opened(path: Path, device: str) -> Iterator[tuple[Master, Callable[[], float]]]:
    store = ss.Store.open(path, io="pread")
    try:
        if device == "real":
            yield store, perf_counter
        else:
            clock = ManualClock()
            yield ModelledMaster(store, DEVICES[device], clock), clock
    finally:
        store.close()


def run(
    setup: Setup, path: Path, device: str, algorithm: str, name: str, params: ss.Params,
    rows: int | None = None, pace: Pace | None = None,
) -> Course:  # fmt: skip
    """The stream, or its first rows, through one join."""
    with opened(path, device) as (master, clock):
        join = ss.SemiStreamJoin(
            master, "id", algorithm=algorithm, memory=setup.memory, params=params, clock=clock,
            adapt=pace or False,
        )  # fmt: skip
        ids, at, rate = setup.ids()[:rows], [], []
        last, spent = 0, 0.0
        for begin in range(0, len(ids), setup.batch):
            some = ids[begin : begin + setup.batch]
            for _ in join.push(pa.record_batch({"id": some, "n": some})):
                pass
            stats = join.stats
            if stats.rows_matched - last >= len(ids) // 40 and stats.seconds > spent:
                at.append(stats.rows_matched)
                rate.append((stats.rows_matched - last) / (stats.seconds - spent))
                last, spent = stats.rows_matched, stats.seconds
        assert join.stats.peak_bytes <= setup.memory
        course = Course(name, at, rate, join.stats.moves)
        join.close()
    return course


def best_params(setup: Setup, path: Path, device: str, algorithm: str) -> ss.Params:
    """Of a grid of fixed divisions, on the first rows of the stream."""
    rows = setup.rows // 6
    reads = [n * setup.page_bytes for n in READS.get(algorithm, ())] or [None]
    every = [ss.Params(front_share=share, read_bytes=read) for share in SHARES for read in reads]

    def rate(params: ss.Params) -> float:
        return run(setup, path, device, algorithm, "", params, rows).mean(0.5, 1.0)

    return max(every, key=rate)


def compare(setup: Setup, path: Path, device: str, algorithm: str) -> list[Course]:
    bad, best = ss.Params(front_share=setup.bad_share), best_params(setup, path, device, algorithm)
    machine = None if device == "real" else Machine(device=DEVICES[device], cpu=NO_CPU)
    pace = Pace(rows=1_000, machine=machine)
    where = (setup, path, device, algorithm)
    read = "" if best.read_bytes is None else f", reads of {best.read_bytes} B"
    return [
        run(*where, f"bad, fixed (front {bad.front_share:g})", bad),
        run(*where, "bad at first, adapting", bad, pace=pace),
        run(*where, f"best fixed (front {best.front_share:g}{read})", best),
    ]


def table(device: str, algorithm: str, courses: list[Course]) -> list[dict[str, object]]:
    """Means of the first eighth, of the end of both halves, and of all rows."""
    parts = {"begin": (0, 0.125), "before": (0.375, 0.5), "after": (0.875, 1), "all": (0, 1)}
    rows: list[dict[str, object]] = []
    for course in courses:
        row: dict[str, object] = {"device": device, "algorithm": algorithm, "join": course.name}
        row |= {name: round(course.mean(*part)) for name, part in parts.items()}
        rows.append({**row, "moves": course.moves})
    return rows


def draw(found: dict[tuple[str, str], list[Course]], rows: int, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        len(found), 1, figsize=(8, 2.8 * len(found)), squeeze=False, sharex=True
    )
    for panel, ((device, algorithm), courses) in zip(panels[:, 0], found.items(), strict=True):
        for course, colour in zip(courses, ("#999999", "#0072B2", "#E69F00"), strict=True):
            thousands = [n / 1e3 for n in course.rows]
            panel.plot(thousands, course.rate, color=colour, label=course.name)
        panel.axvline(rows / 2e3, color="black", linewidth=0.5, linestyle=":")
        panel.set_ylim(bottom=0)
        panel.set_ylabel("rows per second")
        panel.set_title(f"{algorithm}, {device}", fontsize=10)
        panel.legend(fontsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1, 0].set_xlabel("thousand rows; other keys are popular from the dotted line on")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.online", description=__doc__)
    parser.add_argument("--devices", nargs="+", default=["hdd-7200", "ssd", "real"])
    parser.add_argument("--algorithms", nargs="+", default=["sweepjoin", *READS])
    parser.add_argument("--rows", type=int, default=Setup.rows, help="of the stream")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    setup = Setup(rows=args.rows)
    args.out.mkdir(exist_ok=True)
    found, lines = {}, []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        setup.create(path)
        for device in args.devices:
            for algorithm in args.algorithms:
                courses = compare(setup, path, device, algorithm)
                found[device, algorithm] = courses
                rows = table(device, algorithm, courses)
                lines += rows
                for row in rows:
                    print("  ".join(f"{value:<12}" for value in map(str, row.values())), flush=True)
    with (args.out / "online.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    draw(found, setup.rows, args.out / "online.png")


if __name__ == "__main__":
    main()
