"""The best knobs of one algorithm, by the model: for a budget the highest rate, for a rate the
least memory.

    front_share   of whoever has a cache: keys, pinned pages, ssij's pages
    read_bytes    what one read brings: meshjoin's family where nothing is mapped, and hybridjoin's;
                  or the published default (buffer="default")
    page_pool     of inlj, where pages are read

What the user has set stays as it is. hybridjoin's family looks up the oldest row, the default: on
the modelled disk that was 1.2 to 1.4 times as fast as any other position (Zipf 0.5 and 1). Others
are for shedding, where `Params.lookup` says them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from ..budget import STREAM_ROW, least_bytes, read_size, show_bytes
from ..errors import SpecError
from ..spec import Params
from .machine import Machine
from .predict import Prediction, predict
from .work import Case, with_params

DEFAULT_BUFFER = 930_000  # bytes: MESHJOIN with a default buffer, section 4.3, the best for 20 MB
SHARES = (0.0, 0.05, 0.14, 0.28, 0.5, 0.75, 0.9)
BUFFERS = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 23)
BLOCKS = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21)  # around the row that is looked up
POOL_SHARES = {"front_share": SHARES[1::2], "page_pool": (0.0, 0.4, 0.8)}  # by knob
MOST_TIMES = 1 << 20  # of the least memory: beyond, more does not help


def tune(case: Case, machine: Machine, buffer: str = "best") -> Prediction:
    """The knobs with the highest predicted rate. `buffer`: "best", or "default" for the published
    default of what one read brings."""
    if buffer not in ("best", "default"):
        raise SpecError(f'buffer={buffer!r}: choose "best" or "default"')
    if buffer == "default" and case.params.read_bytes is None:
        case = with_params(case, read_bytes=DEFAULT_BUFFER)
    knobs = _knobs(case)
    best = predict(_usual(case, [name for name, _ in knobs]), machine)
    again = knobs[:-1] if case.algorithm.disk_facts.scans else []
    for name, values in [*knobs, *again]:  # the first once more, with the last one tuned
        best = _search(best, machine, name, values)
    return best


def grid(case: Case, machine: Machine) -> Prediction:
    """The same by trying all combinations: slow, for validation."""
    knobs = _knobs(case)
    found = [predict(case, machine)]
    for values in product(*(_fine(values) for _, values in knobs)):
        tried = case
        for (name, _), value in zip(knobs, values, strict=True):
            tried = _with(tried, name, value)
        found.append(predict(tried, machine))
    return max(found, key=lambda p: p.rate)


def least_memory_for(rate: float, case: Case, machine: Machine) -> Prediction:
    """The least memory whose tuned rate is `rate` stream rows per second; case.memory does not
    count. Refused where no memory is enough: what the processor does per row takes time as well."""
    if not rate > 0:
        raise SpecError(f"rate={rate!r} is not a number of rows per second above 0")
    low = least_bytes(case.algorithm, case.master, max(STREAM_ROW, case.workload.row_bytes))
    high = low
    while True:
        found = tune(replace(case, memory=high), machine)
        if found.rate >= rate:
            break
        if high > MOST_TIMES * low or high > 64 * case.master.bytes + (1 << 30):
            raise SpecError(
                f"{case.algorithm.name} on {case.master.name} reaches {found.rate:,.0f} rows per "
                f"second at most, with {show_bytes(high)}, and not {rate:,.0f}: use more tasks, "
                "or another algorithm"
            )
        low, high = high, 2 * high
    while high - low > max(4096, high // 100):
        middle = (low + high) // 2
        tried = tune(replace(case, memory=middle), machine)
        if tried.rate >= rate:
            high, found = middle, tried
        else:
            low = middle
    return found


def _knobs(case: Case) -> list[tuple[str, Sequence[float]]]:
    """What may be tuned, and values to begin with."""
    algorithm, disk, mapped = case.algorithm, case.algorithm.disk_facts, case.master.mapped
    knobs: list[tuple[str, Sequence[float]]] = []
    if disk.one_size and not (disk.scans and mapped) and _is_open("read_bytes", case.params):
        page = case.master.max_page_bytes + 1024
        sizes = BUFFERS if disk.scans else BLOCKS
        knobs.append(("read_bytes", [max(page, size) for size in sizes]))
    cache = algorithm.cache_knob
    if cache is None or not _is_open(cache, case.params):
        return knobs
    if not algorithm.pools_pages:
        knobs.append((cache, SHARES))
    elif not mapped or disk.pools_mapped:
        knobs.append((cache, POOL_SHARES[cache]))
    return knobs


def _is_open(knob: str, params: Params) -> bool:
    """Whether the user has left a knob to us."""
    return bool(getattr(params, knob) == getattr(Params(), knob))


def _usual(case: Case, names: Sequence[str]) -> Case:
    """Knobs that are open as the family's table has them, but said: a plan must not depend on who
    reads it."""
    usual: dict[str, float] = {}
    if "front_share" in names:
        usual["front_share"] = case.algorithm.share
    if "read_bytes" in names:
        usual["read_bytes"] = read_size(case.algorithm, case.master, case.memory)
    for name, value in usual.items():
        case = _with(case, name, value)
    return case


def _search(best: Prediction, machine: Machine, name: str, values: Sequence[float]) -> Prediction:
    """The best of some values, then of those between it and its neighbours."""
    tried = {value: predict(_with(best.case, name, value), machine) for value in values}
    place = list(values).index(max(tried, key=lambda value: tried[value].rate))
    for low, high in pairwise(values[max(0, place - 1) : place + 2]):
        middle = (low + high) / 2
        tried[middle] = predict(_with(best.case, name, middle), machine)
    return max([best, *tried.values()], key=lambda p: p.rate)


def _with(case: Case, name: str, value: float) -> Case:
    """The same case with another value of a knob."""
    return with_params(case, **{name: int(value) if name == "read_bytes" else round(value, 4)})


def _fine(values: Sequence[float]) -> list[float]:
    """Four values for one."""
    places = np.arange(0, len(values) - 0.75, 0.25)
    return [float(v) for v in np.interp(places, range(len(values)), values)]
