"""Load shedding over the network: the receiver, and what happens when it does not answer."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys

import pyarrow as pa
import pytest

import semistream as ss
from semistream.join.shed.remote import Remote
from semistream.join.shed.segment import new_name
from semistream.testing import assert_same_rows, oracle
from tests.helpers.sample_data import sales
from tests.helpers.shed_data import SHEDS, STREAM_KEYS, TABLE, Run, masters, overloaded, pread

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
        Remote(host, int(port), 5.0).put(new_name(1), pa.record_batch({"n": [1, 2]}), "{}")
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
