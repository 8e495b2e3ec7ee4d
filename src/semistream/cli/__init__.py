"""The command line: `semistream COMMAND`.

Here: demo, enrich, receive, package; the others are in `store` and `plan`.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from .. import ALGORITHMS, SemiStreamError, __version__
from . import commands
from .parser import Parser, command, local
from .plan import add_plans
from .store import add_build, add_changes, add_looks

_ABOUT = """\
Join a stream of rows with a master table that is larger than memory.

Build a store from the master table once, then enrich any number of rows with it in as little
memory as you say. The same store serves semistream.spark.enrich on a Spark cluster."""

_EXAMPLES = """\
examples:
  semistream demo
  semistream build products.parquet products --key product_id
  semistream enrich sales.parquet enriched.parquet --master products --on product_id
  semistream plan products --on product_id --memory 64MB

`semistream COMMAND --help` explains a command and its options."""

_DEMO = """\
See it work: makes a table of products and a stream of sales, builds a store, and joins the stream
with Spark Structured Streaming on this machine, with a live view. Then gives the same stream to
Spark's own join and compares time and results. Takes one to two minutes and needs Java."""

_ENRICH = """\
Join every row of IN with the master table and write the result to OUT. IN is read a batch at a
time and the join holds at most --memory, so both may be larger than memory. (Reading and writing
take some tens of megabytes more.) OUT appears whole when all is done, or not at all.
Rows come out in another order than they went in."""

_RECEIVE = """\
Keep rows that joins on other machines shed (ss.Shedding(target="tcp://HOST:PORT", token=...)), as
files in a directory, until they ask for them back. Runs until it is interrupted, and may be started
again on the same directory. Joins on other machines must have the same token, which is read from
--token-file or from the environment variable SEMISTREAM_SHED_TOKEN; without one only this machine
is listened to. Nothing is encrypted."""


_PACKAGE = """\
Write semistream itself to a zip file, which Spark can ship to executors that do not have it:
spark-submit --py-files semistream.zip, or spark.sparkContext.addPyFile("semistream.zip"). What it
needs (pyarrow, numpy, numba, google-crc32c) must be installed there."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed with a message, 2 not understood, 130 interrupted."""
    try:
        args = _parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed what there is to say
        return int(end.code or 0)
    try:
        result = args.run(args)
        print(json.dumps(result.data) if args.json else result.text, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (SemiStreamError, OSError, pa.ArrowException) as error:
        return _fail(str(error), args.json)
    except KeyboardInterrupt:
        print("\nsemistream: interrupted", file=sys.stderr)
        return 130
    if result.failed:
        return _fail("the results differ; this is a bug, please report it", False)
    return 0


def _fail(message: str, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": message}), flush=True)
    else:
        print(f"semistream: error: {message}", file=sys.stderr)
    return 1


# --- how they are called -------------------------------------------------------------------------


def _parser() -> ArgumentParser:
    parser = Parser(
        prog="semistream",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"semistream {__version__}")
    found = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_demo(found)
    add_build(found)
    _add_enrich(found)
    add_changes(found)
    add_looks(found)
    add_plans(found)
    _add_receive(found)
    _add_package(found)
    return parser


def _add_demo(found: Any) -> None:
    examples = (
        "  semistream demo\n"
        "  semistream demo --products 5M --memory 12MB\n"
        "  semistream demo --products 50k --batches 5 --batch-rows 10k --skew 0 --json"
    )
    parser = command(found, "demo", _DEMO, commands.demo, "see it work on Spark", examples)
    add = parser.add_argument
    add("--products", type=_count, default=1_000_000, metavar="N", help="in the table [1M]")
    add("--batches", type=_count, default=10, metavar="N", help="micro-batches [10]")
    add("--batch-rows", type=_count, default=100_000, metavar="N", help="sales in each [100k]")
    add(
        "--memory",
        default="10%",
        metavar="SIZE",
        help="per task: 64MB, or a share of the table [10%%]",
    )
    add(
        "--skew",
        type=float,
        default=1.0,
        metavar="X",
        help="Zipf exponent of popularity, 0: none [1]",
    )
    add(
        "--out",
        type=local,
        default=Path("demo-out"),
        metavar="PATH",
        help="folder to write to [demo-out]",
    )
    add("--keep", action="store_true", help="also keep Spark's results, checkpoints and counters")


def _add_enrich(found: Any) -> None:
    examples = (
        "  semistream enrich sales.parquet enriched.parquet --master products --on product_id\n"
        "  semistream enrich sales.parquet named.arrow --master products --on product_id \\\n"
        "      --how left --columns name,price --memory 20MB"
    )
    parser = command(
        found, "enrich", _ENRICH, commands.enrich, "join a file with a master table", examples
    )
    add = parser.add_argument
    add("input", type=local, metavar="IN", help="Parquet file or folder, Arrow or CSV file")
    add("output", type=local, metavar="OUT", help="file to write: .parquet, .arrow or .feather")
    add(
        "--master",
        type=commands.place,
        required=True,
        metavar="PATH",
        help="a store, a Parquet file or folder, or a database's address with ?table=",
    )
    add(
        "--on",
        action="append",
        required=True,
        metavar="KEY",
        help="column to join on; IN=MASTER if the names differ (cust=customer_id); several: a,b",
    )
    add("--how", default="inner", metavar="TYPE", help="inner, left, semi or anti [inner]")
    add("--columns", metavar="A,B", help="columns of the master to add [all]")
    add("--suffix", metavar="TEXT", help="put after master columns whose name IN has too")
    add("--validate", metavar="RULE", help="many_to_one: a key with two rows is an error")
    add(
        "--memory",
        default="64MB",
        metavar="SIZE",
        help="for the join: 64MB, or 10%% of the master [64MB]",
    )
    add(
        "--algorithm",
        default="auto",
        metavar="NAME",
        help=f"auto, {', '.join(ALGORITHMS)} [auto]",
    )
    add("--key", metavar="A,B", help="key of a Parquet master, if --on does not say it")
    add("--overwrite", action="store_true", help="replace OUT if it exists")


def _add_receive(found: Any) -> None:
    examples = (
        "  semistream receive --dir shed --port 7070\n"
        "  semistream receive --dir shed --port 7070 --host 0.0.0.0 --token-file token"
    )
    parser = command(
        found, "receive", _RECEIVE, commands.receive, "keep rows that joins shed", examples
    )
    add = parser.add_argument
    add("--dir", type=local, required=True, metavar="PATH", help="directory for the rows")
    add("--port", type=int, required=True, metavar="N", help="to listen on; 0: any free one")
    add("--host", default="127.0.0.1", metavar="NAME", help="address to listen on [127.0.0.1]")
    add("--token-file", type=Path, metavar="PATH", help="file with the token, of its owner alone")
    add("--most-bytes", default="100GB", metavar="SIZE", help="that all rows may take [100GB]")


def _add_package(found: Any) -> None:
    parser = command(
        found,
        "package",
        _PACKAGE,
        commands.package,
        "semistream as a zip, for Spark's executors",
        "  semistream package semistream.zip",
    )
    parser.add_argument("output", type=local, metavar="ZIP", help="file to write: .zip")


def _count(text: str) -> int:
    """200000, 200_000, 200k or 2M"""
    units = {"k": 1_000, "m": 1_000_000}
    unit = units.get(text[-1:].lower(), 1)
    try:
        return round(float(text[:-1] if unit > 1 else text.replace("_", "")) * unit)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is not a number; write 200000, 200k or 2M") from None
