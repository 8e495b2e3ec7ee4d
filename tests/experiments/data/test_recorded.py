"""The experiments' data that others made: TPC-H, grocery baskets, flights, cloud reports."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from experiments.data import flights, journey, tpch, weather
from experiments.data.trace import Trace, orphans, package_file, recut
from semistream import SemiStreamJoin, Store
from semistream.planning.laws import zipf
from tests.helpers.experiment_rows import frequencies, keys_of, rows_of

SCALE = 0.01  # TPC-H: 1,500 customers, 15,000 orders


# --- TPC-H --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tpch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tpch")


def test_tpch_orders_all_have_a_customer_and_a_third_has_no_orders(tpch_folder: Path) -> None:
    customers = rows_of(tpch.customers(tpch_folder, SCALE))
    assert sorted(customers.column(tpch.KEY).to_pylist()) == list(range(1, 1_501))
    orders = tpch.Orders(tpch.generated(tpch_folder, SCALE))
    keys = keys_of(orders, 15_000)
    assert orders.name == "TPC-H orders"
    assert set(np.unique(keys)) <= set(range(1, 1_501))
    assert (keys % 3 != 0).all()
    # Uniform draws, those of 3, 6, 9... moved up by one: 20 and 10 orders, and no more skew than
    # independent draws have, whose variance is their mean.
    per_customer = np.bincount(keys, minlength=1_502)
    for first, mean in ((1, 20), (2, 10)):
        counts = per_customer[first:1_501:3]
        assert counts.mean() == pytest.approx(mean, rel=0.03)
        assert counts.var() == pytest.approx(mean, rel=0.25)


def test_tpch_orders_repeat_after_the_last(tpch_folder: Path) -> None:
    orders = tpch.Orders(tpch.generated(tpch_folder, SCALE), columns=None)
    first, second = islice(orders.batches(1, 10_000), 2)
    assert first.schema == orders.schema
    assert second.slice(5_000).equals(first.slice(0, 5_000))
    assert first.column("o_orderkey").to_pylist() == sorted(first.column("o_orderkey").to_pylist())
    assert {"o_comment", tpch.KEY} < set(orders.schema.names)


def test_tpch_orders_with_redrawn_customers_say_so_and_are_skewed(tpch_folder: Path) -> None:
    plain = tpch.Orders(tpch.generated(tpch_folder, SCALE))
    skewed = tpch.Orders(plain.folder, skew=1.0)
    assert skewed.name == "TPC-H orders, o_custkey redrawn: Zipf 1"
    assert skewed.schema == plain.schema
    keys = keys_of(skewed, 60_000)
    assert keys.min() == 1
    assert keys.max() == 1_500
    for top in (1, 15, 150):
        share = frequencies(keys)[:top].sum() / 60_000
        assert share == pytest.approx(zipf.share(top, 1_500, 1.0), rel=0.05)
    assert (keys == keys_of(skewed, 60_000)).all()
    assert (keys != keys_of(skewed, 60_000, seed=2)).any()
    batch, original = next(skewed.batches(1, 1_000)), next(plain.batches(1, 1_000))
    assert batch.column("o_orderkey").equals(original.column("o_orderkey"))


def test_tpch_orders_need_their_key(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="o_custkey"):
        tpch.Orders(tmp_path, columns=("o_orderkey",))


# --- recorded streams ---------------------------------------------------------------------------


def test_journey_orphans_and_skew_are_what_its_page_says() -> None:
    stream, products = journey.transaction_rows(), journey.product_rows()
    assert (stream.num_rows, products.num_rows) == (1_469_307, 92_331)
    assert orphans(stream, products, journey.KEY) == (4_836, 17)
    counts = frequencies(stream.column(journey.KEY).to_numpy())
    assert len(counts) == 68_509
    assert counts[:923].sum() / stream.num_rows == pytest.approx(0.357, abs=0.0005)


def test_journey_comes_in_time_order_and_begins_again(tmp_path: Path) -> None:
    trace = journey.transactions()
    rows = trace.table.num_rows
    first, second = islice(trace.batches(1, rows - 7), 2)
    times = first.column("transaction_timestamp").cast(pa.int64()).to_numpy()
    assert (np.diff(times) >= 0).all()
    assert second.slice(7, 100).equals(first.slice(0, 100))
    assert Store.open(journey.products(tmp_path)).manifest.rows == 92_331


def test_a_join_finds_the_same_orphans(tmp_path: Path) -> None:
    stream = journey.transactions()
    join = SemiStreamJoin(journey.products(tmp_path), on=stream.key, how="anti", memory="4MB")
    rows = 0
    for batch in islice(stream.batches(1, 489_769), 3):  # three batches are all of them
        rows += sum(len(out) for out in join.push(batch))
    assert rows + sum(len(out) for out in join.drain()) == 4_836


def test_flights_orphans_are_what_their_page_says() -> None:
    planes, airports = flights.master_rows("planes"), flights.master_rows("airports")
    trips = flights.flight_rows()
    assert (trips.num_rows, planes.num_rows, airports.num_rows) == (336_776, 3_322, 1_458)
    assert trips.column("tailnum").null_count == 2_512
    assert orphans(trips, planes, flights.PLANE) == (52_606, 721)
    assert orphans(flights.by_airport().table, airports, flights.AIRPORT) == (7_602, 4)


def test_flights_join_the_weather_on_a_composite_key(tmp_path: Path) -> None:
    stream = flights.by_hour()
    hours = stream.table.select(list(flights.HOUR))
    left = SemiStreamJoin(flights.weather(tmp_path), on=list(stream.key), how="anti", memory="8MB")
    out = [batch for batch in left.push(next(stream.batches(1, stream.table.num_rows)))]
    out += list(left.drain())
    alone = pa.Table.from_batches(out).select(list(flights.HOUR))
    assert alone.num_rows == 1_556
    assert alone.group_by(list(flights.HOUR)).aggregate([]).num_rows == 108
    # The same by Arrow's own join.
    weather_hours = flights.master_rows("weather").select(list(flights.HOUR))
    assert hours.join(weather_hours, list(flights.HOUR), join_type="left anti").num_rows == 1_556


def test_flights_come_in_the_order_of_departure(tmp_path: Path) -> None:
    trips = flights.flight_rows()
    hours = trips.column("time_hour").cast(pa.int64()).to_numpy()
    assert (np.diff(hours + 60 * trips.column("minute").to_numpy()) >= 0).all()
    assert Store.open(flights.planes(tmp_path)).manifest.rows == 3_322
    assert Store.open(flights.airports(tmp_path)).manifest.rows == 1_458


def test_recut_neither_loses_nor_repeats_rows() -> None:
    table = pa.table({"n": range(100)})
    batches = [table.slice(at, size).to_batches()[0] for at, size in ((0, 3), (3, 60), (63, 37))]
    cut = list(recut(batches, 8))
    assert {len(batch) for batch in cut} == {8}
    assert pa.Table.from_batches(cut).column("n").to_pylist() == list(range(96))
    with pytest.raises(ValueError, match="1 or more"):
        next(recut(batches, 0))
    with pytest.raises(ValueError, match="no rows"):
        next(Trace("empty", "n", table.slice(0, 0)).batches(1, 1))


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"semistream\[experiments\]"):
        package_file("no_such_package_at_all", "x.csv")


# --- weather ------------------------------------------------------------------------------------


def line(lat: int, lon: int) -> str:
    """A report by the layout: date and hour, light, LAT, LON, then 37 characters more."""
    return f"81120100{1}{lat:5d}{lon:5d}" + "0321014" + "9" * 30


def test_reports_are_read_by_their_columns(tmp_path: Path) -> None:
    file = tmp_path / "DEC81L"
    places = [(-9_000, 0), (4_071, 28_599), (0, 36_000), (-5, 7)]
    file.write_text("\n".join(line(*place) for place in places) + "\n")
    reports = weather.read_reports(file)
    assert reports.schema == weather.REPORT_SCHEMA
    found = zip(reports.column("lat").to_pylist(), reports.column("lon").to_pylist(), strict=True)
    assert list(found) == places
    assert reports.column("report").to_pylist() == [line(*place) for place in places]
    assert rows_of(weather.reports_master(tmp_path / "stores", file)).num_rows == 4


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ("8112010014071", "line 2 is shorter"),
        ("", "line 2 is shorter"),
        (line(4_071, 36_001), "line 2 has LON"),
        (line(9_001, 5), "line 2 has LAT"),
        ("811201001 4,71 1200" + "9" * 37, "line 2 has no LAT"),
    ],
)
def test_lines_that_are_no_reports_are_refused(tmp_path: Path, bad: str, what: str) -> None:
    file = tmp_path / "DEC81L"
    file.write_text(f"{line(1, 2)}\n{bad}\n{line(3, 4)}\n")
    with pytest.raises(ValueError, match=what):
        weather.read_reports(file)


def test_the_surrogate_is_many_to_many_and_named_synthetic(tmp_path: Path) -> None:
    per_key = 10_000_000 / weather.LONGITUDES
    assert round(per_key) == 278
    rows = 360_010  # ten per longitude
    path = weather.synthetic_master(tmp_path, rows)
    assert "synthetic" in path.name
    table = rows_of(path)
    assert table.nbytes / rows == pytest.approx(32, abs=1)
    lon = table.column(weather.KEY).to_numpy()
    counts = np.bincount(lon, minlength=weather.LONGITUDES)
    assert len(counts) == weather.LONGITUDES
    assert counts.mean() == 10
    assert counts.var() == pytest.approx(10, rel=0.1)  # uniform draws: Poisson
    lat = table.column("lat").to_numpy()
    assert (lat.min(), lat.max()) == (-9_000, 9_000)
    stream = weather.SyntheticReports()
    assert "synthetic" in stream.name
    keys = keys_of(stream, 50_000)
    assert counts[keys].mean() == pytest.approx(10, rel=0.02)
    skewed = frequencies(keys_of(weather.SyntheticReports(0.8), 100_000))
    expected = zipf.share(100, weather.LONGITUDES, 0.8)
    assert skewed[:100].sum() / 100_000 == pytest.approx(expected, rel=0.03)
