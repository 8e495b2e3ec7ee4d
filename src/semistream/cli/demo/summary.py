"""What the demo found, for people and as plain data."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...budget import show_bytes
from .data import KEY
from .demo import CONTENDERS, Report
from .runs import BROADCAST_TABLE, WARM_UP, QueryCounters

_LINE, _LABEL, _WIDE = 78, 32, 15
_CLOSE = 1.05  # ratios nearer to 1 than this are called the same


def as_data(report: Report) -> dict[str, Any]:
    options, counters = report.options, _counters(report)
    runs = {c.name: _run_data(report, c.name) for c in report.contenders}
    return {
        "command": "demo",
        "products": report.rows,
        "master_bytes": report.bytes,
        "master_pages": report.pages,
        "batches": options.batches,
        "batch_rows": options.batch_rows,
        "skew": options.skew,
        "batches_not_counted": WARM_UP,
        "build_seconds": round(report.build_seconds, 3),
        "budget_bytes": counters.budget_bytes,
        "peak_bytes": counters.peak_bytes,
        "hit_ratio": round(counters.hit_ratio, 4),
        "pages_read": counters.pages_read,
        "bytes_read": counters.bytes_read,
        "algorithm": counters.algorithm,
        "runs": runs,
        "ratios": {c.name: round(ratio(report, c.name), 3) for c in report.contenders[1:]},
        "same_rows": report.same_rows,
        "seconds": round(report.seconds, 3),
        "paths": {
            "store": str(report.place("products")),
            "products": str(report.place("products.parquet")),
            "sales": str(report.place("sales")),
            "warehouse": str(report.place(CONTENDERS[0].folder)),
            "log": str(report.place("spark.log")),
        },
    }


def _run_data(report: Report, name: str) -> dict[str, Any]:
    outcome, found = report.outcomes[name], report.prints[name]
    return {
        "median_seconds": round(outcome.median, 4),
        "batch_seconds": [b.seconds for b in outcome.batches],
        "rows_in": outcome.rows_in,
        "rows_out": found.rows,
        "checksum": str(found.checksum),
        "plan": outcome.plan,
    }


def ratio(report: Report, name: str) -> float:
    """How many times as long as ours a micro-batch of `name` takes."""
    return report.outcomes[name].median / report.outcomes["semistream"].median


def _counters(report: Report) -> QueryCounters:
    return report.outcomes["semistream"].counters() or QueryCounters()


# --- for people ---------------------------------------------------------------------------------


def as_text(report: Report) -> str:
    parts = (_question, _table, _verdict, _memory, _sample, _files, _next)
    return "\n\n".join("\n".join(part(report)) for part in parts)


def _question(report: Report) -> Iterator[str]:
    options = report.options
    yield "\n" + "=" * _LINE
    yield (
        f"{options.batches} micro-batches of {options.batch_rows:,} sales, each sale joined with "
        f"one of\n{report.rows:,} products ({show_bytes(report.bytes)}) on {KEY}, "
        "written to Parquet by Spark."
    )


def _table(report: Report) -> Iterator[str]:
    runs = [report.outcomes[c.name] for c in report.contenders]
    prints = [report.prints[c.name] for c in report.contenders]
    batch = report.options.batch_rows
    heads = ["semistream", "Spark's join", "Kafka plan *"]
    yield _line("", heads[: len(runs)])
    yield _line("time per micro-batch (median)", [f"{r.median:.2f} s" for r in runs])
    yield _line("sales joined per second", [f"{batch / r.median:,.0f}" for r in runs])
    yield _line("compared with semistream", ["", *_ratios(report)])
    yield _line("sales in", [f"{r.rows_in:,}" for r in runs])
    yield _line("rows out", [f"{p.rows:,}" for p in prints])
    yield _line("same rows (count, checksum)", ["", *_sameness(report)])
    yield f"The first {WARM_UP} micro-batches of each (start-up, cold caches) are not counted."


def _line(label: str, cells: list[str]) -> str:
    return f"{label:<{_LABEL}}" + "".join(f"{cell:>{_WIDE}}" for cell in cells).rstrip()


def _ratios(report: Report) -> list[str]:
    return [_times(ratio(report, c.name)) for c in report.contenders[1:]]


def _times(value: float) -> str:
    if 1 / _CLOSE < value < _CLOSE:
        return "about as long"
    return f"{value:.1f}x as long" if value >= 1 else f"{value:.2f}x as long"


def _sameness(report: Report) -> list[str]:
    mine = report.prints["semistream"]
    return ["yes" if report.prints[c.name] == mine else "NO" for c in report.contenders[1:]]


def _verdict(report: Report) -> Iterator[str]:
    value, plan = ratio(report, "spark"), report.outcomes["spark"].plan
    if value >= _CLOSE:
        yield f"A micro-batch takes Spark's own join {value:.1f} times as long as semistream."
    elif value > 1 / _CLOSE:
        yield "Here semistream and Spark's own join are about equally fast."
    else:
        yield f"Here semistream is SLOWER than Spark's own join: {1 / value:.1f} times as long."
    text = f"For every micro-batch Spark {plan}, which takes longer the larger the table is."
    if plan == BROADCAST_TABLE:
        text += " A table as small as this one is best left to Spark's join."
    yield textwrap.fill(text, _LINE)
    if "spark_unknown_size" in report.outcomes:
        plan = report.outcomes["spark_unknown_size"].plan
        text = (
            "* A stream from files tells Spark how small a batch is. A stream from Kafka does not, "
            f"and then Spark {plan}."
        )
        yield textwrap.fill(text, _LINE, subsequent_indent="  ")


def _memory(report: Report) -> Iterator[str]:
    counters, outcome = _counters(report), report.outcomes["semistream"]
    missing = outcome.rows_in - report.prints["semistream"].rows
    share = counters.budget_bytes / max(1, report.bytes)
    yield (
        f"memory   each task held {show_bytes(counters.peak_bytes)} at most, of a budget of "
        f"{show_bytes(counters.budget_bytes)} ({share:.0%} of the products)"
    )
    yield (
        f"hits     {counters.hit_ratio:.0%} of the sales were of products that were in memory "
        "already"
    )
    yield (
        f"pages    {counters.pages_read:,} pages ({show_bytes(counters.bytes_read)}) of the store "
        "were looked at for the rest"
    )
    yield f"missing  {missing:,} sales name no known product: an inner join leaves them out"


def _sample(report: Report) -> Iterator[str]:
    yield "Sales as they came, and (+) what the join added:"
    for row in report.samples:
        shown = {name: _value(value) for name, value in row.items()}
        came = [f"{name} {shown.pop(name)}" for name in ("sale_id", KEY, "quantity", "sold_at")]
        yield "  " + ", ".join(came)
        yield from _folded([f"{name} {value}" for name, value in shown.items()])


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _folded(words: list[str]) -> Iterator[str]:
    line = "    +"
    for word in words:
        if len(line) + len(word) > _LINE - 2:
            yield line
            line = "     "
        line += f" {word},"
    yield line.rstrip(",")


def _files(report: Report) -> Iterator[str]:
    yield f"All this took {report.seconds:.0f} seconds. The files:"
    for name, what in (
        ("products", "the store"),
        ("products.parquet", "the same products, as Spark's join reads them"),
        ("sales", "the stream"),
        (CONTENDERS[0].folder, "the enriched sales"),
        ("spark.log", "what Spark had to say"),
    ):
        yield f"  {report.place(name)!s:<28}{what}"


def _next(report: Report) -> Iterator[str]:
    me, store = _command(), report.place("products")
    more, budget = 5 * report.options.products, max(1, _counters(report).budget_bytes // 10**6)
    yield "What to try next:"
    yield f"  {me} inspect {store}"
    yield f"  {me} enrich {report.place('sales')} enriched.parquet --master {store} --on {KEY}"
    yield f"  {me} demo --products {more} --memory {budget}MB   (five times the table, same memory)"
    yield f"  {me} demo --skew 0   (no product is popular: memory helps least)"


def _command() -> str:
    """How this program can be called again."""
    if shutil.which("semistream"):
        return "semistream"
    own = Path(sys.argv[0])
    return sys.argv[0] if own.name == "semistream" else "python -m semistream.cli"
