"""What the planner counts with is what the structures really take (budget/sizes.py)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.budget import sizes
from semistream.budget.ledger import Ledger
from semistream.disk.backlog import Backlog
from semistream.front.cache import KeyGroups
from semistream.front.table import GroupTable
from semistream.front.whole import WholeMaster
from semistream.join.shed.buffer import CHUNK_BYTES
from semistream.planning.sample import StreamSample

SCHEMA = pa.schema([("id", pa.int64())])


def _bytes(thing: object) -> int:
    return sum(a.nbytes for a in vars(thing).values() if isinstance(a, np.ndarray))


def test_a_slot_of_the_backlog() -> None:
    backlog = Backlog(SCHEMA, 1_000_000, 2048, False, Ledger(1 << 30))
    assert _bytes(backlog) == sizes.SLOT_BYTES * backlog.capacity
    left = 1_000_000 - backlog.capacity * sizes.slot_bytes(False)
    assert backlog.free_bytes == left


@pytest.mark.parametrize("limit", [100_000, 262_144, 1_000_000, 1_500_000])
def test_links_of_waiting_rows(limit: int) -> None:
    backlog = Backlog(SCHEMA, limit, 2048, True, Ledger(1 << 30))
    links = _bytes(backlog.links) - backlog.codes.nbytes  # the codes are the backlog's
    most = sizes.LINK_BYTES - 32  # which are for matches on their way out
    assert most / 2 < links / backlog.capacity <= most


def test_the_sample_of_the_stream() -> None:
    assert StreamSample().nbytes == sizes.SAMPLE_BYTES


def test_a_slot_of_the_front_stages_table() -> None:
    assert GroupTable(1000).nbytes == sizes.TABLE_SLOT_BYTES * 1000


def test_a_row_that_is_held_for_good() -> None:
    ledger = Ledger(1 << 30)
    whole = WholeMaster(SCHEMA, 1000, ledger)
    assert whole._bytes == (sizes.PINNED_ROW_BYTES - sizes.RECORD_BYTES) * 1000


@pytest.mark.parametrize("limit", [50_000, 400_000, 1_000_000, 1_300_000])
def test_an_entry_of_the_front_stage(limit: int) -> None:
    ledger = Ledger(1 << 30)
    front = KeyGroups(SCHEMA, limit, 16, 2, ledger)
    keys = sizes.cached_keys(limit, 16)
    assert keys == front._groups
    assert 0.8 * sizes.ENTRY_BYTES < ledger.held / keys <= sizes.ENTRY_BYTES


def test_a_chunk_costs_the_same_wherever_rows_wait() -> None:
    assert CHUNK_BYTES == sizes.CHUNK_BYTES
