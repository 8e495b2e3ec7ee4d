"""MESHJOIN's memory in the paper's accounting, for joins of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.data.products import products
from experiments.data.streams import ZipfStream
from experiments.lib import mesh_sizes
from experiments.lib.cell import HDD, Cell
from experiments.lib.measure import Course
from experiments.lib.paper_cpu import PAPER_CPU
from semistream.planning.laws.published import mesh

ROWS, MEMORY = 40_000, 1_500_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return products(tmp_path_factory.mktemp("mesh"), ROWS)


def meshjoin(store: Path) -> Cell:
    return Cell(store, ZipfStream(ROWS, 0.5), "meshjoin", MEMORY)


def test_the_window_uses_up_the_memory_of_equation_1(store: Path) -> None:
    master = mesh_sizes.facts_of(store)
    for accounting in (mesh_sizes.PAPERS, mesh_sizes.OURS):
        known = mesh_sizes.symbols(master, HDD, PAPER_CPU, accounting)
        buffer = mesh_sizes.whole_pages(200_000, master)
        rows, pages = mesh_sizes.window(known, MEMORY, buffer), buffer / known.v_p
        w = rows * pages / known.n_r
        assert mesh.memory(known, w, pages) == pytest.approx(MEMORY)


@pytest.mark.parametrize("size", [65_000, 520_000])
def test_as_many_rows_wait_as_the_paper_says(store: Path, size: int) -> None:
    master = mesh_sizes.facts_of(store)
    known = mesh_sizes.symbols(master, HDD, PAPER_CPU)
    buffer = mesh_sizes.whole_pages(size, master)
    rows = mesh_sizes.window(known, MEMORY, buffer)
    found = mesh_sizes.as_published(meshjoin(store), known, buffer)
    assert found is not None
    course = Course(found)
    try:
        most = 0
        while course.join.stats.rows_in < 4 * rows:
            course.go()
            most = max(most, course.join.stats.waiting)
    finally:
        course.close()
    # Rows wait in chunks of reads: the model says what is lost to that within a tenth.
    assert most == pytest.approx(rows, rel=0.1)


def test_a_buffer_that_our_plan_never_has_is_refused(store: Path) -> None:
    known = mesh_sizes.symbols(mesh_sizes.facts_of(store), HDD, PAPER_CPU)
    assert mesh_sizes.as_published(meshjoin(store), known, MEMORY - 20_000) is None
    assert mesh_sizes.as_published(meshjoin(store), known, MEMORY + 20_000) is None
