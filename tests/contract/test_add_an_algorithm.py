"""CONTRIBUTING's recipe for a new algorithm, followed literally: one row, and at most one file."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss
from semistream import disk, spec
from semistream.cli import main
from semistream.cli.calibrate.samples import measured
from semistream.disk import base
from semistream.errors import MasterError, SpecError
from semistream.master import Master, facts
from semistream.planning import has_law, least_memory_for, plan, tune
from semistream.planning.machine import DEFAULT_MACHINE
from semistream.planning.work import Case
from semistream.spec import Algorithm, Params, Workload
from semistream.testing import assert_same_rows, check_join, oracle
from tests.helpers.recipe import blocks, new_file
from tests.helpers.sample_data import HOWS, MASTERS, build, least_memory, products, sales

ROW, FILE = blocks("Add an algorithm")
KEYS = [k // 3 for k in range(300)] + [None] * 3
STREAM_KEYS = [*range(0, 130, 2), *[77] * 20, None]


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Algorithm]:
    """Both steps of the recipe, undone afterwards."""
    before = dict(spec.DISK_FACTS), dict(base._PHASES), dict(spec.ALGORITHMS)
    row = eval(ROW, {"Algorithm": Algorithm})
    spec.ALGORITHMS[row.name] = row
    folder = tmp_path / "more"
    folder.mkdir()
    try:
        with new_file(disk, "toy", FILE, folder):
            yield row
    finally:
        for now, then in zip((spec.DISK_FACTS, base._PHASES, spec.ALGORITHMS), before, strict=True):
            now.clear()
            now.update(then)


@pytest.fixture
def stream() -> pa.Table:
    return sales(random.Random(5), 500, STREAM_KEYS)


def _joined(join: ss.SemiStreamJoin, stream: pa.Table) -> list[pa.RecordBatch]:
    out = []
    for batch in stream.to_batches(max_chunksize=90):
        out += list(join.push(batch))
    return [*out, *join.drain()]


# --- it joins ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", MASTERS)
def test_it_joins_on_every_kind_of_master(toy, kind, how, stream, tmp_path) -> None:
    table = products(KEYS)
    master = build(kind, table, "id", tmp_path)
    if not master.describe().indexed:
        with pytest.raises(MasterError, match="toy needs an index"):
            ss.SemiStreamJoin(master, "id", how, algorithm="toy")
        return
    least = least_memory(master, "toy", stream, on="id")
    for seed, memory in enumerate((least + 20_000, least + 300_000, 8_000_000)):
        asked = {"on": "id", "how": how, "algorithm": "toy", "memory": memory, "rng": seed}
        check_join(master, stream, table=table, **asked)


def test_its_front_stage_learns_what_it_finds(toy, tmp_path) -> None:
    table = products(range(2_000))
    stream = sales(random.Random(1), 20_000, [*range(40)])
    with ss.SemiStreamJoin(table, "id", algorithm="toy", memory=1_000_000) as join:
        got = _joined(join, stream)
        assert join.stats.front_hits > 15_000
    assert_same_rows(got, oracle(stream, table, "id", "inner"), "toy")


def test_a_snapshot_goes_on_in_another_join(toy, stream) -> None:
    table = products(KEYS)
    asked = {"algorithm": "toy", "memory": 1_000_000, "params": Params(piece_rows=7)}
    first, second = (ss.SemiStreamJoin(table, "id", "left", **asked) for _ in range(2))
    got = list(first.push(stream.to_batches()[0].slice(0, 250)))
    assert first.stats.waiting > 0
    second.restore(first.snapshot())
    assert second.stats.waiting == first.stats.waiting
    got += list(second.push(stream.to_batches()[0].slice(250)))
    got += list(second.drain())
    assert_same_rows(got, oracle(stream, table, "id", "left"), "toy")


def test_a_read_that_fails_loses_nothing(toy, stream, tmp_path, monkeypatch) -> None:
    table = products(KEYS)
    master = build("pread", table, "id", tmp_path)
    join = ss.SemiStreamJoin(master, "id", "left", algorithm="toy", memory=1_000_000)
    got, real, calls = list(join.push(stream.to_batches()[0])), master.read, []

    def fails(*words: object) -> object:
        calls.append(words)
        if len(calls) == 3:
            raise MasterError("the disk is gone")
        return real(*words)

    monkeypatch.setattr(master, "read", fails)
    answers = iter(join.drain())
    with pytest.raises(MasterError, match="the disk is gone"):
        got.extend(answers)
    got += list(join.drain())
    assert_same_rows(got, oracle(stream, table, "id", "left"), "toy")


# --- plans ---------------------------------------------------------------------------------------


def test_auto_lists_it_and_never_chooses_it(toy, stream, tmp_path) -> None:
    assert not has_law(toy)
    for kind in MASTERS:
        folder = tmp_path / kind
        folder.mkdir()
        master = build(kind, products(KEYS), "id", folder)
        for memory in (least_memory(master, "meshjoin", stream, on="id") + 5_000, 64_000_000):
            with ss.SemiStreamJoin(master, "id", memory=memory) as join:
                assert join.algorithm.name != "toy"
                indexed = master.describe().indexed
                why = "has no cost law" if indexed else "needs an index on id"
                assert f"toy: {why}" in join.explain()
                got = _joined(join, stream)
            assert_same_rows(got, oracle(stream, products(KEYS), "id", "inner"), kind)


def _facts() -> ss.MasterFacts:
    rows = 100_000
    table = pa.table({"id": np.arange(rows), "price": np.ones(rows)})
    return facts(ss.open_master(table, "id"))


def test_a_plan_has_it_last_with_a_reason(toy) -> None:
    found = plan(_facts(), Workload(), 2_000_000, DEFAULT_MACHINE)
    last = found.alternatives[-1]
    assert (last.algorithm, last.rate) == ("toy", None)
    assert "has no cost law" in last.reason
    among = plan(_facts(), Workload(), 2_000_000, DEFAULT_MACHINE, among=["toy", "inlj"])
    assert among.algorithm.name == "inlj"
    assert [other.algorithm for other in among.alternatives] == ["toy"]


def test_a_plan_is_not_remembered_across_families() -> None:
    """Whoever planned before the row was there must not hide it, nor the other way round."""
    known = _facts()
    without = plan(known, Workload(), 2_000_000, DEFAULT_MACHINE)
    row = Algorithm("late", "groups", "nowhere", "index", 0.3, "nobody", "came late")
    spec.ALGORITHMS["late"] = row
    try:
        names = [a.algorithm for a in plan(known, Workload(), 2_000_000).alternatives]
        assert "late" in names
    finally:
        del spec.ALGORITHMS["late"]
    again = plan(known, Workload(), 2_000_000, DEFAULT_MACHINE)
    assert again.alternatives == without.alternatives


def test_who_asks_for_a_prediction_by_name_is_told(toy) -> None:
    said = "toy has no cost law, so nothing can be predicted for it.*sweepjoin"
    case = Case(toy, _facts(), Workload(), 2_000_000)
    with pytest.raises(SpecError, match=said):
        plan(_facts(), Workload(), 2_000_000, among=["toy"])
    with pytest.raises(SpecError, match=said):
        tune(case, DEFAULT_MACHINE)
    with pytest.raises(SpecError, match=said):
        least_memory_for(10_000, case, DEFAULT_MACHINE)


def test_a_join_that_names_it_says_why_nothing_was_predicted(toy) -> None:
    with ss.SemiStreamJoin(products(KEYS), "id", algorithm="toy", memory=1_000_000) as join:
        assert join.explain().startswith(f"toy: {toy.help}\n  not planned: it has no cost law")
        assert join.params == Params()


def test_memory_is_divided_as_its_row_says(toy, stream) -> None:
    shares = []
    for params in (Params(), Params(front_share=0.6), Params(front_share=0.0)):
        join = ss.SemiStreamJoin(
            products(range(2_000)), "id", algorithm="toy", memory=3_000_000, params=params
        )
        list(join.push(stream.to_batches()[0]))
        shares.append(join.division["front"] / (join.division["front"] + join.division["backlog"]))
    assert shares == pytest.approx([0.3, 0.6, 0.0], abs=0.02)


def test_it_runs_with_adapt(toy, stream) -> None:
    table = products(KEYS)
    check_join(table, stream, on="id", algorithm="toy", memory=1_000_000, adapt=True)


def test_calibration_leaves_it_out(toy) -> None:
    assert measured() == [name for name in spec.ALGORITHMS if name != "toy"]


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, stream: pa.Table) -> Path:
    ss.Store.create(tmp_path / "products", products(range(3_000)), "id")
    pq.write_table(stream, tmp_path / "sales.parquet")
    return tmp_path


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    return code, *capsys.readouterr()


def test_the_command_plan(toy, folder, capsys) -> None:
    words = ("plan", folder / "products", "--on", "id", "--memory", "1MB")
    code, text, _ = _run(capsys, *words)
    assert code == 0
    assert "toy: has no cost law" in text
    _, text, _ = _run(capsys, *words, "--json")
    listed = {a["algorithm"]: a for a in json.loads(text)["alternatives"]}
    assert listed["toy"]["predicted_rate"] is None
    code, _, said = _run(capsys, *words, "--rate", 1_000)
    assert code == 0, said
    for more in ((), ("--rate", 1_000)):
        code, _, said = _run(capsys, *words, "--algorithm", "toy", *more)
        assert code == 1
        assert "toy has no cost law" in said


def test_the_command_enrich(toy, folder, capsys) -> None:
    out = folder / "out.parquet"
    words = ("enrich", folder / "sales.parquet", out, "--master", folder / "products", "--on", "id")
    code, _, said = _run(capsys, *words, "--algorithm", "toy", "--how", "left")
    assert code == 0, said
    table = pa.Table.from_batches(ss.Store.open(folder / "products").batches())
    expected = oracle(pq.read_table(folder / "sales.parquet"), table, "id", "left")
    assert_same_rows(pq.read_table(out).to_batches(), expected, "toy")


# --- the others, and the files themselves --------------------------------------------------------


@pytest.mark.parametrize("algorithm", sorted(set(ss.ALGORITHMS)))
def test_the_others_work_beside_it(toy, algorithm, stream) -> None:
    check_join(products(KEYS), stream, on="id", algorithm=algorithm, memory=8_000_000)
    found = plan(_facts(), Workload(), 40_000_000, among=[algorithm])
    assert found.algorithm.name == algorithm


def test_afterwards_it_is_gone(stream) -> None:
    with pytest.raises(SpecError, match="algorithm='toy' does not exist"):
        ss.SemiStreamJoin(products(KEYS), "id", algorithm="toy")


def test_a_row_alone_is_enough_where_both_parts_exist(stream, tmp_path, monkeypatch) -> None:
    """The first step alone: then there is a cost law, too."""
    row = Algorithm("short", "groups", "scan", "nothing", 0.2, "nobody", "the short way")
    monkeypatch.setitem(spec.ALGORITHMS, "short", row)
    assert has_law(row)
    for kind in MASTERS:
        folder = tmp_path / kind
        folder.mkdir()
        master: Master = build(kind, products(KEYS), "id", folder)
        memory = least_memory(master, "short", stream, on="id") + 100_000
        check_join(master, stream, on="id", algorithm="short", memory=memory, table=products(KEYS))
    found = plan(_facts(), Workload(), 2_000_000, among=["short"])
    twin = plan(_facts(), Workload(), 2_000_000, among=["cmeshjoin"])
    assert found.chosen.rate == pytest.approx(twin.chosen.rate, rel=0.05)


def test_a_row_without_its_file_is_refused(monkeypatch) -> None:
    row = Algorithm("half", "groups", "nowhere", "index", 0.2, "nobody", "half done")
    monkeypatch.setitem(spec.ALGORITHMS, "half", row)
    with pytest.raises(SpecError, match="no disk phase 'nowhere'; write it into a file"):
        ss.SemiStreamJoin(products(KEYS), "id", algorithm="half")
    assert ss.SemiStreamJoin(products(KEYS), "id").algorithm.name != "half"


def test_a_word_belongs_to_one_class(toy, tmp_path) -> None:
    folder = tmp_path / "again"
    folder.mkdir()
    with (
        pytest.raises(TypeError, match="two disk phases have the word 'toy'"),
        new_file(disk, "toy_again", FILE, folder),
    ):
        pass


USES_IT = """
import sys
sys.path[:0] = [sys.argv[1]]
import pyarrow as pa, semistream as ss
from semistream.cli import main
assert sys.argv[1] in ss.__file__, ss.__file__
master, stream = pa.table({"id": range(99), "x": range(99)}), pa.table({"id": [3, 3, 98, 99]})
join = ss.SemiStreamJoin(master, "id", algorithm="toy", memory=300_000)
out = [*join.push(stream.to_batches()[0]), *join.drain()]
assert sorted(pa.Table.from_batches(out)["x"].to_pylist()) == [3, 3, 98], out
auto = ss.SemiStreamJoin(master, "id", memory=300_000)
assert "toy: has no cost law" in auto.explain(), auto.explain()
"""


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
def test_the_two_edits_are_all_in_a_copy_of_the_package(zipped, tmp_path) -> None:
    """The row written into spec.py, the file into disk/, and nothing else."""
    here, package = tmp_path / "copy", Path(ss.__file__).parent
    for path in package.rglob("*.py"):
        copy = here / "semistream" / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    edited = here / "semistream" / "spec.py"
    before, after = edited.read_text().split("_FAMILY = (\n")
    edited.write_text(f"{before}_FAMILY = (\n    {ROW.strip()},\n{after}")
    (here / "semistream" / "disk" / "toy.py").write_text(FILE)
    if zipped:
        with zipfile.ZipFile(tmp_path / "semistream.zip", "w") as archive:
            for path in here.rglob("*.py"):
                archive.write(path, path.relative_to(here))
        here = tmp_path / "semistream.zip"
    environment = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", USES_IT, str(here)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
