"""A master in plain numbers, for whoever predicts and does not read."""

from __future__ import annotations

import numpy as np

from ..rows.layout import layouts, row_bytes
from ..spec import MasterFacts
from .base import Master


def facts(master: Master) -> MasterFacts:
    """What is known of a master without reading any of its rows."""
    info = master.describe()
    # A database has one run, and would have to be asked where its pages begin.
    one_run = master.by_key or len(master.runs) <= 2
    overlapping = master.block_pages is not None
    return MasterFacts(
        name=info.name,
        key=info.key,
        rows=info.rows,
        bytes=info.bytes,
        pages=info.pages,
        page_bytes=-(-info.bytes // info.pages) if info.pages else info.max_page_bytes,
        max_page_bytes=info.max_page_bytes,
        row_bytes=-(-info.bytes // info.rows) if info.rows else row_bytes(info.schema),
        columns=len(info.schema),
        text_columns=sum(c.kind in ("var", "other") for c in layouts(info.schema)),
        indexed=info.indexed,
        unique=info.unique,
        ranges=master.ranges and info.indexed,
        scans=master.scans,
        by_key=master.by_key,
        ages=master.ages,
        mapped=master.mapped,
        overlapping=overlapping,
        in_key_order=info.indexed and master.ranges and one_run and not overlapping,
        resident_bytes=info.resident_bytes,
        spans=len(np.unique(master.last)) if overlapping and info.indexed else 0,
        nested=any(c.kind == "other" for c in layouts(info.schema)),
    )
