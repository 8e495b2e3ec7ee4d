"""The receiver among strangers: the token, and bounds for everything that is sent to it."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import semistream as ss
from semistream.cli import main
from semistream.join.shed import keeper, receiver, wire
from semistream.join.shed.remote import Remote, tcp_address
from semistream.join.shed.segment import Packed, new_name
from semistream.join.shed.target import Folder
from semistream.join.shed.wire import Channel, WireError
from semistream.safety.sealed import seal
from semistream.testing import assert_same_rows, oracle
from tests.helpers.shed_data import TABLE, Run, masters, overloaded, pread

__all__ = ["masters", "pread"]  # fixtures

TOKEN = "a token of twenty-five ch"
NAME = new_name(1)
ROWS = pa.record_batch({"id": [1, 2, 3], "note": ["a", None, "c" * 500]})


class Tapped:
    """A socket that remembers what was sent."""

    def __init__(self, real: socket.socket) -> None:
        self._real, self.sent = real, b""

    def sendall(self, data: Any) -> None:
        self.sent += bytes(data)
        self._real.sendall(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def connected(target: ss.ShedReceiver) -> Iterator[socket.socket]:
    with socket.create_connection(tcp_address(target.address), 20) as connection:
        yield connection


@contextmanager
def channel_to(target: ss.ShedReceiver, token: str | None = None) -> Iterator[Channel]:
    with connected(target) as connection:
        channel = Channel(connection, token, receiver=False)
        channel.allow(20)
        channel.introduce()
        yield channel


def ask(target: ss.ShedReceiver, token: str | None = None, **words: Any) -> dict[str, Any]:
    with channel_to(target, token) as channel:
        channel.send(words)
        return channel.receive()


def remote(target: ss.ShedReceiver, token: str | None = None) -> Remote:
    return Remote(*tcp_address(target.address), 20.0, token)


def works(target: ss.ShedReceiver, token: str | None = None) -> bool:
    name = new_name(7)
    remote(target, token).put(name, ROWS, "{}")
    same = remote(target, token).get(name).equals(ROWS)
    remote(target, token).delete([name])
    return same


# --- the token ------------------------------------------------------------------------------------


def test_a_join_with_the_token(pread, tmp_path) -> None:
    with ss.ShedReceiver(tmp_path, token=TOKEN) as there:
        run, stream = overloaded(pread, ss.Shedding(there.address, token=TOKEN))
        run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


@pytest.mark.parametrize(
    ("theirs", "ours", "message"),
    [
        (TOKEN, None, "it wants a token; give both sides the same"),
        (None, TOKEN, "it has no token; give both sides the same"),
        (TOKEN, TOKEN + "!", "the other side has another token"),
    ],
)
def test_another_token_is_refused(theirs, ours, message, pread, tmp_path) -> None:
    Folder(tmp_path).put(NAME, ROWS, "{}")
    with ss.ShedReceiver(tmp_path, token=theirs) as there:
        target = remote(there, ours)
        for call in (
            lambda: target.put(new_name(2), ROWS, "{}"),
            lambda: target.get(NAME),
            lambda: target.delete([NAME]),
            target.look,
        ):
            with pytest.raises(ss.ShedError, match=message):
                call()
        assert os.listdir(tmp_path) == [NAME]
        shed = ss.Shedding(there.address, token=ours)
        with pytest.raises(ss.ShedError, match=message):
            Run(pread, shed, stream_schema=TABLE.select(["id"]).schema)


def test_the_token_never_travels_and_never_shows(tmp_path) -> None:
    heard = b""
    with ss.ShedReceiver(tmp_path, token=TOKEN) as there:
        with connected(there) as connection:
            tapped = Tapped(connection)
            channel = Channel(tapped, TOKEN, receiver=False)  # type: ignore[arg-type]
            channel.allow(20)
            channel.introduce()
            channel.send({"op": "list"})
            assert channel.receive()["ok"]
            heard = tapped.sent
        assert TOKEN not in repr(ss.Shedding(there.address, token=TOKEN))
        assert TOKEN not in repr(there)
    assert heard
    assert TOKEN.encode() not in heard


def test_what_was_heard_is_of_no_use(tmp_path) -> None:
    """Neither on another connection nor again on the same one."""
    Folder(tmp_path).put(NAME, ROWS, "{}")
    with ss.ShedReceiver(tmp_path, token=TOKEN) as there:
        with connected(there) as connection:
            tapped = Tapped(connection)
            channel = Channel(tapped, TOKEN, receiver=False)  # type: ignore[arg-type]
            channel.allow(20)
            channel.introduce()
            channel.send({"op": "get", "name": NAME})
            assert channel.receive()["ok"]
        with connected(there) as connection:
            assert len(connection.recv(25)) == 25
            connection.sendall(tapped.sent)
            (size,) = struct.unpack(">I", connection.recv(4))
            answer = connection.recv(32 + size)[32:]
            assert json.loads(answer) == {
                "ok": False,
                "error": "the other side has another token",
                "kind": "",
            }


def test_an_impostor_is_not_given_rows(tmp_path) -> None:
    """Who cannot show the token is not a receiver, whatever it answers."""

    def impostor(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            channel = Channel(connection, "x" * 20, receiver=True)
            channel.allow(20)
            channel.welcome()
            with pytest.raises(WireError):
                channel.receive()
            channel.send({"ok": True})

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=impostor, args=(server,))
        thread.start()
        target = Remote("127.0.0.1", server.getsockname()[1], 20.0, TOKEN)
        with pytest.raises(ss.ShedError, match="another token"):
            target.put(NAME, ROWS, "{}")
        thread.join(20)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::"])
def test_others_are_let_in_with_a_token_only(host, tmp_path) -> None:
    with pytest.raises(ss.SpecError, match=r"lets other machines in.*token=.*127\.0\.0\.1"):
        ss.ShedReceiver(tmp_path / "in", host)
    assert not (tmp_path / "in").exists()
    with pytest.raises(ss.SpecError, match="at least 16 characters"):
        ss.ShedReceiver(tmp_path / "in", host, token="short")


def test_addresses(tmp_path) -> None:
    with ss.ShedReceiver(tmp_path, "0.0.0.0", token=TOKEN) as there:
        _, port = tcp_address(there.address)
        Remote("127.0.0.1", port, 20.0, TOKEN).put(NAME, ROWS, "{}")
    with ss.ShedReceiver(tmp_path, "localhost") as there:
        assert len(remote(there).look().segments) == 1
    for port in (-1, 1 << 16, "7070", True):
        with pytest.raises(ss.SpecError, match=r"port=.* must be a number from 0 to"):
            ss.ShedReceiver(tmp_path, port=port)
    with pytest.raises(ss.ShedError, match=r"cannot listen on 'no\.such\.host\.invalid'"):
        ss.ShedReceiver(tmp_path, "no.such.host.invalid")
    with pytest.raises(ss.SpecError, match="most_bytes='much'"):
        ss.ShedReceiver(tmp_path, most_bytes="much")


def test_ipv6(tmp_path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with ss.ShedReceiver(tmp_path, "::1") as there:
        assert there.address.startswith("tcp://[::1]:")
        assert works(there)


# --- nonsense -------------------------------------------------------------------------------------


def test_garbage_is_answered_and_survived(tmp_path) -> None:
    with ss.ShedReceiver(tmp_path) as there:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n" * 9, b"\0" * 5_000, os.urandom(9_000), b"", b"x"):
            with connected(there) as connection:
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := connection.recv(1 << 16):
                    answer += piece
                assert b'"ok": false' in answer
        for words, message in [
            ({"op": "fly"}, "'fly' does not exist; ask put, get, delete or list"),
            ({}, "does not exist"),
            ({"op": "put", "name": "../../etc/passwd", "size": 9}, "not the name of a segment"),
            ({"op": "put", "name": NAME + "\n", "size": 9}, "not the name of a segment"),
            ({"op": "put", "name": ["x"], "size": 9}, "not the name of a segment"),
            ({"op": "get", "name": "../x"}, "not the name of a segment"),
            ({"op": "get"}, "not the name of a segment"),
            ({"op": "delete", "names": ["shed-1.arrow"]}, "not the name of a segment"),
            ({"op": "delete", "names": "x"}, "is not a list"),
            ({"op": "put", "name": NAME, "size": 0}, "is not taken"),
            ({"op": "put", "name": NAME, "size": -5}, "is not taken"),
            ({"op": "put", "name": NAME, "size": "9"}, "is not taken"),
            ({"op": "put", "name": NAME, "size": 1 << 62}, "is not taken"),
        ]:
            answer = ask(there, **words)
            assert not answer["ok"]
            assert message in answer["error"]
        assert not list(tmp_path.iterdir())
        assert works(there)


@pytest.mark.parametrize("content", [b"[]", b"17", b"\xff\xfe", b"[" * 8_000, b"{"])
def test_frames_that_are_not_objects(content, tmp_path) -> None:
    with ss.ShedReceiver(tmp_path) as there, channel_to(there) as channel:
        proof = channel._proof(b"J", 0, content)
        channel._send(struct.pack(">I", len(content)) + proof + content)
        assert "a frame that is not" in channel.receive()["error"]


def test_a_huge_frame_is_not_read(tmp_path) -> None:
    with ss.ShedReceiver(tmp_path) as there:
        for size in (wire.MOST_REQUEST + 1, (1 << 32) - 1):
            with channel_to(there) as channel:
                channel._send(struct.pack(">I", size) + bytes(50_000))
                assert f"a frame of {size} bytes" in channel.receive()["error"]
        assert works(there)


def test_only_segments_are_taken(tmp_path) -> None:
    packed = Packed(ROWS, "{}")
    with open(tmp_path / "it", "wb") as file:
        packed.write(file)
    raw = (tmp_path / "it").read_bytes()
    flipped = raw[:-60] + bytes([raw[-60] ^ 1]) + raw[-59:]
    other = seal("segment", b"{}") + seal("rows", b"")
    with ss.ShedReceiver(tmp_path / "in") as there:
        for content in (b"x" * 500, flipped, raw[:-1], raw + b"\0", seal("rows", raw), other):
            with channel_to(there) as channel:
                channel.send({"op": "put", "name": NAME, "size": len(content)})
                assert channel.receive()["ok"]
                digest = channel.send_body(len(content), lambda out, c=content: out.write(c))
                channel.send({"sha256": digest})
                assert "not a segment" in channel.receive()["error"]
        with channel_to(there) as channel:
            channel.send({"op": "put", "name": NAME, "size": len(raw)})
            assert channel.receive()["ok"]
            channel.send_body(len(raw), lambda out: out.write(raw))
            channel.send({"sha256": "0" * 64})
            assert "garbled on its way" in channel.receive()["error"]
        assert not list((tmp_path / "in").iterdir())
        assert works(there)


@pytest.mark.parametrize("when", ["in the middle", "before commit", "no commit"])
def test_a_put_that_is_not_finished_leaves_nothing(when, tmp_path) -> None:
    packed = Packed(ROWS, "{}")
    with ss.ShedReceiver(tmp_path) as there:
        with channel_to(there) as channel:
            channel.send({"op": "put", "name": NAME, "size": packed.size})
            assert channel.receive()["ok"]
            if when == "in the middle":
                channel._send(b"x" * 50)
            else:
                channel.send({"sha256": channel.send_body(packed.size, packed.write)})
                assert channel.receive()["ok"]
                assert [p.name for p in tmp_path.iterdir()] == [f"{NAME}.tmp"]
            if when == "no commit":
                channel.send({"op": "rollback"})
                assert "ends with commit" in channel.receive()["error"]
        keeps = there._keeper
        with keeps._changed:
            assert keeps._changed.wait_for(lambda: not keeps._puts, 20)
        assert not list(tmp_path.iterdir())
        assert keeps._bytes == 0
        assert works(there)


@pytest.mark.parametrize("how", ["again", "while it is being stored"])
def test_a_name_is_stored_once(how, tmp_path) -> None:
    """And a second put of it, however it ends, takes nothing away."""
    packed = Packed(ROWS, "{}")
    with ss.ShedReceiver(tmp_path) as there:
        if how == "again":
            remote(there).put(NAME, ROWS, "{}")
            refused = ask(there, op="put", name=NAME, size=100)
        else:
            with channel_to(there) as channel:
                channel.send({"op": "put", "name": NAME, "size": packed.size})
                assert channel.receive()["ok"]
                refused = ask(there, op="put", name=NAME, size=100)
                channel.send({"sha256": channel.send_body(packed.size, packed.write)})
                assert channel.receive()["ok"]
                channel.send({"op": "commit"})
                assert channel.receive()["ok"]
        assert "is there already" in refused["error"]
        assert remote(there).get(NAME).equals(ROWS)


# --- bounds ---------------------------------------------------------------------------------------


def test_the_disk_has_a_bound(pread, tmp_path) -> None:
    packed = Packed(ROWS, "{}")
    most = 3 * packed.size
    with ss.ShedReceiver(tmp_path, most_bytes=most) as there:
        target = remote(there)
        names = [new_name(n) for n in range(5)]
        for name in names[:3]:
            target.put(name, ROWS, "{}")
        with pytest.raises(ss.ShedError, match=r"it is full: it keeps.*most_bytes"):
            target.put(names[3], ROWS, "{}")
        target.delete([names[0], names[0]])
        target.put(names[3], ROWS, "{}")
        (tmp_path / names[1]).unlink()  # by hand
        target.put(names[4], ROWS, "{}")
        with pytest.raises(ss.ShedError, match="is full"):
            target.put(names[0], ROWS, "{}")
        assert "is not taken" in ask(there, op="put", name=new_name(9), size=most + 1)["error"]
    with (
        ss.ShedReceiver(tmp_path, most_bytes=most) as there,
        pytest.raises(ss.ShedError, match="is full"),
    ):  # what is there counts
        remote(there).put(names[0], ROWS, "{}")


def test_a_join_goes_on_when_the_receiver_is_full(pread, tmp_path) -> None:
    with ss.ShedReceiver(tmp_path, most_bytes=12_000) as there:
        run, stream = Run(pread, ss.Shedding(there.address)), TABLE
        stream = pa.table({"id": list(range(430)) * 5, "n": list(range(430 * 5))})
        failed = 0
        for batch in stream.to_batches(max_chunksize=430):
            try:
                run.read(run.join.push(batch))
            except ss.ShedError as error:
                failed += "is full" in str(error)
                run.check()
        assert failed
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 12_000
        run.finish()
    assert_same_rows(run.out, oracle(stream, TABLE, "id", "left"))


def test_segments_have_a_bound(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(keeper, "MOST_SEGMENT", 1_000)
    with (
        ss.ShedReceiver(tmp_path) as there,
        pytest.raises(ss.ShedError, match=r"bytes is not taken; 1\.0 kB is most"),
    ):
        remote(there).put(NAME, pa.record_batch({"n": range(500)}), "{}")
    assert not list(tmp_path.iterdir())


def test_strangers_have_little_time(tmp_path, monkeypatch) -> None:
    """One who is silent, and one who sends a byte now and then."""
    monkeypatch.setattr(receiver, "HELLO", 0.3)
    with ss.ShedReceiver(tmp_path, token=TOKEN) as there:
        for drip in (False, True):
            with connected(there) as connection:
                connection.settimeout(0.05)
                heard, sent = b"", 0
                while True:  # until the receiver has had enough
                    try:
                        piece = connection.recv(1_000)
                    except TimeoutError:
                        if drip:
                            connection.sendall(b"\0")
                            sent += 1
                        continue
                    except OSError:
                        break
                    if not piece:
                        break
                    heard += piece
                assert b"timed out" in heard
                assert sent < 20
        monkeypatch.undo()
        assert works(there, TOKEN)


def test_a_slow_body_has_its_time_and_no_more(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(receiver, "SILENCE", 0.3)
    with ss.ShedReceiver(tmp_path) as there:
        with channel_to(there) as channel:
            channel.send({"op": "put", "name": NAME, "size": 1_000})
            assert channel.receive()["ok"]
            assert "timed out" in channel.receive()["error"]
        assert not list(tmp_path.iterdir())
        monkeypatch.undo()
        assert works(there)


def test_connections_have_a_bound(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(receiver, "MOST_CONNECTIONS", 3)
    with ss.ShedReceiver(tmp_path) as there:
        idle = [socket.create_connection(tcp_address(there.address), 20) for _ in range(3)]
        for connection in idle:
            assert len(connection.recv(25)) == 25
        with pytest.raises(ss.ShedError, match="busy with as many connections as it takes"):
            remote(there).look()
        for connection in idle:
            connection.close()
        server = there._server
        for _ in range(3):  # each comes back when its connection has ended
            assert server._free.acquire(timeout=20)
        for _ in range(3):
            server._free.release()
        assert works(there)


def test_a_list_comes_by_pages(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(keeper, "PAGE_BYTES", 1_000)
    folder, question = Folder(tmp_path), json.dumps({"spec": "x" * 300})
    names = sorted(new_name(n) for n in range(20))
    for name in names:
        folder.put(name, ROWS, question)
    (tmp_path / names[3]).write_bytes(b"?")
    with ss.ShedReceiver(tmp_path) as there:
        page = ask(there, op="list", after="")
        assert 0 < len(page["segments"]) < 5
        assert page["next"] == page["segments"][-1][0]
        found = remote(there).look()
        assert [s.name for s in found.segments] == [*names[:3], *names[4:]]
        assert list(found.unreadable) == [names[3]]
        assert found.segments == folder.look().segments


def test_a_receiver_that_does_not_make_sense(tmp_path, monkeypatch) -> None:
    answers: list[dict[str, Any]] = []
    monkeypatch.setattr(receiver._Operation, "_do", lambda self, _: self._say(**answers[0]))
    with ss.ShedReceiver(tmp_path) as there:
        for answer in (
            {},
            {"segments": 5, "unreadable": {}, "next": ""},
            {"segments": [[1, 2]], "unreadable": {}, "next": ""},
            {"segments": [], "unreadable": {}, "next": "a"},
        ):
            answers[:] = [answer]
            with pytest.raises(ss.ShedError, match=r"understood|does not end|not the name"):
                remote(there).look()
        for size in (None, 0, -1, "9"):
            answers[:] = [{"size": size}]
            with pytest.raises(ss.ShedError, match="cannot be read"):
                remote(there).get(NAME)
        answers[:] = [{"size": 1 << 50}]
        with pytest.raises(ss.ShedError, match="cannot be read: it has"):
            remote(there).get(NAME, 900)


# --- where it keeps them, and the command ---------------------------------------------------------


def test_its_directory_is_private(tmp_path) -> None:
    with ss.ShedReceiver(tmp_path / "a" / "b") as there:
        remote(there).put(NAME, ROWS, "{}")
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "a" / "b" / NAME).stat().st_mode) == 0o600


def test_the_command_refuses_to_be_open_to_all(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("SEMISTREAM_SHED_TOKEN", raising=False)
    words = ["receive", "--dir", str(tmp_path / "in"), "--port", "0", "--host", "0.0.0.0"]
    assert main(words) == 1
    assert "lets other machines in" in capsys.readouterr().err
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o644)
    assert main([*words, "--token-file", str(token)]) == 1
    assert "run chmod 600" in capsys.readouterr().err
    assert main([*words, "--token-file", str(tmp_path / "none")]) == 1
    assert "the token cannot be read from" in capsys.readouterr().err
    token.write_text("short")
    token.chmod(0o600)
    assert main([*words, "--token-file", str(token)]) == 1
    assert "at least 16 characters" in capsys.readouterr().err
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize("where", ["file", "environment"])
def test_the_command_takes_a_token(where, tmp_path) -> None:
    words, environment = ["--dir", str(tmp_path / "in"), "--port", "0"], dict(os.environ)
    if where == "file":
        (tmp_path / "token").write_text(TOKEN + "\n")
        (tmp_path / "token").chmod(0o600)
        words += ["--token-file", str(tmp_path / "token"), "--most-bytes", "1MB"]
    else:
        environment["SEMISTREAM_SHED_TOKEN"] = TOKEN
    child = subprocess.Popen(
        [sys.executable, "-m", "semistream.cli", "receive", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert child.stderr is not None
        address = tcp_address(child.stderr.readline().split()[2].rstrip(";"))
        Remote(*address, 20.0, TOKEN).put(NAME, ROWS, "{}")
        with pytest.raises(ss.ShedError, match="wants a token"):
            Remote(*address, 20.0).look()
        assert TOKEN not in Path(f"/proc/{child.pid}/cmdline").read_text()
    finally:
        child.kill()
        child.communicate()
