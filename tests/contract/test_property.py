"""Random questions against two oracles that share no code with the join, and joins among them."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
from hypothesis import given, note
from hypothesis import strategies as st

import semistream as ss
from semistream.testing import assert_same_rows, check_join, oracle, rebatch, rows_of
from tests.helpers.sample_data import (
    ALGORITHMS,
    HOWS,
    KEY_VALUES,
    PARAMS,
    allowed,
    build,
    least_memory,
)

DUCKDB_KEYS = [  # what DuckDB compares exactly as we do
    t
    for t in KEY_VALUES
    if not pa.types.is_duration(t)
    and not pa.types.is_decimal256(t)
    and t not in (pa.date64(), pa.timestamp("ns", "Europe/Vienna"), pa.string_view())
]
SQL = {
    "inner": "SELECT n, v FROM s JOIN m ON {on}",
    "left": "SELECT n, v FROM s LEFT JOIN m ON {on}",
    "semi": "SELECT n FROM s SEMI JOIN m ON {on}",
    "anti": "SELECT n FROM s ANTI JOIN m ON {on}",
}


@st.composite
def questions(draw: st.DrawFn, most_keys: int = 2) -> tuple[pa.Table, pa.Table, list[str]]:
    """(stream, master, key columns): few values, so that keys repeat, miss and are NULL."""
    types = draw(st.lists(st.sampled_from(DUCKDB_KEYS), min_size=1, max_size=most_keys))
    names = [f"k{i}" for i in range(len(types))]
    tables = []
    for number in ("n", "v"):
        rows = draw(st.integers(0, 60))
        columns = {
            name: pa.array(
                draw(
                    st.lists(st.sampled_from([*KEY_VALUES[t], None]), min_size=rows, max_size=rows)
                ),
                t,
            )
            for name, t in zip(names, types, strict=True)
        }
        tables.append(pa.table({**columns, number: pa.array(range(rows), pa.int64())}))
    return tables[0], tables[1], names


def duck(stream: pa.Table, master: pa.Table, names: list[str], how: str) -> list[tuple]:
    with duckdb.connect() as connection:
        connection.register("s", stream)
        connection.register("m", master)
        on = " AND ".join(f"s.{name} = m.{name}" for name in names)
        return connection.execute(SQL[how].format(on=on)).fetchall()


@given(
    question=questions(),
    how=st.sampled_from(HOWS),
    algorithm=st.sampled_from(ALGORITHMS),
    kind=st.sampled_from(["memory", "map", "pread"]),
    times=st.sampled_from([1.0, 1.3, 4.0, 50.0]),
    params=PARAMS,
    seed=st.integers(0, 2**32 - 1),
)
def test_against_two_oracles(question, how, algorithm, kind, times, params, seed) -> None:
    stream, table, names = question
    with tempfile.TemporaryDirectory() as folder:
        master = build(kind, table, names, Path(folder))
        params = allowed(params, master)
        least = least_memory(master, algorithm, stream, on=names, params=params)
        note(f"{least=}")
        memory = int(least * times)
        check_join(
            master,
            stream,
            on=names,
            how=how,
            algorithm=algorithm,
            memory=memory,
            params=params,
            table=table,
            rng=seed,
        )
        batches = rebatch(stream, random.Random(seed))
        out = list(ss.join_batches(batches, master, names, how, None, algorithm, memory, params))
        shown = ["n", "v"] if how in ("inner", "left") else ["n"]
        got = rows_of([batch.select(shown) for batch in out])
        assert_same_rows(got, duck(stream, table, names, how), "against DuckDB")
        master.close()


@given(question=questions(), how=st.sampled_from(HOWS))
def test_the_oracles_agree(question, how) -> None:
    stream, table, names = question
    mine = [row[len(names) :] for row in oracle(stream, table, names, how)]
    assert_same_rows(mine, duck(stream, table, names, how))


@given(question=questions(most_keys=3), seed=st.integers(0, 2**32 - 1))
def test_algorithms_against_each_other(question, seed) -> None:
    """Every algorithm, the same rows; and semi + anti = the stream, left = inner + anti."""
    stream, table, names = question
    rng = random.Random(seed)
    answers: dict[str, list] = {}
    for how in HOWS:
        found = []
        for algorithm in ALGORITHMS:
            batches = rebatch(stream, rng)
            out = ss.join_batches(batches, table, names, how, algorithm=algorithm, memory="2MB")
            found.append(rows_of(list(out)))
        for other in found[1:]:
            assert_same_rows(other, found[0], f"{how}: algorithms differ")
        answers[how] = found[0]
    assert_same_rows(answers["semi"] + answers["anti"], stream)
    lone = [(*row, None) for row in answers["anti"]]
    assert_same_rows(answers["inner"] + lone, answers["left"])


@given(
    keys=st.lists(st.integers(-5, 60) | st.none(), max_size=300),
    rows=st.integers(1, 80),
    hot=st.integers(0, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_small_cache_over_a_moving_hot_set(keys, rows, hot, seed) -> None:
    """The front stage learns, replaces and forgets without ever showing in the result."""
    rng = random.Random(seed)
    table = pa.table({"id": pa.array([rng.randrange(60) for _ in range(rows)]), "v": range(rows)})
    hotter = [hot if k is not None and k > 40 else k for k in keys]
    stream = pa.table({"id": pa.array(keys + hotter, pa.int64()), "n": range(2 * len(keys))})
    for algorithm in ("sweepjoin", "inlj"):
        check_join(
            table,
            stream,
            on="id",
            how="left",
            algorithm=algorithm,
            memory=200_000,
            params=ss.Params(threshold=1, front_share=0.5, piece_rows=17),
            rng=seed,
        )
