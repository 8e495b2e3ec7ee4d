"""The family: every member gives the same rows, whatever the master, the budget and the knobs.

Mistakes seen in other implementations of these joins, and the test that would catch each here:

    one row per key in the table of waiting rows    test_contract,
                                                    test_a_hot_key_with_many_rows_waiting
    expiry takes newer rows of the same key along   test_newer_rows_of_a_key_stay
    waiting rows deleted when a read fails          test_every_read_fails_once
    a "success rate" printed instead of all rows    check_join: rows in = matched + unmatched +
                                                    waiting after every call
    an endless loop on a key that is not there      test_orphans_free_their_slots
    rows lost where b does not divide the master    test_every_row_meets_every_page_once
    rows lost in a stream shorter than a cycle      test_extremes, test_a_row_waits_for_one_cycle
    capacity that shrinks after a short load        test_capacity_comes_back
    SQL by f-string                                 test_no_sql_is_put_together
    a user interface imported into the join         test_the_join_imports_no_interface
    a rate that leaves out building the output      test_the_benchmark_builds_all_output
    numbers typed into a plot script                test_charts_have_no_numbers_of_results
    figures made by editing source                  test_what_a_benchmark_runs_is_argument
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import semistream as ss
from semistream.master import Master
from semistream.master.table import TableMaster
from semistream.testing import assert_same_rows, check_join, oracle, rebatch, rows_of
from tests.helpers.paths import ROOT, TESTS
from tests.helpers.sample_data import (
    ALGORITHMS,
    HOWS,
    PARAMS,
    allowed,
    build,
    least_memory,
    products,
    sales,
)

SCANS = [a.name for a in ss.ALGORITHMS.values() if a.disk == "scan"]


# --- every algorithm x master x join type, strings as keys --------------------------------------


def word(i: int) -> str:
    """Keys of different lengths, some longer than what a hash reads at once."""
    return f"customer {i} " + "x" * (i % 37)


@pytest.fixture(scope="module")
def people() -> pa.Table:
    """Duplicates, a group that spans pages, NULLs."""
    rng = random.Random(1)
    keys = [rng.choice([*range(60), None]) for _ in range(90)] + [7] * 30
    return pa.table({"who": [None if k is None else word(k) for k in keys], "v": range(len(keys))})


@pytest.fixture(scope="module")
def visits() -> pa.Table:
    """Duplicates, a hot key, orphans, NULLs."""
    rng = random.Random(2)
    keys = [rng.choice([*range(0, 90, 2), *[7] * 10, *[8] * 10, None]) for _ in range(250)]
    return pa.table({"who": [None if k is None else word(k) for k in keys], "n": range(250)})


@pytest.fixture(scope="module", params=["memory", "map", "pread", "parquet"])
def by_name(request, people: pa.Table, tmp_path_factory) -> Iterator[Master]:
    master = build(request.param, people, "who", tmp_path_factory.mktemp(request.param))
    yield master
    master.close()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_string_keys_from_the_least_budget_upward(algorithm, how, by_name, people, visits) -> None:
    if ss.ALGORITHMS[algorithm].needs == "index" and not by_name.describe().indexed:
        with pytest.raises(ss.MasterError, match="needs an index"):
            ss.SemiStreamJoin(by_name, "who", how, algorithm=algorithm)
        return
    least = least_memory(by_name, algorithm, visits, on="who")
    for seed, times in enumerate((1.0, 1.15, 4.0)):
        check_join(
            by_name,
            visits,
            on="who",
            how=how,
            algorithm=algorithm,
            memory=int(least * times),
            table=people,
            rng=seed,
        )


# --- all of them against each other -------------------------------------------------------------


@st.composite
def inputs(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """(stream, master): skewed keys, groups of several rows, NULLs and orphans; ints or strings."""
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    keys = draw(st.integers(1, 40))
    most = draw(st.sampled_from([1, 1, 4, 12]))  # 1: a unique key
    null = draw(st.sampled_from([0.0, 0.1]))
    named = draw(st.booleans())

    def table(values: list[int], number: str) -> pa.Table:
        known = [None if rng.random() < null else word(k) if named else k for k in values]
        kind = pa.string() if named else pa.int64()
        return pa.table({"id": pa.array(known, kind), number: range(len(values))})

    hot = [rng.randrange(keys) for _ in range(3)]
    stream = [rng.choice([*hot, rng.randrange(keys + 5)]) for _ in range(draw(st.integers(0, 300)))]
    master = [k for k in range(keys) if rng.random() < 0.9 for _ in range(rng.randint(1, most))]
    return table(stream, "n"), table(master, "v")


@given(
    question=inputs(),
    how=st.sampled_from(HOWS),
    kind=st.sampled_from(["map", "pread", 1, 2, 3]),
    params=PARAMS,
    times=st.sampled_from([1.0, 1.05, 1.3, 2.0, 6.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_knob_changes_a_result(question, how, kind, params, times, seed) -> None:
    """`kind` may be a number: so many rows on each page of a master in memory."""
    stream, table = question
    rng = random.Random(seed)
    expected = oracle(stream, table, "id", how)
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(kind, int):
            master: Master = TableMaster(table, "id", page_rows=kind)
        else:
            master = build(kind, table, "id", Path(folder))
        params = allowed(params, master)
        for algorithm in ALGORITHMS:
            least = least_memory(master, algorithm, stream, on="id", how=how, params=params)
            memory = int(times * least)
            note(f"{algorithm} with {memory} bytes")
            batches = rebatch(stream, rng)
            out = ss.join_batches(batches, master, "id", how, None, algorithm, memory, params)
            assert_same_rows(rows_of(list(out)), expected, algorithm)
        master.close()


# --- release="match" ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "map", "pread"])
@pytest.mark.parametrize("algorithm", SCANS)
def test_release_at_the_match(algorithm, kind, tmp_path) -> None:
    """The same rows for a unique key, with rows that leave sooner."""
    table = products([*range(0, 300, 3), None, None])
    master = build(kind, table, "id", tmp_path)
    stream = sales(random.Random(3), 300, [*range(0, 330, 2), None])
    params = ss.Params(release="match", read_bytes=1)
    for how in HOWS:
        for times in (1.0, 3.0):
            least = least_memory(master, algorithm, stream, on="id", params=params)
            check_join(
                master,
                stream,
                on="id",
                how=how,
                algorithm=algorithm,
                memory=int(times * least),
                params=params,
                table=table,
                rng=4,
            )


def test_release_at_the_match_frees_slots_at_once(tmp_path) -> None:
    master = build("pread", products(range(200)), "id", tmp_path)
    batch = pa.record_batch({"id": pa.array([0, 1, 2, 199])})
    for release, left in (("cycle", 4), ("match", 1)):
        params = ss.Params(release=release, read_bytes=1)
        with ss.SemiStreamJoin(
            master, "id", algorithm="meshjoin", memory="1MB", params=params
        ) as join:
            assert list(join.push(batch)) == []
            assert sum(map(len, join.step())) == 3
            assert join.stats.waiting == left
            assert sum(map(len, join.drain())) == 1


@pytest.mark.parametrize("algorithm", SCANS)
@pytest.mark.parametrize("kind", ["memory", "map", "pread", "parquet"])
def test_release_at_the_match_needs_a_unique_key(kind, algorithm, tmp_path) -> None:
    """Parquet does not say whether its key is unique, so it is refused even where it is."""
    keys = range(9) if kind == "parquet" else [1, 1, 2]
    master = build(kind, products(keys), "id", tmp_path)
    params = ss.Params(release="match")
    with pytest.raises(ss.MasterError, match=r"release='match' needs.*unique.*release='cycle'"):
        ss.SemiStreamJoin(
            master,
            "id",
            algorithm=algorithm,
            params=params,
            stream_schema=pa.schema({"id": pa.int64()}),
        )


@pytest.mark.parametrize(
    ("knob", "value"),
    [("release", "now"), ("pinned_probe", "both"), ("lookup", 1.1), ("lookup", -0.1),
     ("page_pool", 0.95), ("front_share", 2.0)],
)  # fmt: skip
def test_knobs_that_do_not_exist(knob, value) -> None:
    with pytest.raises(ss.SpecError, match=f"{knob}="):
        ss.Params(**{knob: value})


def test_the_alias() -> None:
    table = products(range(5))
    assert ss.SemiStreamJoin(table, "id", algorithm="cachejoin").algorithm.name == "chybridjoin"


# --- habits that are no part of a join ----------------------------------------------------------


def test_the_tests_named_above_exist() -> None:
    tests = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert __doc__ is not None
    named = re.findall(r"test_\w+", __doc__)
    assert len(named) > 12
    assert [name for name in named if f"def {name}(" not in tests] == []


def _sources(folder: str, pattern: str = "*.py") -> Iterator[tuple[str, ast.AST]]:
    for path in sorted((ROOT / folder).rglob(pattern)):
        for node in ast.walk(ast.parse(path.read_text())):
            yield str(path), node


def test_no_sql_is_put_together() -> None:
    """No f-string with SQL in it, neither in the package nor in its benchmarks; but for the masters
    that are databases, which quote names and bind values (see tests/master/sql/test_values.py)."""
    sql = re.compile(r"\b(select\b.+\bfrom|insert\s+into|update\b.+\bset|delete\s+from)\b", re.I)
    for folder in ("src", "benchmarks"):
        for path, node in _sources(folder):
            if isinstance(node, ast.JoinedStr) and "/master/sql" not in path:
                text = "".join(v.value for v in node.values if isinstance(v, ast.Constant))
                assert not sql.search(text), f"{path}, line {node.lineno}: {text}"


def test_the_join_imports_no_interface() -> None:
    code = "import semistream, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    unwanted = {"rich", "pyspark", "matplotlib", "semistream.cli", "semistream.cli.demo"}
    unwanted |= {"psycopg", "pymysql"}
    assert unwanted & set(run.stdout.split()) == set()


def test_the_benchmark_builds_all_output(monkeypatch) -> None:
    """Its rate is of rows that came out, every column of them built."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.lib.running import answered, push, read_all

    stream = sales(random.Random(5), 500, range(60))
    for algorithm in ("sweepjoin", "meshjoin"):
        join = ss.SemiStreamJoin(products(range(50)), "id", algorithm=algorithm, memory="1MB")
        push(join, stream.to_batches(max_chunksize=100))
        read_all(join.drain())
        assert answered(join.stats) == 500
        assert join.stats.rows_out == join.stats.rows_matched > 300


def test_charts_have_no_numbers_of_results() -> None:
    """They draw what they are given: no list of measurements stands in their source."""
    for path, node in _sources("benchmarks", "chart.py"):
        if isinstance(node, ast.List | ast.Tuple):
            values = [v.value for v in node.elts if isinstance(v, ast.Constant)]
            numbers = [v for v in values if isinstance(v, float)]
            assert len(numbers) < 3, f"{path}, line {node.lineno}: {numbers}"


def test_what_a_benchmark_runs_is_argument(monkeypatch) -> None:
    """Another size, seed or place is no change of source."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.core.__main__ import parse

    words = {"rows": 5000, "stream": 600, "warm": 70, "rounds": 2, "seed": 9, "out": Path("x")}
    args = parse([word for name, value in words.items() for word in (f"--{name}", str(value))])
    assert {name: getattr(args, name) for name in words} == words
