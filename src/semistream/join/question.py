"""The question of a join, checked as far as it can be before the stream's columns are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ..budget import STREAM_ROW, Split, check_budget, parse_bytes, split_memory
from ..disk import phase_named
from ..errors import MasterError, SpecError
from ..master import Master, Source, facts, no_order, open_master
from ..output import Shape, output_shape
from ..planning import Plan, has_law, plan
from ..rows.keys import KeyCoder, On, key_coder, pair_names
from ..rows.layout import row_bytes
from ..spec import (
    Algorithm,
    Condition,
    JoinSpec,
    MasterFacts,
    Params,
    Workload,
    algorithm_named,
    at_most_one,
    column_names,
    join_type,
)
from .conditions import check_condition


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The arguments of a join, as they were given, but for the master, which a refresh replaces."""

    on: On | None
    how: str
    columns: Sequence[str] | None
    algorithm: str
    memory: int | str
    params: Params | None
    suffix: str | None
    condition: Condition | None
    ordered: bool
    sheds: bool
    matched_column: str | None
    workload: Workload | None
    validate: str | None


@dataclass(frozen=True)
class Design:
    """What follows from a question once the stream's columns are known."""

    coder: KeyCoder
    shape: Shape
    split: Split
    widest: int  # bytes of a stream row that there is room for


@dataclass(frozen=True)
class Question:
    """What to join with what, how, and within which budget."""

    master: Master
    spec: JoinSpec
    algorithm: Algorithm
    budget: int
    params: Params
    shed: bool = False  # rows may be moved out: room for a stream buffer
    plan: Plan | None = None  # why this algorithm and these knobs; None: nothing was predicted
    at_most_one: bool = False  # a stream row with two matches is an error

    def design(self, schema: pa.Schema, widest: int = STREAM_ROW) -> Design:
        """Check the question against the stream's columns and divide the memory, with room for
        stream rows of `widest` bytes."""
        info = self.master.describe()
        if self.spec.condition is not None:
            check_condition(self.spec.condition, schema, info.schema)
        coder = KeyCoder((), (), (), False)
        if self.spec.on:
            coder = key_coder(dict(self.spec.on), schema, info.schema)
        shape = output_shape(self.spec, schema, info, coder)
        widest = max(widest, row_bytes(shape.extended))
        split = split_memory(
            self.algorithm,
            facts(self.master),
            self.budget,
            widest,
            self.front_params(),
            self.spec.ordered,
            self.shed,
        )
        return Design(coder, shape, split, widest)

    @property
    def caches(self) -> bool:
        """Where pages may overlap no page can tell that a key's rows are complete, and only a scan
        can learn them: else there is nothing to cache."""
        return self.master.block_pages is None or self.algorithm.disk_facts.scans

    def front_params(self) -> Params:
        """Without keys there are none to sample; without a cache it gets no memory."""
        params = self.params if self.spec.on else replace(self.params, sketch=False)
        return params if self.caches else replace(params, front_share=0.0)


def ask(master: Source, asked: Asked) -> Question:
    """The arguments of a join as a question; what cannot work is refused here."""
    condition, sheds = asked.condition, asked.sheds
    opened, pairs = master_and_key(master, asked.on, condition)
    info = opened.describe()
    spec = JoinSpec(
        on=tuple(pairs),
        how=join_type(asked.how),
        columns=column_names(asked.columns),
        suffix=asked.suffix,
        condition=condition,
        ordered=asked.ordered,
        matched=asked.matched_column,
    )
    budget = parse_bytes(asked.memory, info.bytes)
    if sheds and asked.ordered:
        raise SpecError(
            "ordered=True cannot keep its word where rows are shed and come back later; leave one "
            "of ordered= and shed= out"
        )
    known, params, planned = facts(opened), asked.params or Params(), None
    algorithm = asked.algorithm
    free = condition is None and not sheds  # else memory is divided as the family's table says
    if algorithm == "auto" and free:
        planned = _planned(known, spec, budget, params, asked.workload, None)
        algorithm = planned.algorithm.name
    elif algorithm == "auto":
        algorithm = "sweepjoin" if condition is None else "rmeshjoin"
    chosen = algorithm_named(algorithm)
    if condition is not None and not (chosen.disk_facts.scans and chosen.front == "none"):
        raise SpecError(
            f"{chosen.name} joins on equal keys only; a condition needs "
            'algorithm="meshjoin" or "rmeshjoin"'
        )
    phase_named(chosen.disk)  # refused here, if nobody has written it
    _check_master(opened, chosen)
    check_budget(chosen, known, budget, STREAM_ROW, sheds)
    if free and planned is None and has_law(chosen):
        planned = _planned(known, spec, budget, params, asked.workload, [chosen.name])
    params = params if planned is None else planned.params
    single = (at_most_one(asked.validate) or opened.must_be_unique) and not info.unique
    if single and not pairs:
        raise SpecError(
            "validate= is about keys, and this join has none; leave it out, or give on="
        )
    return Question(opened, spec, chosen, budget, params, sheds, planned, single)


def check_same_columns(known: pa.Schema, schema: pa.Schema) -> None:
    """A stream keeps the columns that it began with."""
    if known.names == schema.names and known.types == schema.types:
        return
    for old, new in zip(known, schema, strict=False):
        if old.name != new.name or old.type != new.type:
            raise SpecError(
                f"the stream changed: column {old.name!r} {old.type} is now "
                f"{new.name!r} {new.type}; start a new join for the new columns"
            )
    raise SpecError(
        f"the stream changed from {len(known)} to {len(schema)} columns; start a new join for "
        "the new columns"
    )


def stream_of(schema: pa.Schema) -> Workload:
    """What the columns of a stream tell about it."""
    masks = len(schema) // 8 + 1  # for NULLs, which there may be none of
    return Workload(row_bytes=max(1, row_bytes(schema) - masks), columns=len(schema))


def _planned(
    known: MasterFacts,
    spec: JoinSpec,
    budget: int,
    params: Params,
    workload: Workload | None,
    among: list[str] | None,
) -> Plan:
    """The best of some algorithms (None: of all), and its knobs."""
    shown = known.columns - len(known.key) if spec.columns is None else len(spec.columns)
    columns = 0 if spec.how in ("semi", "anti") else shown
    stream = workload or Workload()
    return plan(
        known, stream, budget, params=params, among=among, columns=columns, ordered=spec.ordered
    )


def _check_master(master: Master, chosen: Algorithm) -> None:
    """Refuse what this kind of master cannot do, besides what `check_budget` refuses."""
    info = master.describe()
    if info.indexed and not master.ranges and chosen.disk_facts.ranges:
        raise MasterError(
            f"{chosen.name} reads ranges of keys, and {info.name} has none in the order of its key "
            f"{list(info.key)} (one integer, date or time column with an ordered index has); use "
            "sweepjoin, inlj or cinlj, which fetch rows by key"
        )
    if not master.scans and chosen.reads_all:
        raise MasterError(no_order(info.name))
    if master.ages and chosen.keeps_rows:
        raise SpecError(
            f"{chosen.name} keeps rows of the master for good, so ttl= and updated_at= would have "
            "no effect; use another algorithm, or leave them out"
        )


def master_and_key(
    master: Source, on: On | None, condition: Condition | None
) -> tuple[Master, list[tuple[str, str]]]:
    """The master, and (stream column, master column) for its key columns in the key's order."""
    if on is None:
        if condition is None:
            raise SpecError("give on= (key columns), condition=, or both")
        if not isinstance(master, Master):
            raise SpecError(
                "a condition without on= needs a master that is open: "
                'open_master(source, key="...")'
            )
        return master, []
    pairs = pair_names(on)
    opened = master if isinstance(master, Master) else open_master(master, [m for _, m in pairs])
    info = opened.describe()
    if sorted(m for _, m in pairs) != sorted(info.key):
        raise SpecError(
            f"on={on!r} joins on the master's columns {[m for _, m in pairs]}, but the key of "
            f"{info.name} is {list(info.key)}; name all of its key columns and no other"
        )
    order = {m: i for i, m in enumerate(info.key)}
    return opened, sorted(pairs, key=lambda pair: order[pair[1]])
