"""into_delta: a stream into a Delta table, each micro-batch once, without Delta's Spark package.

Tasks write Parquet files into the table's folder, where nobody sees them yet; the driver adds them
to the table's log in one commit, which also says up to which micro-batch the query has come. A
replay finds that and writes nothing. Files of a run that died before its commit stay unseen until
the table is vacuumed.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from ..errors import MasterError, SpecError
from ..redact import address
from .frames import needs_writer, query_of
from .pins_folder import local_path
from .reach import SHARED
from .schema import stream_schema

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

CALL = "into_delta(path)"
# What a table may ask of its writers: all of it is kept by adding plain files.
KNOWN = {"appendOnly", "invariants", "timestampNtz", "deletionVectors"}


def into_delta(
    path: str | os.PathLike[str], writer: str | None = None
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: append every micro-batch to the Delta table at `path`, once, however
    often it is replayed. The table is made where there is none.

    Driver and executors must reach `path` as a folder. The table remembers micro-batches by the
    query's id, or by the name `writer`, which Spark Connect needs; two queries, or two checkpoints,
    with one name would take each other's work for done.
    """
    folder = local_path(os.fspath(path))
    if folder is None:
        shown = address(os.fspath(path))
        raise SpecError(f"into_delta({shown!r}): only folders can be written to")
    if writer is None:
        needs_writer(CALL)

    def write(df: DataFrame, batch: int) -> None:
        _append(df, folder, writer or query_of(df, CALL), batch)

    return write


def _append(df: DataFrame, folder: Path, writer: str, batch: int) -> None:
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    table = _table(folder, stream_schema(df))
    if _done(table, writer, batch):
        return
    part = f"batch-{batch}-{uuid.uuid4().hex}"
    # INT96, Spark's own way, is not for Delta. The session is this query's: Spark made a copy.
    df.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    sent = Observation()
    df.observe(sent, F.count(F.lit(1)).alias("rows")).write.parquet(str(folder / part))
    added, rows = _added(folder, part)
    if rows != sent.get["rows"]:
        raise MasterError(
            f"tasks wrote {sent.get['rows']} rows of micro-batch {batch} below {folder}, and the "
            f"driver finds {rows} there: {SHARED}"
        )
    try:
        table.create_write_transaction(
            added,
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(writer, batch)]),
        )
    except CommitFailedError as error:
        table.update_incremental()
        if not _done(table, writer, batch):  # else the same micro-batch, run elsewhere, was faster
            raise MasterError(f"{folder} took no rows of micro-batch {batch}: {error}") from error


def _done(table: DeltaTable, writer: str, batch: int) -> bool:
    last = table.transaction_version(writer)
    return last is not None and last >= batch


def _table(folder: Path, schema: pa.Schema) -> DeltaTable:
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError

    try:
        # What is never NULL today may be tomorrow, when the query starts with another plan.
        wanted = Schema.from_arrow(pa.schema([field.with_nullable(True) for field in schema]))
        table = DeltaTable.create(folder, wanted, mode="ignore")
    except (DeltaError, ValueError, TypeError) as error:
        raise SpecError(f"{folder} cannot be a Delta table of {schema}: {error}") from error
    have = [(field.name, field.type) for field in table.schema().fields]
    if have != [(field.name, field.type) for field in wanted.fields]:
        raise SpecError(
            f"the Delta table {folder} has the columns {have}, the micro-batch {wanted.fields}; "
            "select and cast them before writeStream"
        )
    _check_plain(table, folder)
    return table


def _check_plain(table: DeltaTable, folder: Path) -> None:
    """Files of ours would be wrong in tables that divide, rename, compute or check columns."""
    protocol = table.protocol()
    features = set(protocol.writer_features or [])
    reasons = [f"is partitioned by {c}" for c in table.metadata().partition_columns]
    reasons += [f"has the feature {name}" for name in sorted(features - KNOWN)]
    if not features and protocol.min_writer_version > 2:
        reasons.append(f"needs writers of version {protocol.min_writer_version}")
    for field in table.schema().fields:
        if not field.nullable or "delta.invariants" in field.metadata:
            reasons.append(f"lets column {field.name} have certain values only")
    if reasons:
        raise SpecError(
            f"the Delta table {folder} {reasons[0]}, which into_delta cannot write; write into a "
            "plain table, or use Delta's own package for Spark"
        )


def _added(folder: Path, part: str) -> tuple[list[AddAction | RemoveAction], int]:
    """The files of a micro-batch that have rows, and their rows."""
    from deltalake.transaction import AddAction

    added: list[AddAction | RemoveAction] = []
    total = 0
    for file in sorted((folder / part).glob("*.parquet")):
        rows, status = pq.read_metadata(file).num_rows, file.stat()
        total += rows
        if rows:
            stats = f'{{"numRecords": {rows}}}'
            name, when = f"{part}/{file.name}", int(status.st_mtime * 1000)
            added.append(AddAction(name, status.st_size, {}, when, True, stats))
    return added, total
