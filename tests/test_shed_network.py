"""Load shedding over the network: the receiver, and what happens when it does not answer."""

from __future__ import annotations

import json
import random
import signal
import socket
import struct
import subprocess
import sys

import pyarrow as pa
import pytest
from sample_data import sales
from shed_data import SHEDS, STREAM_KEYS, TABLE, Run, masters, overloaded, pread

import semistream as ss
from semistream.shed.remote import Remote
from semistream.shed.target import new_name
from semistream.testing import assert_same_rows, oracle

__all__ = ["masters", "pread"]  # fixtures


@pytest.mark.parametrize("algorithm", SHEDS)
def test_over_the_network(algorithm, pread, tmp_path) -> None:
    with ss.ShedReceiver(tmp_path) as receiver:
        run, stream = overloaded(pread, receiver.address, algorithm=algorithm)
        assert list(tmp_path.iterdir())
        run.finish()
        assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))
        assert not list(tmp_path.iterdir())


def test_the_receiver_dies_and_comes_back(pread, tmp_path) -> None:
    receiver = ss.ShedReceiver(tmp_path).start()
    port = int(receiver.address.rsplit(":", 1)[1])
    run, stream = overloaded(pread, receiver.address)
    receiver.stop()
    more = sales(random.Random(8), 2_000, STREAM_KEYS)
    failed = 0
    for batch in more.combine_chunks().to_batches(max_chunksize=500):
        try:
            run.read(run.join.push(batch))
        except ss.ShedError as error:
            failed += "semistream receive" in str(error)
            run.check()
    assert failed
    with pytest.raises(ss.ShedError, match="failed at 'get'"):
        run.read(run.join.drain())
    run.check()
    with ss.ShedReceiver(tmp_path, port=port):
        run.finish()
    every = pa.concat_tables([stream, more])
    assert_same_rows(run.out, oracle(every, TABLE, "id", "left"))


def test_an_answer_that_never_comes_does_not_double_rows(pread, tmp_path) -> None:
    """The receiver stores a segment, and the connection breaks before it can say so."""
    with ss.ShedReceiver(tmp_path) as receiver:
        host, port = "127.0.0.1", int(receiver.address.rsplit(":", 1)[1])
        target = Remote(host, port, 5.0)
        rows = pa.record_batch({"id": [1, 2]})
        real = target._call

        def broken(header, body=None):
            result = real(header, body)
            if header["op"] == "put":
                raise ss.ShedError("injected")
            return result

        target._call = broken
        with pytest.raises(ss.ShedError):
            target.put(new_name(1), rows, 8, "{}")
        assert len(list(tmp_path.iterdir())) == 1
        target._call = real
        target.put(new_name(1), rows, 8, "{}")
        assert len(target.list()) == 1


def test_a_receiver_takes_no_nonsense(tmp_path) -> None:
    with ss.ShedReceiver(tmp_path / "in") as receiver:
        host, port = "127.0.0.1", int(receiver.address.rsplit(":", 1)[1])

        def ask(header: bytes, rest: bytes = b"") -> dict:
            with socket.create_connection((host, port), 5) as s, s.makefile("rwb") as file:
                file.write(struct.pack(">I", len(header)) + header + rest)
                file.flush()
                s.shutdown(socket.SHUT_WR)
                (size,) = struct.unpack(">I", file.read(4))
                return json.loads(file.read(size))

        for name in ("../../etc/passwd", "shed-1.arrow", ""):
            asked = {"op": "put", "name": name, "size": 1}
            assert "not the name of a segment" in ask(json.dumps(asked).encode(), b"x")["error"]
        assert "does not exist" in ask(b'{"op": "fly"}')["error"]
        assert not ask(b"[]")["ok"]
        asked = {"op": "put", "name": new_name(1), "size": 10}
        assert not ask(json.dumps(asked).encode(), b"short")["ok"]
        assert not list((tmp_path / "in").iterdir())
        target = Remote(host, port, 5.0)
        with pytest.raises(ss.ShedError, match="is not here"):
            target.get(new_name(1))
        with pytest.raises(ss.ShedError, match=f"cannot listen on {host}:{port}.*another port"):
            ss.ShedReceiver(tmp_path, port=port).start()


def test_the_first_push_finds_no_receiver(pread, tmp_path) -> None:
    """The batch is taken in all the same: it is not to be pushed again."""
    with ss.ShedReceiver(tmp_path) as receiver:
        target = receiver.address
    stream = sales(random.Random(2), 100, STREAM_KEYS)
    run = Run(pread, ss.Shedding(target))
    with pytest.raises(ss.ShedError, match="failed at 'list'"):
        run.read(run.join.push(stream.combine_chunks().to_batches()[0]))
    with ss.ShedReceiver(tmp_path, port=int(target.rsplit(":", 1)[1])):
        run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


def test_the_command_receives_until_interrupted(tmp_path) -> None:
    words = ["receive", "--dir", str(tmp_path), "--port", "0", "--json"]
    child = subprocess.Popen(
        [sys.executable, "-m", "semistream.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # In the background of a shell tests are born deaf to it, and so would the child be.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert child.stderr is not None
        address = child.stderr.readline().split()[2].rstrip(";")
        host, port = address.removeprefix("tcp://").split(":")
        Remote(host, int(port), 5.0).put(new_name(1), pa.record_batch({"n": [1, 2]}), 8, "{}")
    finally:
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=20)
    assert child.returncode == 0
    assert json.loads(out)["rows"] == 2


def test_a_silent_receiver_is_not_waited_for(pread) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        shed = ss.Shedding(target, timeout=0.2)
        with pytest.raises(ss.ShedError, match="timed out"):
            Run(pread, shed, stream_schema=TABLE.select(["id"]).schema)
