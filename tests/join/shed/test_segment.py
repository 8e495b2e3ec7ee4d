"""Segments of shed rows: checked before use, and one that is damaged does not stop the others."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream as ss
from semistream.join.shed.remote import Remote, tcp_address
from semistream.join.shed.segment import Gone, Packed, Segment, Unreadable, new_name, read_rows
from semistream.join.shed.target import Folder
from semistream.safety.sealed import HEAD_BYTES, seal
from semistream.testing import assert_same_rows, oracle
from tests.helpers.damage import every_byte, outcomes
from tests.helpers.sample_data import sales
from tests.helpers.shed_data import STREAM_KEYS, TABLE, Run, masters, overloaded, pread

__all__ = ["masters", "pread"]  # fixtures

NAME = "shed-000000000001-0123abcd.arrow"
ROWS = pa.record_batch({"id": pa.array([1, None, 3]), "note": ["a", "bb", None]})
QUESTION = '{"spec": "on id", "columns": []}'


def stored(folder: Path) -> bytes:
    Folder(folder).put(NAME, ROWS, QUESTION)
    return (folder / NAME).read_bytes()


# --- the format -----------------------------------------------------------------------------------


def test_rows_are_used_where_they_lie(tmp_path) -> None:
    folder, rows = Folder(tmp_path), pa.record_batch({"n": np.arange(100_000)})
    size = folder.put(NAME, rows, QUESTION)
    assert size == (tmp_path / NAME).stat().st_size
    before = pa.total_allocated_bytes()
    found = folder.get(NAME)
    assert found.equals(rows)
    assert pa.total_allocated_bytes() - before < 10_000, "mapped, not copied"
    assert found.column(0).buffers()[1].address % 8 == 0
    assert folder.look().segments == [Segment(NAME, 100_000, size, QUESTION)]


def test_what_is_announced_is_what_is_written(tmp_path) -> None:
    for rows in (ROWS, ROWS.slice(1, 1), ROWS.slice(0, 0)):
        packed = Packed(rows, QUESTION)
        with open(tmp_path / "it", "wb") as file:
            packed.write(file)
        assert (tmp_path / "it").stat().st_size == packed.size
        assert read_rows(pa.py_buffer((tmp_path / "it").read_bytes())).equals(rows)


def test_nobody_else_may_read_the_rows(tmp_path) -> None:
    stored(tmp_path / "shed")
    assert (tmp_path / "shed").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "shed" / NAME).stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_way_is_not_followed(tmp_path) -> None:
    folder = Folder(tmp_path / "shed")
    (tmp_path / "shed" / f"{NAME}.tmp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ss.ShedError, match="cannot be written"):
        folder.put(NAME, ROWS, QUESTION)
    assert not (tmp_path / "elsewhere").exists()


def test_a_segment_is_never_replaced(tmp_path) -> None:
    before = stored(tmp_path)
    with pytest.raises(ss.ShedError, match="is there already"):
        Folder(tmp_path).put(NAME, ROWS.slice(1), QUESTION)
    assert (tmp_path / NAME).read_bytes() == before
    assert os.listdir(tmp_path) == [NAME]


def test_names_do_not_run_out(tmp_path) -> None:
    last = new_name(10**12 - 1)
    Folder(tmp_path).put(last, ROWS, QUESTION)
    assert len(new_name(10**12)) == len(last)
    for name in (NAME.replace("0", "\u0660"), f"{NAME}\n", f"../{NAME}", None):
        with pytest.raises(ss.ShedError, match="is not the name of a segment"):
            Folder(tmp_path).get(name)


# --- damage ---------------------------------------------------------------------------------------


def test_every_damage_of_a_segment_is_noticed(tmp_path) -> None:
    raw, folder = stored(tmp_path), Folder(tmp_path)

    def use(content: bytes) -> object:
        (tmp_path / NAME).write_bytes(content)
        return folder.get(NAME).to_pylist()

    damages = list(every_byte(raw))
    assert outcomes(raw, use, damages) == {"Unreadable": len(damages)}


def test_looking_checks_all_but_the_rows(tmp_path) -> None:
    raw, folder = stored(tmp_path), Folder(tmp_path)
    about = HEAD_BYTES + int.from_bytes(raw[16:24], "little") + 8 + HEAD_BYTES

    def use(content: bytes) -> object:
        (tmp_path / NAME).write_bytes(content)
        found = folder.look()
        return found.segments, list(found.unreadable)

    damages = [d for d in every_byte(raw) if "cut" in d[0] or d[1][:about] != raw[:about]]
    assert len(damages) > 2 * about
    assert outcomes(raw, use, damages) == {"OTHER": len(damages)}, "it was a segment, now it is not"
    (tmp_path / NAME).write_bytes(raw[:-1])
    assert "it has" in str(folder.look().unreadable[NAME])


def test_every_damage_is_noticed_through_a_receiver(tmp_path) -> None:
    raw, started = stored(tmp_path), []

    def use(content: bytes) -> object:
        if not started:  # in the child
            started.append(ss.ShedReceiver(tmp_path).start())
        (tmp_path / NAME).write_bytes(content)
        address = tcp_address(started[0].address)
        assert address is not None
        return Remote(*address, 10.0).get(NAME).to_pylist()

    damages = list(every_byte(raw, step=7))
    assert outcomes(raw, use, damages) == {"Unreadable": len(damages)}


@pytest.mark.parametrize("what", ["offsets", "rows", "no batch", "not JSON"])
def test_what_only_looks_like_a_segment_is_refused(what, tmp_path) -> None:
    """A seal shows damage, not malice: the content is looked at, too."""
    about = {"rows": 7 if what == "rows" else 3, "question": QUESTION}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        if what != "no batch":
            writer.write_batch(ROWS)
    content = sink.getvalue().to_pybytes()
    if what == "offsets":  # they lead out of the text
        ends = np.array([0, 1, 3, 3], np.int32).tobytes()
        assert content.count(ends) == 1
        content = content.replace(ends, np.array([0, 1, 3, 1 << 30], np.int32).tobytes())
    text = b"[" * 100_000 if what == "not JSON" else json.dumps(about).encode()
    (tmp_path / NAME).write_bytes(seal("segment", text) + seal("rows", content))
    with pytest.raises(Unreadable, match=f"{NAME} cannot be read.*put it back.*move it away"):
        Folder(tmp_path).get(NAME)


# --- a join goes on -------------------------------------------------------------------------------


def damaged_join(pread, tmp_path: Path) -> tuple[Run, pa.Table, Path, bytes]:
    run, stream = overloaded(pread, tmp_path)
    victim = sorted(tmp_path.iterdir())[1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    return run, stream, victim, whole


def test_a_damaged_segment_does_not_stop_the_others(pread, tmp_path) -> None:
    run, stream, victim, whole = damaged_join(pread, tmp_path)
    lost = read_rows(pa.py_buffer(whole))
    for _ in range(2):  # it says so every time
        with pytest.raises(ss.ShedError, match=f"all other rows.*{victim.name} cannot be read"):
            run.read(run.join.drain())
        run.check()
        assert run.join.stats.shed_out == len(lost)
        assert run.join.stats.rows_in == len(stream)
        assert sorted(tmp_path.iterdir()) == [victim]
    victim.write_bytes(whole)  # as the message asks for
    run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


def test_a_damaged_segment_that_is_moved_away_is_given_up(pread, tmp_path) -> None:
    run, stream, victim, whole = damaged_join(pread, tmp_path)
    lost = read_rows(pa.py_buffer(whole))
    with pytest.raises(ss.ShedError, match="cannot be read"):
        run.read(run.join.drain())
    victim.unlink()
    run.finish()
    assert run.join.stats.rows_in == len(stream) - len(lost)
    kept = stream.filter(pc.invert(pc.is_in(stream["qty"], lost["qty"])))
    assert_same_rows(run.out, oracle(kept, TABLE, "id", "left"))


def test_rows_that_vanish_are_not_given_up(pread, tmp_path) -> None:
    run, stream = overloaded(pread, tmp_path)
    victim = sorted(tmp_path.iterdir())[1]
    whole = victim.read_bytes()
    victim.unlink()
    for _ in range(3):
        with pytest.raises(Gone, match=f"{victim.name} is not there"):
            run.read(run.join.drain())
        run.check()
    victim.write_bytes(whole)
    run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


@pytest.mark.parametrize("place", ["rows", "description"])
def test_a_new_join_finds_a_damaged_segment(place, pread, tmp_path) -> None:
    """Its first one, so that even the stream's columns must be learnt from another."""
    _, stream = overloaded(pread, tmp_path)
    victim, *others = sorted(tmp_path.iterdir())
    whole = victim.read_bytes()
    at = 100 if place == "description" else len(whole) - 100
    victim.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    run = Run(pread, ss.Shedding(tmp_path))
    with pytest.raises(ss.ShedError, match=f"all other rows.*{victim.name} cannot be read"):
        run.read(run.join.drain())
    run.check()
    rows = sum(len(batch) for batch in run.out)
    assert rows > 0
    fresh = Run(pread, ss.Shedding(tmp_path))
    with pytest.raises(ss.ShedError, match=f"{victim.name} cannot be read"):
        fresh.read(fresh.join.drain())  # nothing else is there
    known = Run(pread, ss.Shedding(tmp_path), stream_schema=stream.schema)
    more = sales(random.Random(3), 20, STREAM_KEYS)
    with pytest.raises(ss.ShedError, match=f"{victim.name} cannot be read"):
        known.push(more, random.Random(1), sizes=(20,))
    known.check()
    known.push(more, random.Random(1), sizes=(20,))  # said once, then at the end
    victim.write_bytes(whole)
    known.finish()
    assert len(others) > 0
    assert known.join.stats.rows_in == 40 + len(read_rows(pa.py_buffer(whole)))


def test_a_damaged_segment_at_a_receiver(pread, tmp_path) -> None:
    with ss.ShedReceiver(tmp_path) as receiver:
        run, stream = overloaded(pread, receiver.address)
        first, second, *_ = sorted(tmp_path.iterdir())
        wholes = {path: path.read_bytes() for path in (first, second)}
        first.write_bytes(wholes[first][:-40] + b"?" + wholes[first][-39:])
        second.write_bytes(wholes[second][:30])
        with pytest.raises(ss.ShedError, match=f"{first.name} at tcp.* cannot be read.*1 more"):
            run.read(run.join.drain())
        run.check()
        assert sorted(tmp_path.iterdir()) == [first, second]
        assert len(receiver.segments()) == 1, "a list sees what the description says"
        assert second.name in receiver.unreadable()[0]
        fresh = Run(pread, ss.Shedding(receiver.address), stream_schema=stream.schema)
        with pytest.raises(ss.ShedError, match=r"cannot be read.*1 more"):
            fresh.read(fresh.join.drain())
        for path, whole in wholes.items():
            path.write_bytes(whole)
        run.finish()
        assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


# --- all columns ----------------------------------------------------------------------------------


def wide_streams() -> dict[str, pa.RecordBatch]:
    rng, n = random.Random(1), 800
    keys = pa.array([rng.choice(STREAM_KEYS) for _ in range(n)], pa.int64())
    texts = pa.array([f"text {i % 90} " + "y" * (i % 30) for i in range(n)])
    wide = pa.array([f"{i} " + "z" * 200 for i in range(300)])
    few = pa.DictionaryArray.from_arrays(pa.array([i % 7 for i in range(n)], pa.int16()), wide)
    nulls = pa.array([None, *(f"value {i}" for i in range(20))])
    with_null = pa.DictionaryArray.from_arrays([i % 21 if i % 5 else None for i in range(n)], nulls)
    return {
        "dictionary": pa.record_batch({"id": keys, "n": pa.array(range(n)), "d": few}),
        "NULL in it": pa.record_batch({"id": keys, "n": pa.array(range(n)), "d": with_null}),
        "view": pa.record_batch(
            {"id": keys, "n": pa.array(range(n)), "v": texts.cast("string_view")}
        ),
        "ours": pa.RecordBatch.from_arrays(
            [keys, pa.array(range(n)), texts], ["id", "__origin", "__shed"]
        ),
    }


@pytest.mark.parametrize(
    ("where", "kind"), [*(("folder", kind) for kind in wide_streams()), ("receiver", "dictionary")]
)
def test_any_columns_go_out_and_into_a_snapshot(where, kind, pread, tmp_path) -> None:
    stream = wide_streams()[kind]
    with ss.ShedReceiver(tmp_path) as receiver:
        shed = ss.Shedding(tmp_path / "own" if where == "folder" else receiver.address)
        run = Run(pread, shed, memory=150_000)
        for at in range(0, len(stream), 300):
            run.read(run.join.push(stream.slice(at, 300)))
        assert run.join.stats.shed_out > 0
        files = [*tmp_path.glob("*.arrow"), *tmp_path.glob("own/*.arrow")]
        assert max(file.stat().st_size for file in files) < 12_000, "nothing of other rows"
        fresh = Run(pread, shed, memory=150_000)
        fresh.join.restore(run.join.snapshot())
        assert fresh.join.stats.buffered == run.join.stats.buffered
        run.join = fresh.join
        run.finish()
    assert_same_rows(run.out, oracle(pa.Table.from_batches([stream]), TABLE, "id", "left"))
