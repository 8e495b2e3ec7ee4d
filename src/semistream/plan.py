"""Which algorithm, and how the memory is divided among its parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .errors import BudgetError, MasterError
from .loading import WholeMaster
from .master import MasterInfo
from .memory import show_bytes
from .spec import Algorithm, Params

LEAST_OUTPUT = 16 << 10
LEAST_BACKLOG = 16 << 10
LEAST_INTAKE = 8 << 10
LEAST_STREAM = 16 << 10
INTAKE_BYTES = 64
MOST_OUTPUT = 2 << 20
MOST_READ = 8 << 20
MOST_PIECE_ROWS = 1 << 15
SEEK_PAGES = 4
KAPPA = 47_000  # bytes a disk reads in the time of one seek; fits the published best buffers
MOST_MAPPED = 32 << 20  # mapped pages of one step: they cost no memory
STREAM_ROW = 2048  # bytes of a stream row that every plan has room for
COMFORT = 8 << 20  # a master that is held whole has no use for more than this besides


@dataclass(frozen=True)
class Split:
    """Bytes for each part."""

    output: int
    read: int  # what one read may bring; where the master is mapped it costs nothing
    front: int
    backlog: int
    piece_rows: int
    pool: int = 0  # cached pages
    held: int = 0  # ordered answers behind older rows
    stream: int = 0  # rows that have arrived and are not taken in yet, where load is shed


def choose(info: MasterInfo, budget: int) -> str:
    """The rule behind algorithm="auto": the bound if it fits, else by what the master can do."""
    if _to_hold_whole(info) <= budget // 2:
        return "memory"
    return "sweepjoin" if info.indexed else "meshjoin"


def _to_hold_whole(info: MasterInfo) -> int:
    return _total(info, _least(info, True, 64)) + WholeMaster.least(info.rows, info.bytes)


def divide(masters: Sequence[tuple[MasterInfo, bool]], budget: int) -> list[int]:
    """Memory for each of several masters (and whether it is mapped) that are joined in one pass.

    The smallest are held whole, as long as that takes no more than an equal share. The others get
    the least that works, and share the rest by the square root of their bytes: the larger one has
    more to gain, but the first rows that are cached are the most popular ones of each.
    """
    least = [_total(info, _least(info, mapped, STREAM_ROW)) for info, mapped in masters]
    shares, left, large = list(least), budget, set(range(len(masters)))
    for i in sorted(large, key=lambda i: masters[i][0].bytes):
        whole = max(least[i], 2 * _to_hold_whole(masters[i][0]))
        if whole > left // len(large) or sum(shares) - shares[i] + whole > budget:
            break
        shares[i] = whole
        large.remove(i)
        left -= whole
        if not large:
            break
    extra = max(0, budget - sum(shares))
    roots = [math.sqrt(max(1, info.bytes)) for info, _ in masters]
    for i in range(len(masters)):
        if large and i not in large:  # for larger batches
            shares[i] += min(COMFORT, extra // (4 * len(masters)))
    extra = max(0, budget - sum(shares))
    some = large or set(range(len(masters)))
    for i in some:
        shares[i] += int(extra * roots[i] / sum(roots[j] for j in some))
    return shares


def _least(info: MasterInfo, mapped: bool, stream_row: int, shed: bool = False) -> Split:
    """The smallest parts that work: one page read, one row in, one row out."""
    page = info.max_page_bytes + 1024
    return Split(
        output=LEAST_OUTPUT + page + 2 * stream_row,
        read=0 if mapped else 2 * page,
        front=0,
        backlog=LEAST_BACKLOG + 2 * stream_row,
        piece_rows=LEAST_INTAKE // INTAKE_BYTES,
        stream=LEAST_STREAM + 2 * stream_row if shed else 0,
    )


def _total(info: MasterInfo, split: Split) -> int:
    parts = split.output + split.read + split.front + split.backlog + split.stream
    return info.resident_bytes + parts + split.piece_rows * INTAKE_BYTES


def least_memory(
    algorithm: Algorithm,
    info: MasterInfo,
    budget: int,
    stream_row: int,
    mapped: bool,
    shed: bool = False,
) -> None:
    """Refuse what the master cannot do, and a budget that cannot work."""
    if algorithm.needs == "index" and not info.indexed:
        raise MasterError(
            f"{algorithm.name} needs an index on {list(info.key)}, which {info.name} has not; use "
            'algorithm="meshjoin", or build a store from it with Store.create'
        )
    least = _total(info, _least(info, mapped, stream_row, shed))
    if algorithm.front == "all":
        least += WholeMaster.least(info.rows, info.bytes)
    if budget < least:
        raise BudgetError(
            f"a budget of {show_bytes(budget)} is too small for {algorithm.name} on {info.name} "
            f"({info.rows} rows, {show_bytes(info.bytes)}); the least that works is {least} bytes: "
            f"give memory={least}",
            least,
        )


def split_memory(
    algorithm: Algorithm,
    info: MasterInfo,
    budget: int,
    stream_row: int,
    params: Params,
    mapped: bool,
    ordered: bool = False,
    shed: bool = False,
) -> Split:
    least_memory(algorithm, info, budget, stream_row, mapped, shed)
    least = _least(info, mapped, stream_row, shed)
    extra = budget - _total(info, least)  # beyond what it takes to work at all
    if algorithm.front == "all":
        extra -= WholeMaster.least(info.rows, info.bytes)
    output = least.output + min(extra // 8, MOST_OUTPUT)
    output = min(output, max(least.output, params.output_bytes or output))
    intake = min(extra // 8, MOST_PIECE_ROWS * INTAKE_BYTES)
    read = least.read + (0 if mapped else min(extra // 8, MOST_READ))
    held = extra // 4 if ordered else 0
    left = extra - (output - least.output) - intake - (read - least.read) - held
    front = int(_share(algorithm, params) * left)
    stream = (left - front) // 3 if shed else 0
    pool = 0
    if algorithm.disk in ("plan", "lookup") and algorithm.front == "none":
        front, pool = 0, front if not mapped or algorithm.disk == "plan" else 0
    asked = params.read_bytes or _read_size(algorithm, info, budget, mapped)
    rows = least.piece_rows + intake // INTAKE_BYTES
    return Split(
        output=output,
        read=min(read or MOST_MAPPED, max(info.max_page_bytes + 1024, asked)),
        front=front,
        backlog=least.backlog + left - front - stream - (0 if mapped else pool),
        piece_rows=max(1, min(params.piece_rows or rows, rows)),
        pool=pool,
        held=held,
        stream=least.stream + stream,
    )


@dataclass(frozen=True)
class Division:
    """How the memory that parts may take from each other is divided, in place of the plan's way."""

    share: float  # cached rows or pages, of what reads leave to them and to waiting rows
    read: int  # bytes that one read may bring


def divided(
    split: Split,
    info: MasterInfo,
    budget: int,
    widest: int,
    mapped: bool,
    shed: bool,
    wanted: Division,
    cached: int | None = None,
) -> Split:
    """The same budget in another division; output, intake and the like stay as they are, and so do
    `cached` bytes where the cache cannot change."""
    least = _least(info, mapped, widest, shed)
    fixed = _total(info, replace(split, read=0, front=0, backlog=0)) + split.held
    movable = budget - fixed - least.backlog - (cached or 0)
    page = info.max_page_bytes + 1024
    read = max(page, min(wanted.read, movable // 2 if not mapped else MOST_MAPPED))
    reads = 0 if mapped else max(least.read, read)
    cache = int(wanted.share * max(0, movable - reads)) if cached is None else cached
    backlog = budget - fixed - reads - cache
    if split.pool and not mapped:
        return replace(split, read=read, pool=cache, backlog=backlog)
    return replace(split, read=read, front=cache, backlog=backlog)


def _share(algorithm: Algorithm, params: Params) -> float:
    if algorithm.name == "inlj":
        return params.page_pool
    if algorithm.share == 0 or params.front_share is None:
        return algorithm.share
    return params.front_share


def _read_size(algorithm: Algorithm, info: MasterInfo, budget: int, mapped: bool) -> int:
    """What one read should bring.

    Scans: sqrt(K^2 + K M) - K for a memory of M bytes and a device that reads K bytes in the time
    of a seek, so it does not depend on the master; mapped pages cost no memory, and the more of
    them the fewer steps. meshjoin ties it to the master all the same: a k-th of it for a whole k.
    hybridjoin's family: a few pages around the looked up key. Others: all that memory allows.
    """
    if algorithm.disk == "seek":
        return SEEK_PAGES * (info.max_page_bytes + 1024)
    if algorithm.disk != "scan":
        return MOST_MAPPED
    best = MOST_MAPPED if mapped else int(math.sqrt(KAPPA * (KAPPA + budget)) - KAPPA)
    if algorithm.name == "meshjoin":
        return -(-info.bytes // max(1, round(info.bytes / max(1, best))))
    return best
