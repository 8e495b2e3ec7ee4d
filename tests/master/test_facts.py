"""A master in plain numbers."""

from __future__ import annotations

from dataclasses import fields

import pytest

from semistream.master.facts import facts
from semistream.spec import MasterFacts
from tests.helpers.sample_data import MASTERS, build, products

ORDERED = ("memory", "map", "pread")


@pytest.mark.parametrize("kind", MASTERS)
def test_facts_say_what_the_master_says(kind, tmp_path) -> None:
    master = build(kind, products(list(range(500))), "id", tmp_path)
    info, known = master.describe(), facts(master)
    assert (known.rows, known.bytes, known.pages) == (info.rows, info.bytes, info.pages)
    assert known.page_bytes * known.pages >= known.bytes
    assert known.row_bytes * known.rows >= known.bytes
    assert 0 < known.page_bytes <= known.max_page_bytes
    assert (known.indexed, known.unique) == (info.indexed, info.unique)
    assert known.columns == len(info.schema)
    assert known.text_columns == 2  # name and tags
    assert known.in_key_order == (kind in ORDERED)
    assert known.overlapping == (kind in ("parquet", "unsorted", "folder", "delta"))
    assert known.ranges == info.indexed
    assert known.mapped == master.mapped


def test_facts_of_an_empty_master(tmp_path) -> None:
    known = facts(build("memory", products([]), "id", tmp_path))
    assert (known.rows, known.pages) == (0, 0)
    assert known.row_bytes > 0
    assert known.page_bytes > 0


def test_facts_hold_numbers_and_words_only(tmp_path) -> None:
    known = facts(build("map", products([1, 2]), "id", tmp_path))
    kinds = {type(getattr(known, f.name)) for f in fields(MasterFacts)}
    assert kinds <= {int, bool, str, tuple}
    assert known.key == ("id",)
