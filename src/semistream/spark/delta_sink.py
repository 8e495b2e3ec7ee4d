"""into_delta: a stream into a Delta table, each micro-batch once, without Delta's Spark package.

Tasks write Parquet files into the table's folder, where nobody sees them yet; the driver adds them
to the table's log in one commit, which also says up to which micro-batch the query has come. A
replay finds that and writes nothing. Files of a run that died before its commit stay unseen until
the table is vacuumed.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ..errors import InstallError, MasterError, SemiStreamError, SpecError
from ..safety import address
from .cause import told_plainly
from .columns import Columns
from .frames import change_of, check_frame, is_stream, needs_writer
from .once import Once, check_name
from .pins_folder import local_path
from .task import SHARED, in_words, writing_to

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

CALL = "into_delta(path)"
NAME = "append"  # of a change, unless it is given
# What a table may ask of its writers: all of it is kept by adding plain files.
KNOWN = {"appendOnly", "invariants", "timestampNtz", "deletionVectors"}
OTHERS = ("variant", "geometry", "geography")  # columns of structs in Arrow, but not in files


def into_delta(
    path: str | os.PathLike[str], writer: str | None = None, *, name: str = NAME
) -> Callable[[DataFrame, int], None]:
    """For `foreachBatch`: append every micro-batch to the Delta table at `path`, once, however
    often it is replayed. The table is made where there is none.

    Driver and executors must reach `path` as a folder. One function may write into a table several
    times if each call has a `name` of its own; a second one of the same name in a micro-batch is
    refused. The table remembers micro-batches by these names and the query's id, or the name
    `writer`, which Spark Connect needs: two queries, or two checkpoints, with one writer would take
    each other's work for done.
    """
    folder = local_path(os.fspath(path))
    if folder is None:
        shown = address(os.fspath(path))
        raise SpecError(f"into_delta({shown!r}): only folders can be written to")
    check_name(name)
    _check_installed()
    if writer is None:
        needs_writer(CALL)

    def write(df: DataFrame, batch: int) -> None:
        check_frame(df)
        try:
            _append(df, folder, change_of(df, batch, writer, name, CALL, str(folder)))
        except SemiStreamError as error:  # the query's error shows the whole stack of this thread
            raise error.with_traceback(None) from None

    return write


def _check_installed() -> None:
    try:
        import deltalake  # noqa: F401 - late: only whoever writes Delta tables needs it
    except ImportError as error:
        raise InstallError(
            f"{CALL} needs the package deltalake: pip install 'semistream[delta]'"
        ) from error


def _append(df: DataFrame, folder: Path, once: Once) -> None:
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import DeltaError

    if is_stream(df):
        raise SpecError("into_delta is for the DataFrames that foreachBatch gets, not for a stream")
    columns = Columns(df)
    _check_types(columns.schema)
    table = _table(folder, columns.arrow)
    identity = f"{table.metadata().id} {os.path.realpath(folder)}"
    if once.done(identity, table.transaction_version):
        once.made(identity)
        return
    added = _written(df, folder, once.number)
    try:
        table.create_write_transaction(
            added,
            "append",
            table.schema(),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(once.mark, once.number)]
            ),
        )
    except (DeltaError, OSError) as error:
        with suppress(DeltaError, OSError):
            table.update_incremental()
        # Else the same micro-batch, run elsewhere, was faster.
        if not once.done(identity, table.transaction_version):
            raise MasterError(
                f"{folder} took no rows of micro-batch {once.number}: {error}"
            ) from error
    once.made(identity)


def _written(df: DataFrame, folder: Path, batch: int) -> list[AddAction | RemoveAction]:
    """The rows of a micro-batch as files that nobody sees yet."""
    part = f"batch-{batch}-{uuid.uuid4().hex}"
    # INT96, Spark's own way, is not for Delta. The session is this query's: Spark made a copy.
    df.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    sent = Observation()
    counted = df.observe(sent, F.count(F.lit(1)).alias("rows"))
    try:
        with told_plainly():
            counted.write.parquet(str(folder / part))
    except AnalysisException as error:
        raise SpecError(f"{folder} cannot take these columns: {_first_line(error)}") from error
    with writing_to(str(folder), "the driver"):
        added, rows = _added(folder, part)
    if rows != sent.get["rows"]:
        raise MasterError(
            f"tasks wrote {sent.get['rows']} rows of micro-batch {batch} below {folder}, and the "
            f"driver finds {rows} there: {SHARED}"
        )
    return added


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _check_types(kind: T.DataType, name: str = "") -> None:
    """Spark's files of some types are not what a plain table would say of them."""
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            _check_types(field.dataType, name or field.name)
    elif isinstance(kind, T.ArrayType):
        _check_types(kind.elementType, name)
    elif isinstance(kind, T.MapType):
        _check_types(kind.keyType, name)
        _check_types(kind.valueType, name)
    elif kind.typeName().partition("(")[0] in OTHERS:
        raise SpecError(
            f"column {name!r} has the type {kind.simpleString()}, which into_delta cannot write; "
            "cast it to a string or to binary before writeStream"
        )


def _table(folder: Path, schema: pa.Schema) -> DeltaTable:
    from deltalake import DeltaTable, Schema

    twice = [name for name, n in Counter(name.lower() for name in schema.names).items() if n > 1]
    if twice:
        alike = [name for name in schema.names if name.lower() == twice[0]]
        raise SpecError(
            f"columns {alike} of the micro-batch have one name for a Delta table, which ignores "
            "case; rename all but one before writeStream"
        )
    try:
        # What is never NULL today may be tomorrow, when the query starts with another plan.
        wanted = Schema.from_arrow(pa.schema([field.with_nullable(True) for field in schema]))
        table = DeltaTable.create(folder, wanted, mode="ignore")
    except Exception as error:  # deltalake has some without a type of its own
        raise SpecError(
            f"{folder} cannot be a Delta table of {in_words(schema)}: {_first_line(error)}; select "
            "and cast columns before writeStream, or name another folder"
        ) from error
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
