"""Numbers that the engine and the planner share: what rows, keys and pages cost beside their own
bytes, and when the parts of a join act. The engine works by them, the planner predicts with them.
"""

from __future__ import annotations

STREAM_ROW = 2048  # bytes of a stream row that every plan has room for
INTAKE_BYTES = 64  # per stream row that is taken in, while its key is looked for

# --- waiting rows ------------------------------------------------------------------------------

SLOT_BYTES = 8 + 8 + 8 + 1 + 4 + 4  # a waiting row: code, place, ticket, matched, resume, free list
WORK_BYTES = 60  # what a sweep allocates per waiting row to sort, find and answer it
LINK_BYTES = 8 + 4 * 9 + 32  # links, the multimap's table, and matches on their way out
CHUNK_BYTES = 512  # what a chunk of rows costs besides its rows
SMALL_CHUNK = 512  # rows: a chunk of fewer is brought together with others
SMALL_CHUNKS = 8  # so many of them at least, or enough for one that is not small


def slot_bytes(linked: bool) -> int:
    """What a waiting row costs besides its columns; `linked`: it is found by its code."""
    return SLOT_BYTES + (LINK_BYTES if linked else WORK_BYTES)


def waiting_rows(limit: int, widest: int, linked: bool, row_bytes: int) -> int:
    """Rows that can wait in `limit` bytes, with room for one of `widest` bytes."""
    left = limit - 2 * widest - 2 * CHUNK_BYTES
    return max(1, left // (slot_bytes(linked) + row_bytes))


# --- the front stage ---------------------------------------------------------------------------

ENTRY_BYTES = 44  # of the front stage's table and ghosts, per key
LEAST_KEYS = 64  # a front stage with fewer is not worth having
SEGMENTS = 16  # of cached key groups; two more are being made, the youngest and the oldest
ASLEEP, AWAKE = 0.12, 0.2  # share of rows whose key is known: below it sleeps, above it wakes
COLLECT = 8  # a scan's share of the front stage for key groups that are not complete yet
TABLE_SLOT_BYTES = 24  # of the table from a code to its rows
RECORD_BYTES = 24  # what packing adds to a row, at most
PINNED_ROW_BYTES = 2 * TABLE_SLOT_BYTES + RECORD_BYTES  # a row that is held for good


def cached_keys(limit: int, row_bytes: int) -> int:
    """Keys that a front stage of `limit` bytes has room for; 0: too few to be worth having."""
    keys = limit // (row_bytes + ENTRY_BYTES)
    return keys if keys >= LEAST_KEYS else 0


# --- the sample of the stream ------------------------------------------------------------------

SAMPLE_BYTES = 57_408  # of the samples that a running join keeps of its stream


def sample_bytes(backlog: int, wanted: bool) -> int:
    """What the sample of the stream takes of the bytes for waiting rows: little, or nothing."""
    return SAMPLE_BYTES if wanted and backlog >= 16 * SAMPLE_BYTES else 0


# --- disk phases -------------------------------------------------------------------------------

SWEEP_PARTS = 4  # a sweep over pages that are read frees one in so many slots at a time
PAGES_PENDING = 4096  # ssij: new rows that are shown to its cached pages together
PAGES_FILL = 0.7  # ssij: of the slots, when a join phase comes
PAGES_OLD = 8  # ssij: a row is over age when so many times the buffer's rows came after it
FETCH_KEYS = 10_000  # that a database is asked for at once
FETCH_COPIES = 3  # of a row while it is fetched: as it came, as bytes, as columns
