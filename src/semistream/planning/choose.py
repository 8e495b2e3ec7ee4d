"""Which algorithm, with which knobs: every one that can work is tuned, the best is chosen, and the
plan says why.

    facts of the master, workload, memory, machine ──tuner, for each algorithm──> Plan
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..budget import STREAM_ROW, least_bytes, show_bytes
from ..errors import BudgetError, MasterError
from ..spec import ALGORITHMS, Algorithm, MasterFacts, Params, Workload
from .laws import has_law, require_law
from .machine import Machine, this_machine
from .predict import Prediction
from .tune import tune
from .work import Case

BROADCAST = 10 << 20  # bytes of a table that Spark broadcasts by itself
HELD_WHOLE = 0.5  # of the best rate: a master that can be held whole is, nothing waits then
MOST_KNOWN = 256  # plans that are remembered: the same join is often made again
ALIKE = 0.1  # rates that differ by less are alike: then the simplest is chosen
NO_LAW = "has no cost law: nobody knows how fast it is, so it is never chosen; name it to have it"


@dataclass(frozen=True)
class Alternative:
    """An algorithm that was not chosen, and why."""

    algorithm: str
    rate: float | None  # None: it cannot work here
    reason: str


@dataclass(frozen=True)
class Plan:
    """What was chosen, what it will do, and why the others lost."""

    chosen: Prediction
    alternatives: tuple[Alternative, ...]  # the runner-up first, those that cannot work last
    advice: tuple[str, ...]
    machine: Machine

    @property
    def algorithm(self) -> Algorithm:
        return self.chosen.case.algorithm

    @property
    def params(self) -> Params:
        return self.chosen.case.params

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        chosen, work = self.chosen, self.chosen.work
        return {
            "algorithm": self.algorithm.name,
            "predicted_rate": chosen.rate,
            "memory": chosen.case.memory,
            "memory_split": memory_split(chosen),
            "params": {
                name: value
                for name in ("front_share", "read_bytes", "page_pool")
                if (value := getattr(self.params, name)) is not None
            },
            "hit_ratio": work.hits,
            "pages_per_row": work.disk.pages,
            "bytes_per_row": work.disk.bytes,
            "reads_per_row": work.disk.reads,
            "wait_seconds": chosen.wait_seconds,
            "seconds_per_row": dict(chosen.seconds),
            "workload": {
                "skew": chosen.case.workload.skew,
                "orphans": chosen.case.workload.orphans,
            },
            "alternatives": [
                {"algorithm": a.algorithm, "predicted_rate": a.rate, "reason": a.reason}
                for a in self.alternatives
            ],
            "advice": list(self.advice),
            "calibrated": self.machine.measured or None,
        }

    def __str__(self) -> str:
        return "\n".join(_lines(self))


_KNOWN: dict[tuple[Any, ...], Plan] = {}


def plan(
    master: MasterFacts,
    workload: Workload,
    memory: int,
    machine: Machine | None = None,
    params: Params | None = None,
    *,
    among: Sequence[str] | None = None,
    columns: int | None = None,
    ordered: bool = False,
) -> Plan:
    """Tune every algorithm that can work (of those in `among`) and choose the fastest. Raises
    BudgetError where none can. One without a cost law is listed and never chosen; where it is all
    that there is, a SpecError says so."""
    here = machine if machine is not None else this_machine()
    names = tuple(ALGORITHMS if among is None else among)
    key = (master, workload, memory, params, names, among is None, columns, ordered, id(here))
    made = _KNOWN.get(key)
    if made is None:
        made = _plan(master, workload, memory, here, params, among, columns, ordered)
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = made  # it keeps the machine, so its id stays its own
    return made


def _plan(
    master: MasterFacts,
    workload: Workload,
    memory: int,
    machine: Machine,
    params: Params | None,
    among: Sequence[str] | None,
    columns: int | None,
    ordered: bool,
) -> Plan:
    found, lost = [], []
    least: BudgetError | None = None
    unknown: Algorithm | None = None
    for name in ALGORITHMS if among is None else among:
        algorithm = ALGORITHMS[name]
        reason = cannot(algorithm, master)
        if reason is None and among is None and master.by_key and algorithm.disk_facts.ranges:
            reason = "reads pages, and a database is better asked by key; name it to have it"
        if reason is None and not has_law(algorithm):
            reason, unknown = NO_LAW, algorithm
        if reason is None:
            case = Case(algorithm, master, workload, memory, params or Params(), columns, ordered)
            try:
                found.append(tune(case, machine))
                continue
            except BudgetError as error:
                least = error if least is None or error.least < least.least else least
                least_here = least_bytes(algorithm, master, max(STREAM_ROW, workload.row_bytes))
                reason = f"needs {show_bytes(least_here)} of memory at least"
        lost.append(Alternative(name, None, reason))
    if not found:
        if least is None and unknown is not None:
            require_law(unknown)
        why = "; ".join(f"{a.algorithm} {a.reason}" for a in lost)
        raise least or MasterError(f"no algorithm can join with {master.name}: {why}")
    able = [p for p in found if not _waits_for_all(p)] or found
    best = max(p.rate for p in able)
    whole = [p for p in found if p.case.algorithm.front_facts.whole and p.rate >= HELD_WHOLE * best]
    chosen = next(p for p in [*whole, *able] if p.rate >= (1 - ALIKE) * best or p in whole)
    others = sorted((p for p in found if p is not chosen), key=lambda p: -p.rate)
    beaten = [Alternative(p.case.algorithm.name, p.rate, _why(p, chosen)) for p in others]
    return Plan(chosen, (*beaten, *lost), tuple(_advice(chosen, machine)), machine)


def _waits_for_all(found: Prediction) -> bool:
    """A scan where an index would do. Its rate may be high as long as the stream goes on; but rows
    wait for a whole pass over the master, and so does the end of every batch on Spark."""
    return found.case.algorithm.disk_facts.scans and found.case.master.indexed


def cannot(algorithm: Algorithm, master: MasterFacts) -> str | None:
    """Why an algorithm cannot join with a master, whatever the memory; None: it can."""
    if algorithm.needs_index and not master.indexed:
        return f"needs an index on {', '.join(master.key)}"
    if algorithm.disk_facts.ranges and not master.ranges:
        return "reads ranges of keys, and the master has none in the order of its key"
    if algorithm.reads_all and not master.scans:
        return "reads the whole master, and there is no order to read it in"
    if master.ages and algorithm.keeps_rows:
        return "keeps rows for good, and these must not be kept"
    return None


# --- words --------------------------------------------------------------------------------------


def memory_split(found: Prediction) -> dict[str, int]:
    """Bytes by part, as the join will divide them."""
    split, front = found.split, found.split.front
    whole = found.case.algorithm.front_facts.whole
    if whole:
        front = found.case.memory - split.backlog - split.output
    parts = {
        "front stage": front,
        "waiting rows": 0 if whole else split.backlog,
        "page pool": 0 if found.case.master.mapped else split.pool,
        "reads": 0 if found.case.master.mapped else split.read,
        "output": split.output,
        "ordered answers": split.held,
        "index": found.case.master.resident_bytes,
    }
    return {name: size for name, size in parts.items() if size}


def _why(other: Prediction, chosen: Prediction) -> str:
    """The part in which it loses most time against the chosen one."""
    names = dict.fromkeys([*other.seconds, *chosen.seconds])
    more = {n: other.seconds.get(n, 0.0) - chosen.seconds.get(n, 0.0) for n in names}
    worst = max(more, key=lambda n: more[n])
    if other.rate > (1 + ALIKE) * chosen.rate:
        times = f"{other.rate / chosen.rate:.2g} times as fast by the model, but "
        if _waits_for_all(other):
            return times + "rows wait for a whole pass over the master, and there is an index"
        return times + "rows wait, and the master fits whole"
    if other.rate >= (1 - ALIKE) * chosen.rate:
        return "as fast, within what the model can tell"
    text = f"{chosen.rate / other.rate:.2g} times slower: {worst} takes "
    text += f"{_time(other.seconds.get(worst, 0.0))} per row, not "
    text += _time(chosen.seconds.get(worst, 0.0))
    if other.work.asleep and not chosen.work.asleep:
        text += " (too few keys repeat for its cache)"
    return text


def _advice(chosen: Prediction, machine: Machine) -> list[str]:
    master, said = chosen.case.master, []
    if master.bytes <= BROADCAST:
        said.append(
            f"a plain broadcast join is better here: the master has only {show_bytes(master.bytes)}"
            ", and Spark broadcasts tables of that size by itself"
        )
    elif chosen.case.algorithm.front_facts.whole:
        said.append("the master fits into the memory: a plain broadcast join would do as well")
    if chosen.case.workload.skew_error is None:
        skew = chosen.case.workload.skew
        said.append(f"the skew of the stream is assumed to be {skew:g}; give a sample of it")
    if not master.indexed:
        said.append("without an index every row waits for a whole scan; a store has one")
    if not machine.measured:
        why = f" ({machine.note})" if machine.note.startswith("not used") else ""
        said.append(f"costs are not measured on this machine{why}; run: semistream calibrate")
    return said


def _lines(plan: Plan) -> list[str]:
    chosen, work = plan.chosen, plan.chosen.work
    case, total = chosen.case, sum(chosen.seconds.values())
    lines = [
        f"{plan.algorithm.name}: {plan.algorithm.help}",
        f"  on {case.master.name}: {case.master.rows:,} rows, {show_bytes(case.master.bytes)}; "
        f"memory {show_bytes(case.memory)}, Zipf {case.workload.skew:g}",
        f"  predicted rate   {chosen.rate:,.0f} stream rows per second",
        f"  front stage      answers {100 * work.hits:.0f} % of rows"
        + (f" from {work.cached:,.0f} keys" if work.cached else ""),
        f"  I/O per row      {work.disk.pages:.4f} pages, {show_bytes(work.disk.bytes)}"
        + (" of mapped file" if case.master.mapped else f" in {work.disk.reads:.4f} reads"),
        f"  expected wait    {_time(chosen.wait_seconds)} for rows that wait, at that rate",
        "  memory",
    ]
    lines += [f"    {n:15} {show_bytes(size):>10}" for n, size in memory_split(chosen).items()]
    lines.append("  time per row")
    lines += [
        f"    {name:15} {_time(s):>10}  {100 * s / total:3.0f} %"
        for name, s in chosen.seconds.items()
        if s > 0
    ]
    for number, other in enumerate(plan.alternatives):
        if number == 0 and other.rate is not None:
            lines.append(f"  runner-up: {_other(other)}")
        else:
            lines.append(f"{'  others:' if number == 1 else '         '}  {_other(other)}")
    return lines + [f"  note: {text}" for text in plan.advice]


def _other(other: Alternative) -> str:
    rate = "" if other.rate is None else f"{other.rate:,.0f} rows/s, "
    return f"{other.algorithm}: {rate}{other.reason}"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
