"""What a campaign of kills left behind, held against what it must be.

Nothing here asks Spark. The source's log in the checkpoint says which files each micro-batch took,
the sink's log which files it committed; both are read as they are.

    lost, duplicated, extra   sales that are not in the output just once, or were never made
    wrong       rows whose payload is not what their version says, or whose own columns changed
    mixed       micro-batches with rows of more than one version
    unbalanced  micro-batches whose rows are not just those of the files they took
    left        temporary files of ours that are older than two micro-batches
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.lib.campaign import Truth, differing
from semistream.kernels.arrays import I64, Mask
from semistream.spark.task.joins import SAVE
from semistream.spark.task.versions import ID, RETAINED

FAULTS = ("lost", "duplicated", "extra", "wrong", "mixed", "unbalanced", "left")
OFFSET = re.compile(r'"logOffset"\s*:\s*(\d+)')
PIN = re.compile(r"(\d+)-[0-9a-f]+\.pin")


@dataclass(frozen=True)
class Verdict:
    """Counts of what is wrong, and of what was looked at."""

    batches: int
    rows: int
    versions: int  # that were published
    used: int  # of these, by rows of the output
    expired: int
    lost: int
    duplicated: int
    extra: int
    wrong: int
    mixed: int
    unbalanced: int
    left: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not any(getattr(self, name) for name in FAULTS)

    def __str__(self) -> str:
        return (
            f"{self.batches} micro-batches, {self.rows:,} rows; {self.versions} versions "
            f"published, {self.used} used, {self.expired} expired\n"
            f"{self.lost} lost, {self.duplicated} duplicated, {self.extra} extra, "
            f"{self.wrong} wrong, {self.mixed} mixed, {self.unbalanced} unbalanced, "
            f"{len(self.left)} files left{''.join(f'{chr(10)}  {name}' for name in self.left)}"
        )


def verdict(folder: Path, seed: int) -> Verdict:
    made = pq.read_table(sorted((folder / "sales").glob("*.parquet")))
    batches = _batches(folder)
    out = pa.concat_tables(_committed(batches))
    sale, key = np.asarray(out["sale"]), np.asarray(out["id"])
    version, batch = np.asarray(out["version"]), np.asarray(out["batch"])
    truth = Truth(folder, seed)
    lost, duplicated, extra = _amiss(np.asarray(made["sale"]), sale)
    wrong = differing(out["payload"], truth.payloads(key, version)) | _changed(made, out)
    pairs = np.unique(np.stack([batch, version]), axis=1)
    return Verdict(
        batches=len(batches),
        rows=len(out),
        versions=truth.versions,
        used=len(np.unique(version)),
        expired=truth.expired,
        lost=lost,
        duplicated=duplicated,
        extra=extra,
        wrong=int(wrong.sum()),
        mixed=int((np.bincount(pairs[0]) > 1).sum()),
        unbalanced=sum(not _balanced(*files) for files in batches.values()),
        left=tuple(_leftovers(folder)),
    )


def _amiss(made: I64, found: I64) -> tuple[int, int, int]:
    known = np.isin(found, made)
    _, times = np.unique(found[known], return_counts=True)
    return len(made) - len(times), int((times - 1).sum()), int((~known).sum())


def _changed(made: pa.Table, out: pa.Table) -> Mask:
    """Where a stream row came out with other values than it went in."""
    sale = np.asarray(out["sale"])
    at = np.clip(sale, 0, len(made) - 1)  # sales are numbered in the order of their files
    changed = np.zeros(len(sale), bool)
    for name in ("sale", "file", "id"):
        changed |= np.asarray(made[name])[at] != np.asarray(out[name])
    return changed & (at == sale)  # the others are extra


# --- micro-batch by micro-batch -------------------------------------------------------------------


def _batches(folder: Path) -> dict[int, tuple[list[Path], list[Path]]]:
    """Of every micro-batch: the source's files it took, the sink's files it committed."""
    checkpoint = folder / "checkpoint"
    taken = _logged(checkpoint / "sources" / "0", folder / "sales")
    committed = _logged(folder / "out" / "_spark_metadata", folder / "out")
    found, before = {}, -1
    for number in sorted(_names(checkpoint / "offsets")):
        text = (checkpoint / "offsets" / str(number)).read_text()
        (offset,) = map(int, OFFSET.findall(text))
        files = [path for n in range(before + 1, offset + 1) for path in taken.pop(n, [])]
        found[number], before = (files, committed.pop(number, [])), offset
    for number, paths in committed.items():  # of micro-batches that never began: all extra
        found[number] = ([], paths)
    return found


def _names(log: Path) -> dict[int, Path]:
    return {int(p.name.partition(".")[0]): p for p in log.glob("[0-9]*") if p.suffix != ".crc"}


def _logged(log: Path, folder: Path) -> dict[int, list[Path]]:
    """The files in `folder` that each number of a log of Spark's adds. Compact files repeat all
    that came before."""
    found: dict[int, list[Path]] = {}
    seen: set[Path] = set()
    for number, file in sorted(_names(log).items()):
        lines = file.read_text().splitlines()[1:]
        paths = [folder / Path(unquote(json.loads(line)["path"])).name for line in lines]
        new = [path for path in paths if path not in seen] if file.suffix == ".compact" else paths
        found[number] = new
        seen.update(new)
    return found


def _committed(batches: dict[int, tuple[list[Path], list[Path]]]) -> Iterator[pa.Table]:
    """The rows of every file in the sink, with their micro-batch."""
    for number, (_, files) in batches.items():
        for file in files:
            rows = pq.ParquetFile(file).read()
            yield rows.append_column("batch", pa.array(np.full(len(rows), number)))


def _balanced(taken: list[Path], committed: list[Path]) -> bool:
    """Whether the rows out are just the rows in. The join is a left one, with unique keys."""
    return np.array_equal(_sales(taken), _sales(committed))


def _sales(files: list[Path]) -> I64:
    found = [np.asarray(pq.ParquetFile(file).read(["sale"])["sale"]) for file in files]
    return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)


# --- what lies around -----------------------------------------------------------------------------


def _leftovers(folder: Path) -> Iterator[str]:
    """Files of ours that should have gone. What kills cut short may stay for two micro-batches, or
    until a worker saves again what it has learnt."""
    commits = sorted(_names(folder / "checkpoint" / "commits").items())
    last = commits[-1][0]
    old = commits[-3][1].stat().st_mtime if len(commits) > 2 else 0.0
    kept = set((folder / "pins").rglob("*.pin"))
    for path in sorted(kept):
        match = PIN.fullmatch(path.name)
        if match is None or not last - RETAINED - 1 <= int(match[1]) <= last:
            yield str(path)
    scratch = [*(folder / "pins").rglob("*"), *(folder / "store").rglob(".*")]
    for path in sorted({p for p in scratch if p.is_file()} - kept - {folder / "pins" / ID}):
        if path.stat().st_mtime < old:
            yield str(path)
    for path in sorted((folder / "tmp").glob("semistream*/**/*.tmp")):
        if path.stat().st_mtime < min(old, commits[-1][1].stat().st_mtime - 2 * SAVE):
            yield str(path)
