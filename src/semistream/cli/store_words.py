"""The words of the commands that make and change stores: build, append, upsert, delete, compact,
restore, expire, retain, verify, inspect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import store_commands as run
from .words import command, local

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

_INPUT = "Parquet file or folder, Arrow or CSV file"
_STORE = "folder of the store, or s3://bucket/prefix"


def add_build(found: Any) -> None:
    examples = (
        "  semistream build products.parquet products --key product_id\n"
        "  semistream build prices.csv prices --key country,product_id --memory 200MB"
    )
    parser = command(found, "build", _BUILD, run.build, "make a store of a table", examples)
    add = parser.add_argument
    add("input", type=local, metavar="INPUT", help=_INPUT)
    add("store", metavar="STORE", help="folder to make, or s3://bucket/prefix")
    add("--key", required=True, metavar="A,B", help="column to join on, or several")
    add("--unique", action="store_true", help="refuse keys with two rows, now and in every change")
    add("--keep", type=int, metavar="N", help="of the last versions; every change drops others")
    add("--memory", default="1GB", metavar="SIZE", help="rows beyond this are sorted on disk [1GB]")
    add("--page-bytes", default="64KiB", metavar="SIZE", help="size of a page [64KiB]")


def add_changes(found: Any) -> None:
    _change(found, "upsert", _UPSERT, run.upsert, "replace and add rows by key", "changes.parquet")
    _change(found, "append", _APPEND, run.append, "add rows", "new.parquet")
    _change(found, "delete", _DELETE, run.delete, "remove rows by key", "gone.csv")
    parser = _on_store(found, "compact", _COMPACT, run.compact, "bring changes and table together")
    parser = _on_store(
        found, "expire", _EXPIRE, run.expire, "delete old versions", "--older-than 1d --keep 3"
    )
    add = parser.add_argument
    add("--older-than", default="7d", metavar="AGE", help="as 90s, 30m, 12h, 7d, 2w [7d]")
    add("--keep", type=int, default=1, metavar="N", help="of the last versions [1]")
    add("--pins", action="append", metavar="DIR", help="pins of Spark queries; may be repeated")
    parser = _on_store(
        found, "retain", _RETAIN, run.retain, "delete old versions with every change", "--keep 20"
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--keep", type=int, metavar="N", help="of the last versions")
    which.add_argument("--all", action="store_true", help="versions stay until `expire`, as before")
    add = parser.add_argument
    add("--older-than", default="0s", metavar="AGE", help="and replaced longer ago: 30m, 12h [0s]")
    add("--pins", action="append", metavar="DIR", help="pins of Spark queries; may be repeated")
    parser = _on_store(
        found, "restore", _RESTORE, run.restore, "publish an older version anew", "--version 1"
    )
    parser.add_argument("--version", type=int, required=True, metavar="N", help="whose rows")


def _change(
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
        ("verify", _VERIFY, run.verify, "check every byte of a store"),
        ("inspect", _INSPECT, run.inspect, "show what a store holds"),
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
