"""Warm up a join: how many rows it takes until its state is steady, and a quicker way there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import semistream as ss
from semistream.budget.sizes import cached_keys
from semistream.planning.predict import Prediction

WARM_WINDOWS = {"sweep": 7, "scan": 3, "seek": 3, "pages": 3, "lookup": 0, "none": 0}
WARM_CACHE = 32  # misses per key that the front stage answers for: with fewer it still learns


def rows_until_steady(found: Prediction) -> float:
    """Stream rows after which a join does what it will do for ever: the front stage knows its keys
    or sleeps, waiting rows have come and gone, the pool is full."""
    case, work, split = found.case, found.work, found.split
    misses = max(0.02, work.misses)
    width = max(16, case.master.row_bytes)
    watched = 2 * cached_keys(split.front, width) if work.asleep else 0
    pool = 4 * split.pool / max(1, case.master.page_bytes)
    window = WARM_WINDOWS[case.algorithm.disk] * work.waiting / misses
    learns = case.algorithm.front == "groups" and work.hits > 0  # what is pinned is there at once
    return max(window, WARM_CACHE * work.cached / misses if learns else 0.0, watched, pool)


@contextmanager
def through_a_map(join: ss.SemiStreamJoin, store: Path) -> Iterator[None]:
    """Have the disk phase of a join that looks up row after row look into a map of the store
    meanwhile: its front stage sees the same rows and is told of the same keys, in less time."""
    assert join._engine is not None  # it has begun
    phase: Any = join._engine.phase
    parts, mapped = phase.parts, ss.Store.open(store, io="map")
    phase.parts, phase._view = replace(parts, master=mapped), mapped.view(phase.columns)
    try:
        yield
    finally:
        phase.parts, phase._view = parts, None
        mapped.close()
