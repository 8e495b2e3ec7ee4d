"""What each command does. Each returns its result as plain data and as lines for people."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..budget import show_bytes
from ..errors import InstallError, SpecError
from ..join import SemiStreamJoin, Stats
from ..join.shed import ShedReceiver
from ..master import Master, open_master
from ..master.storage import LocalPlace
from ..master.store import is_store
from .files import check_target, read_rows, write_rows
from .progress import Progress

TOKEN_VARIABLE = "SEMISTREAM_SHED_TOKEN"


@dataclass(frozen=True)
class Result:
    data: dict[str, Any]
    text: str
    failed: bool = False


def enrich(args: Namespace) -> Result:
    check_target(args.output, args.overwrite)
    began = time.monotonic()
    on = pairs(args.on)
    rows = read_rows(args.input)
    master = open_named(args.master, args.key, list(on.values()))
    join = SemiStreamJoin(
        master,
        on,
        args.how,
        None if args.columns is None else names(args.columns),
        args.algorithm,
        args.memory,
        suffix=args.suffix,
        validate=args.validate,
        stream_schema=rows.schema,
    )
    with (
        join,
        Progress("joined", total=rows.count, show=args.progress) as progress,
        write_rows(args.output, join.output_schema) as sink,
    ):
        for batch in rows.batches:
            for out in join.push(batch):
                sink.write(out)
            progress(_answered(join))
        for out in join.drain():
            sink.write(out)
            progress(_answered(join))
        stats = join.stats
    return _enriched(args, join, stats, time.monotonic() - began)


def _answered(join: SemiStreamJoin) -> int:
    stats = join.stats
    return stats.rows_matched + stats.rows_unmatched


def _enriched(args: Namespace, join: SemiStreamJoin, stats: Stats, seconds: float) -> Result:
    size = args.output.stat().st_size
    rate = stats.rows_in / seconds if seconds else 0.0
    # An address may have a password in it.
    asked = args.master if isinstance(args.master, Path) else join.master.describe().name
    paths = {"input": str(args.input), "output": str(args.output), "master": str(asked)}
    data = {"command": "enrich", **paths, "how": join.spec.how, **asdict(stats)}
    data |= {"output_bytes": size, "seconds": round(seconds, 3), "rows_per_second": round(rate)}
    hits = stats.front_hits / stats.rows_in if stats.rows_in else 0.0
    fate = "kept" if join.spec.how in ("left", "anti") else "left out"
    text = (
        f"Joined {stats.rows_in:,} rows of {args.input} with {asked} in {seconds:.1f} s: "
        f"{rate:,.0f} rows/s\n"
        f"  rows out  {stats.rows_out:,} ({join.spec.how} join); "
        f"{stats.rows_unmatched:,} rows had no match and were {fate}\n"
        f"  memory    {show_bytes(stats.peak_bytes)} held at most, of {show_bytes(join.budget)} "
        f"({stats.algorithm})\n"
        f"  hits      {hits:.0%} of the rows were answered from memory\n"
        f"  pages     {stats.pages_read:,} read, {show_bytes(stats.bytes_read)}\n"
        f"  written   {args.output}, {show_bytes(size)}"
    )
    return Result(data, text)


def receive(args: Namespace) -> Result:
    receiver = ShedReceiver(
        args.dir,
        args.host,
        args.port,
        token=_token(args.token_file),
        most_bytes=args.most_bytes,
    )
    address = receiver.address
    print(f"listening on {address}; Ctrl-C ends it", file=sys.stderr, flush=True)
    with suppress(KeyboardInterrupt):  # the way to end it, not a failure
        receiver.serve_forever()
    left, damaged = receiver.segments(), receiver.unreadable()
    rows = sum(segment.rows for segment in left)
    data: dict[str, Any] = {"command": "receive", "dir": str(args.dir), "address": address}
    data |= {"segments": len(left), "rows": rows, "unreadable": damaged}
    text = f"{rows:,} shed rows in {len(left):,} segments are still in {args.dir}"
    return Result(data, "\n".join([text, *damaged]))


def _token(file: Path | None) -> str | None:
    """Not a word of the command line, which every user of the machine can read."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        open_to = file.stat().st_mode & 0o077
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the token cannot be read from {file}: {error}; name a file") from error
    if open_to:
        raise SpecError(
            f"other users may open {file}, which has the token (mode {open_to:o} for them); "
            f"run chmod 600 {file}, and choose a new token if there are other users"
        )
    return text


def package(args: Namespace) -> Result:
    try:
        from ..spark import package as write_package  # late: it needs pyspark
    except ModuleNotFoundError as error:
        raise InstallError(
            f"{error.name} is not installed, and a package is for Spark; run: pip install "
            "'semistream[spark]'"
        ) from None

    path = write_package(args.output)
    size = path.stat().st_size
    return Result(
        {"path": str(path), "bytes": size},
        f"{path}: {show_bytes(size)}, for spark-submit --py-files or SparkContext.addPyFile",
    )


def demo(args: Namespace) -> Result:
    from .demo import Options, as_data, as_text, make_view, quiet_view, run

    options = Options(
        out=args.out,
        products=args.products,
        batches=args.batches,
        batch_rows=args.batch_rows,
        memory=args.memory,
        skew=args.skew,
        keep=args.keep,
    )
    show = sys.stderr.isatty() if args.progress is None else args.progress
    report = run(options, quiet_view(show) if args.json else make_view(sys.stdout))
    return Result(as_data(report), as_text(report), failed=not report.same_rows)


# --- words of the command line ------------------------------------------------------------------


def names(text: str) -> list[str]:
    """a,b -> [a, b]"""
    return [name.strip() for name in text.split(",") if name.strip()]


def pairs(given: list[str]) -> dict[str, str]:
    """["a", "cust=customer_id,b"] -> stream column: master column"""
    result: dict[str, str] = {}
    for word in (name for text in given for name in names(text)):
        stream, _, master = (part.strip() for part in word.partition("="))
        if stream in result:
            raise SpecError(f"--on names the column {stream!r} twice")
        result[stream] = master or stream
    if not result:
        raise SpecError("--on names no column")
    return result


def place(text: str) -> Path | str:
    """Where a master is: a path, or the address of an object store or a database."""
    return text if "://" in text else Path(text)


def open_named(path: Path | str, key: str | None, on: list[str]) -> Master:
    """A store knows its key; for others it is what --key says, or the columns of --on."""
    if isinstance(path, Path) and is_store(LocalPlace(path)):
        return open_master(path, names(key) if key else None)
    return open_master(path, names(key) if key else on)
