"""Rows served at twice the capacity, by which rows are shed. Counted, not timed: the same numbers
on every machine.

    python -m benchmarks.shedding

An iteration is one push: the front stage, then one step of the disk phase (chybridjoin on a store
that is read, not mapped: one lookup and one block of pages). Capacity is measured with victims
upfront on a saturated join; then every policy gets the same rows, twice as many per iteration.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import semistream as ss
from semistream.join.shed.policy import VICTIMS

PLACES = ("in order", "at random")


@dataclass(frozen=True)
class Cell:
    """One measurement: rows answered during the overload, pages read for them, rows shed."""

    served: int
    pages: int
    shed: int
    per_iteration: int  # rows that arrived


@dataclass(frozen=True)
class Setup:
    rows: int = 20_000
    iterations: int = 300
    memory: int = 600_000
    skew: float = 1.0
    seed: int = 1

    def store(self, path: Path) -> ss.Store:
        ids = np.arange(self.rows, dtype=np.int64)
        text = pa.array([f"product number {i:08d}" for i in ids])
        table = pa.table({"id": ids, "name": text, "price": ids * 0.25})
        ss.Store.create(path, table, "id", page_bytes=4096).close()
        return ss.Store.open(path, io="pread")

    def keys(self, place: str, count: int) -> np.ndarray:
        """Zipf ranks; in order: rank r is key r, at random: somewhere."""
        rng = np.random.default_rng(self.seed)
        weight = 1.0 / np.arange(1, self.rows + 1) ** self.skew
        ranks = np.searchsorted(np.cumsum(weight) / weight.sum(), rng.random(count))
        ranks = np.minimum(ranks, self.rows - 1)
        return ranks if place == "in order" else rng.permutation(self.rows)[ranks]


def stream(keys: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch({"id": keys.astype(np.int64), "n": np.arange(len(keys))})


def answered(join: ss.SemiStreamJoin) -> int:
    return join.stats.rows_matched + join.stats.rows_unmatched


def capacity(setup: Setup, store: ss.Store, algorithm: str, place: str) -> int:
    """Rows per iteration of a join that always has enough of them, cache warm."""
    keys = setup.keys(place, 2_000_000)
    with tempfile.TemporaryDirectory() as folder:
        join = ss.SemiStreamJoin(
            store, "id", algorithm=algorithm, memory=setup.memory,
            shed=ss.Shedding(folder, "upfront"),
        )  # fmt: skip
        at, done = 0, []
        for _ in range(setup.iterations):
            want = max(0, 2 * (done[-1] if done else 500) + 50 - join.stats.buffered)
            before = answered(join)
            list(join.push(stream(keys[at : at + want])))
            at += want
            done.append(answered(join) - before)
        join.close()
    return max(1, int(np.mean(done[len(done) // 2 :])))


def overload(
    setup: Setup, store: ss.Store, algorithm: str, place: str, victims: str, each: int
) -> Cell:
    """`iterations` pushes of `each` rows, then a drain: every row is answered in the end."""
    keys = setup.keys(place, each * setup.iterations)
    with tempfile.TemporaryDirectory() as folder:
        join = ss.SemiStreamJoin(
            store, "id", algorithm=algorithm, memory=setup.memory,
            shed=ss.Shedding(folder, victims, seed=setup.seed),
        )  # fmt: skip
        for i in range(setup.iterations):
            list(join.push(stream(keys[i * each : (i + 1) * each])))
        s = join.stats
        list(join.drain())
        assert answered(join) == len(keys), "every row is answered in the end"
        assert join.stats.peak_bytes <= setup.memory
        join.close()
    return Cell(s.rows_matched + s.rows_unmatched, s.pages_read, s.shed, each)


def measure(setup: Setup, algorithm: str) -> dict[tuple[str, str], Cell]:
    """(where popular keys lie, victims) -> what came of it."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        store = setup.store(Path(folder) / "store")
        for place in PLACES:
            each = 2 * capacity(setup, store, algorithm, place)
            for victims in VICTIMS:
                found[place, victims] = overload(setup, store, algorithm, place, victims, each)
        store.close()
    return found


def show(algorithm: str, found: dict[tuple[str, str], Cell]) -> str:
    lines = [f"{algorithm:<13}{'popular keys':<14}{'victims':<13}{'arrived':>9}{'served':>9}"
             f"{'x upfront':>11}{'shed':>9}{'pages':>8}{'rows/page':>11}"]  # fmt: skip
    for (place, victims), cell in found.items():
        ratio = cell.served / found[place, "upfront"].served
        lines.append(
            f"{'':<13}{place:<14}{victims:<13}{cell.per_iteration:>9}{cell.served:>9}"
            f"{ratio:>11.2f}{cell.shed:>9}{cell.pages:>8}{cell.served / max(1, cell.pages):>11.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shedding", description=__doc__)
    parser.add_argument("--iterations", type=int, default=Setup.iterations)
    parser.add_argument("--rows", type=int, default=Setup.rows, help="of the master")
    parser.add_argument("--memory", type=int, default=Setup.memory)
    args = parser.parse_args()
    setup = Setup(args.rows, args.iterations, args.memory)
    for algorithm in ("chybridjoin", "sweepjoin"):
        print(show(algorithm, measure(setup, algorithm)), flush=True)


if __name__ == "__main__":
    main()
