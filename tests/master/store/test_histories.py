"""Random histories of a store against a plain model: every version, every join, every moment."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import semistream as ss
from semistream.rows import keys
from semistream.testing import check_join, check_master
from tests.helpers.history_data import HISTORIES, KINDS, History
from tests.helpers.sample_data import ALGORITHMS, HOWS, PARAMS, allowed, least_memory

HASHED = ("text", "decimal", "composite", "binary", "date and bool")


@pytest.fixture(autouse=True, scope="module")
def fast_disk():
    """Nothing here is about what survives a crash."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def collisions():
    """Hashes with five values: different keys share codes all the time."""
    real = keys._hash_column

    def few(array, hashes):
        real(array, hashes)
        hashes %= 5

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "_hash_column", few)
        yield


def check_history(name, rows, verbs, seed, folder) -> tuple[History, ss.Store]:
    history = History(Path(folder) / "s", KINDS[name], random.Random(seed))
    store = history.start(rows)
    for verb, number in verbs:
        history.rng.seed(number)
        store = history.change(store, verb)
        assert ss.Store.open(history.path).version == store.version == max(history.tables)
    for version, table in history.tables.items():
        io = history.rng.choice(["map", "pread"])
        old = ss.Store.open(history.path, version, io=io)
        check_master(old, table, KINDS[name].names, rng=seed)
        assert old.verify() == old.describe().pages
    return history, store


def check_joins(history: History, params: ss.Params, how: str, times: float) -> None:
    """A join of one of the versions, with little memory."""
    rng = history.rng
    version, algorithm = rng.choice(list(history.tables)), rng.choice(ALGORITHMS)
    store = ss.Store.open(history.path, version, io=rng.choice(["map", "pread"]))
    stream, params = history.stream(rng.randint(0, 60)), allowed(params, store)
    master = history.tables[version].rename_columns([*history.kind.names, "v", "m"])
    on = history.kind.names
    least = least_memory(store, algorithm, stream, on=on, params=params, columns=["v"])
    note(f"{version=} {algorithm=} {least=}")
    check_join(
        store, stream, on=on, how=how, algorithm=algorithm, memory=int(least * times),
        params=params, columns=["v"], table=master, rng=rng,
    )  # fmt: skip


ARGUMENTS = {
    "verbs": HISTORIES,
    "rows": st.integers(0, 60),
    "seed": st.integers(0, 2**32),
    "params": PARAMS,
    "how": st.sampled_from(HOWS),
    "times": st.sampled_from([1.0, 1.5, 20.0]),
}


@given(name=st.sampled_from(list(KINDS)), **ARGUMENTS)
def test_every_version_of_every_history(name, verbs, rows, seed, params, how, times) -> None:
    with tempfile.TemporaryDirectory() as folder:
        history, _ = check_history(name, rows, verbs, seed, folder)
        check_joins(history, params, how, times)


@given(name=st.sampled_from(HASHED), **ARGUMENTS)
def test_keys_that_share_their_codes(
    collisions, name, verbs, rows, seed, params, how, times
) -> None:
    """A change of one key must neither lose nor repeat rows of another with the same hash."""
    with tempfile.TemporaryDirectory() as folder:
        history, _ = check_history(name, rows, verbs, seed, folder)
        check_joins(history, params, how, times)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("io", ["map", "pread"])
def test_shared_codes_in_every_join(collisions, algorithm, io, tmp_path) -> None:
    history = History(tmp_path / "s", KINDS["text"], random.Random(algorithm))
    store = history.start(80)
    for verb in ("upsert", "delete", "append", "upsert"):
        store = history.change(store, verb)
    assert len(store.manifest.runs) > 1
    opened = ss.Store.open(history.path, io=io)
    table = history.tables[store.version].rename_columns(["id", "v", "m"])
    for how in HOWS:
        check_join(
            opened, history.stream(150), on="id", how=how, algorithm=algorithm, memory="2MB",
            columns=["v"], table=table, rng=7,
        )  # fmt: skip
