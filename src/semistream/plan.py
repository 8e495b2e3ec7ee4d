"""Which algorithm, and how the memory is divided among its parts."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .columns import row_bytes
from .errors import BudgetError, MasterError
from .front import WholeMaster
from .master import MasterInfo
from .memory import show_bytes
from .spec import Algorithm, Params

LEAST_OUTPUT = 16 << 10
LEAST_BACKLOG = 16 << 10
LEAST_INTAKE = 8 << 10
INTAKE_BYTES = 64
MOST_OUTPUT = 2 << 20
MOST_READ = 8 << 20
MOST_PIECE_ROWS = 1 << 15
FRONT_SHARE = 0.5


@dataclass(frozen=True)
class Split:
    """Bytes for each part."""

    output: int
    read: int
    front: int
    backlog: int
    piece_rows: int
    careful: bool  # rows may be wide against the memory: measure before taking them in


def choose(info: MasterInfo, budget: int) -> str:
    """The rule behind algorithm="auto": the bound if it fits, else by what the master can do."""
    if _least(info, True, 64) + WholeMaster.least(info.rows, info.bytes) <= budget // 2:
        return "memory"
    return "sweepjoin" if info.indexed else "meshjoin"


def _least(info: MasterInfo, mapped: bool, stream_row: int) -> int:
    """The smallest parts that work: one page read, one row in, one row out."""
    page = info.max_page_bytes + 1024
    backlog = LEAST_BACKLOG + 8 * stream_row
    output = LEAST_OUTPUT + page + 8 * stream_row
    return info.resident_bytes + output + LEAST_INTAKE + backlog + (0 if mapped else 2 * page)


def least_memory(
    algorithm: Algorithm, info: MasterInfo, budget: int, stream: pa.Schema, mapped: bool = True
) -> None:
    """Refuse what the master cannot do, and a budget that cannot work."""
    if algorithm.needs == "index" and not info.indexed:
        raise MasterError(
            f"{algorithm.name} needs an index on {list(info.key)}, which {info.name} has not; use "
            'algorithm="meshjoin", or build a store from it with Store.create'
        )
    least = _least(info, mapped, row_bytes(stream))
    if algorithm.front == "all":
        least += WholeMaster.least(info.rows, info.bytes)
    if budget < least:
        raise BudgetError(
            f"a budget of {show_bytes(budget)} is too small for {algorithm.name} on {info.name} "
            f"({info.rows} rows, {show_bytes(info.bytes)}); the least that works is {least} bytes",
            least,
        )


def split_memory(
    algorithm: Algorithm,
    info: MasterInfo,
    budget: int,
    stream: pa.Schema,
    params: Params,
    mapped: bool,
) -> Split:
    least_memory(algorithm, info, budget, stream, mapped)
    width = row_bytes(stream)
    page = info.max_page_bytes + 1024
    free = budget - info.resident_bytes
    if algorithm.front == "all":
        free -= WholeMaster.least(info.rows, info.bytes)
    output = _between(free // 8, LEAST_OUTPUT + page + 8 * width, MOST_OUTPUT)
    output = min(output, params.output_bytes or output)
    read = _between(free // 8, 2 * page, MOST_READ)
    read = max(page, min(read, params.read_bytes or read))
    intake = _between(free // 32, LEAST_INTAKE, MOST_PIECE_ROWS * INTAKE_BYTES)
    left = free - output - intake - (0 if mapped else read)
    share = FRONT_SHARE if params.front_share is None else params.front_share
    front = int(share * left) if algorithm.front == "groups" else 0
    front = max(0, min(front, left - LEAST_BACKLOG - 8 * width))
    return Split(
        output=output,
        read=read,
        front=front,
        backlog=left - front,
        piece_rows=min(params.piece_rows or MOST_PIECE_ROWS, intake // INTAKE_BYTES),
        careful=free < (1 << 20),
    )


def _between(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
