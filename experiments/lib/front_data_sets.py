"""Other data for the experiments with a front stage: TPC-H, real baskets and flights, a weather
surrogate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.data import flights, journey, tpch, weather
from experiments.data.streams import Stream
from experiments.lib.cell import Cell, facts_of
from experiments.lib.experiment import Row, Run
from experiments.lib.front_claims import Line, devices, on_device

DATA_SHARES = (0.02, 0.1)
UNIFORM, REDRAWN = "TPC-H", "TPC-H, Zipf 1"
JOURNEY = "Complete Journey"
WEATHER = "synthetic weather, Zipf 1"
FLIGHTS = "flights by hour"
DATA_USED = (
    "synthetic; TPC-H customers and orders (as it is, and with redrawn o_custkey); Complete "
    "Journey (real); a synthetic surrogate of the weather reports; flights from New York with the "
    "weather of their hour (real, composite key)"
)


@dataclass(frozen=True)
class DataSet:
    name: str
    store: Path
    stream: Stream
    columns: tuple[str, ...] | None = None  # of the master, in the output; None: all


def data_sets(run: Run) -> list[DataSet]:
    """TPC-H as it is and with redrawn customers (alone at smoke scale), real baskets, the
    surrogate of the papers' weather reports with skew (that of the real ones is not known here),
    and real flights, where each key comes in one hour and never again."""
    factor = run.pick(0.02, 5, 100)
    customers = tpch.customers(run.data, factor)
    orders = tpch.generated(run.data, factor)
    redrawn = DataSet(REDRAWN, customers, tpch.Orders(orders, skew=1.0))
    if run.scale == "smoke":
        return [redrawn]
    reports = weather.synthetic_master(run.data, run.pick(0, 2_000_000, 20_000_000))
    return [
        DataSet(UNIFORM, customers, tpch.Orders(orders)),
        redrawn,
        DataSet(JOURNEY, journey.products(run.data), journey.transactions()),
        DataSet(WEATHER, reports, weather.SyntheticReports(1.0)),
        DataSet(FLIGHTS, flights.weather(run.data), flights.by_hour(), flights.MEASURED),
    ]


def other_data(
    run: Run, lines: Sequence[Line], shares: Sequence[float] = DATA_SHARES
) -> Iterator[tuple[Row, Cell]]:
    """All of them at some shares of memory; on this machine, of the surrogate and the flights at
    the largest alone."""
    for x, data in enumerate(data_sets(run)):
        whole = facts_of(data.store).bytes
        for device in devices(run, "data"):
            if device is None and data.name not in (REDRAWN, JOURNEY):
                continue
            once = run.scale == "smoke" or device is None or data.name in (WEATHER, FLIGHTS)
            for share in shares[-1:] if once else shares:
                memory = max(int(share * whole), run.pick(400_000, 0, 0))
                for line in lines:
                    if line.algorithm == "memory" and share < shares[-1]:
                        continue
                    labels = {"part": "data", "line": line.name, "x": x, "data": data.name,
                              "percent": 100 * share}  # fmt: skip
                    made = on_device(run, line, data.store, data.stream, memory, device)
                    most = min(made.most_rows, 600_000)
                    yield labels, replace(made, most_rows=most, columns=data.columns)
