"""What the model would do in the place of a join that runs: a division of memory for its stream,
its master and its machine.

    sketch of the stream, or hits of the cache ──> Workload ──tuner──> Division

A join with too little memory for a sketch, or with too much of it in the cache, still counts hits:
the skew is the one at which the model's cache, of so many keys, has as many.
"""

from __future__ import annotations

from dataclasses import replace

from .budget.split import Division
from .dividing import cache_bytes
from .engine import Engine
from .errors import SemiStreamError
from .machine import Machine
from .master.facts import facts
from .model import zipf
from .sketch import workload_of
from .spec import Workload
from .tuner import tune
from .work import KNOWS, Case

FEW = 16  # cached keys that say too little
MOST_SKEW = 2.0


def proposal(engine: Engine, machine: Machine, hit_share: float) -> Division | None:
    """The division that the tuner would choose, whatever the user has set: a bad one is to be
    mended. `hit_share` is of the rows that came of late. None: the model does not know the join."""
    question = engine.question
    if question.spec.condition is not None or question.shed:
        return None
    known = facts(question.master)
    free = replace(question.params, front_share=None, read_bytes=None, page_pool=0.0)
    case = Case(
        question.algorithm,
        known,
        stream_now(engine, hit_share),
        question.budget,
        free,
        len(engine.output.shape.master),
        question.spec.ordered,
    )
    try:
        split = tune(case, machine).split
    except SemiStreamError:  # such as a machine whose file lacks a cost: no reason to stop
        return None
    whole = cache_bytes(engine.divided(Division(1.0, split.read)))
    return Division(min(1.0, cache_bytes(split) / max(1, whole)), split.read)


def stream_now(engine: Engine, hit_share: float) -> Workload:
    """What the stream is like: as the sketch says, else as the hits say, else as is usual."""
    known = workload_of(engine)
    if known.skew_error is not None:
        return known
    if engine.front.asleep:  # keys hardly ever repeat
        return replace(known, skew=0.0)
    cached = engine.front.cached
    if cached < FEW:
        return known
    rows = engine.question.master.describe().rows
    return replace(known, skew=skew_of(hit_share / max(1e-9, 1 - known.orphans), cached, rows))


def skew_of(hit_share: float, cached: int, rows: int) -> float:
    """The Zipf exponent at which a cache of so many of the master's keys has such a share of hits,
    by the model's law of what a cache knows."""
    if cached >= rows:
        return Workload().skew  # it has them all: hits say nothing
    low, high = 0.0, MOST_SKEW
    for _ in range(24):
        middle = (low + high) / 2
        less = zipf.share(KNOWS * cached, rows, middle) < hit_share
        low, high = (middle, high) if less else (low, middle)
    return high
