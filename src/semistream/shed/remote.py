"""Shed rows on another machine: the protocol, the joins' side, and the receiver.

    [length][JSON header][bytes]  ──put, get, delete, list──>  receiver ──> a directory
    [length][JSON header][bytes]  <──────────answer─────────

Lengths have 4 bytes, big-endian. One operation per connection, and the receiver has no state of its
own: it may be killed and started again any time. There is no password: run it inside a network
that you trust.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import socketserver
import struct
from collections.abc import Callable
from dataclasses import asdict
from io import BufferedIOBase
from pathlib import Path
from threading import Thread
from typing import IO, Any

import pyarrow as pa

from ..errors import ShedError
from .target import HINT, Folder, Segment, Target, damaged, read_segment, write_segment

Bytes = IO[bytes] | BufferedIOBase
TIMEOUT = 30.0  # seconds that a client may be silent within an operation
_MOST_HEADER = 1 << 24  # a list of some 100,000 segments


def open_target(target: str | os.PathLike[str], timeout: float) -> Target:
    address = tcp_address(target)
    return Folder(Path(target)) if address is None else Remote(*address, timeout)


def tcp_address(target: str | os.PathLike[str]) -> tuple[str, int] | None:
    """Host and port of tcp://host:port; None: a path."""
    if not isinstance(target, str) or not target.startswith("tcp://"):
        return None
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:]+\]|[^:/\[\]]+):(\d{1,5})", target)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise ValueError(f"{target!r} is not an address; write tcp://host:port")
    return match[1].strip("[]"), int(match[2])


# --- the wire -----------------------------------------------------------------------------------


def send(file: Bytes, header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    file.write(struct.pack(">I", len(text)) + text)


def receive(file: Bytes) -> dict[str, Any]:
    (size,) = struct.unpack(">I", read_exactly(file, 4))
    if size > _MOST_HEADER:
        raise ValueError(f"a header of {size} bytes: this is not the shedding protocol")
    header = json.loads(read_exactly(file, size))
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    return header


def read_exactly(file: Bytes, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise ConnectionError(f"the connection ended after {len(content)} of {size} bytes")
    return content


def copy_exactly(source: Bytes, file: Bytes, size: int) -> None:
    """`size` bytes, a piece at a time: a segment may be larger than the receiver's memory."""
    while size > 0:
        piece = source.read(min(size, 1 << 20))
        if not piece:
            raise ConnectionError(f"the connection ended {size} bytes early")
        file.write(piece)
        size -= len(piece)


def copy_file(path: Path, file: Bytes) -> None:
    with open(path, "rb") as source:
        shutil.copyfileobj(source, file, 1 << 20)


# --- the join's side ----------------------------------------------------------------------------


class Remote(Target):
    """A receiver. One connection per operation: it may be restarted any time."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._address, self._timeout = (host, port), timeout
        self.place = f"tcp://{host}:{port}"
        self._doubtful: set[str] = set()  # perhaps stored, although the answer never came

    def put(self, name: str, rows: pa.RecordBatch, widest: int, question: str) -> None:
        for doubtful in list(self._doubtful):  # its rows never left us: not to be answered twice
            self.delete(doubtful)
        counted = pa.MockOutputStream()
        write_segment(counted, rows, widest, question)
        self._doubtful.add(name)
        self._call(
            {"op": "put", "name": name, "size": counted.size()},
            lambda file: write_segment(file, rows, widest, question),
        )
        self._doubtful.discard(name)

    def get(self, name: str) -> pa.RecordBatch:
        _, content = self._call({"op": "get", "name": name})
        try:
            return read_segment(pa.BufferReader(content))
        except (OSError, pa.ArrowException) as error:
            raise damaged(f"{name} at {self.place}", error) from error

    def delete(self, name: str) -> None:
        self._call({"op": "delete", "name": name})
        self._doubtful.discard(name)

    def list(self) -> list[Segment]:
        for doubtful in list(self._doubtful):
            self.delete(doubtful)
        try:
            found = self._call({"op": "list"})[0]["segments"]
            return [Segment(**segment) for segment in found]
        except (KeyError, TypeError) as error:
            raise ShedError(f"{self.place} does not answer like a receiver: {error}") from error

    def _call(
        self, header: dict[str, Any], body: Callable[[Any], None] | None = None
    ) -> tuple[dict[str, Any], bytes]:
        try:
            with (
                socket.create_connection(self._address, self._timeout) as connection,
                connection.makefile("rwb") as file,
            ):
                send(file, header)
                if body is not None:
                    body(file)
                file.flush()
                answer = receive(file)
                content = read_exactly(file, int(answer.get("size", 0)))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ShedError(
                f"the receiver {self.place} failed at {header['op']!r}: {error}; start it with "
                f"`semistream receive`, or see whether the network is up; {HINT}"
            ) from error
        if not answer.get("ok"):
            raise ShedError(f"the receiver {self.place} refused: {answer.get('error')}; {HINT}")
        return answer, content


# --- the receiver -------------------------------------------------------------------------------


class ShedReceiver:
    """Keeps segments for joins with `Shedding(target="tcp://host:port")`.

    >>> import tempfile
    >>> with ShedReceiver(tempfile.mkdtemp()) as receiver:
    ...     receiver.address.startswith("tcp://127.0.0.1:")
    True
    """

    def __init__(
        self, directory: str | os.PathLike[str], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        """`port=0` takes a free one: see `address` after `start`."""
        self._folder = Folder(Path(directory))
        self._wanted = (host, port)
        self._server: _Server | None = None

    def start(self) -> ShedReceiver:
        """Serve in a thread."""
        server = self._open()
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def serve_forever(self) -> None:
        """Serve in this thread, until interrupted."""
        self._open().serve_forever()

    def _open(self) -> _Server:
        if self._server is not None:
            return self._server
        host, port = self._wanted
        try:
            self._server = _Server(self._wanted, _Operation)
        except (OSError, OverflowError) as error:
            raise ShedError(
                f"cannot listen on {host}:{port}: {error}; choose another port, or port=0 for "
                "any free one"
            ) from error
        self._server.folder = self._folder
        return self._server

    @property
    def address(self) -> str:
        """tcp://host:port, as `Shedding` takes it."""
        host, port = self._open().server_address[:2]
        return f"tcp://{host!s}:{port}"

    def segments(self) -> list[Segment]:
        """What is kept here, oldest first."""
        return self._folder.list()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def __enter__(self) -> ShedReceiver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    folder: Folder

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is its own problem, not a traceback here."""


class _Operation(socketserver.StreamRequestHandler):
    timeout = TIMEOUT
    wbufsize = 1 << 16
    server: _Server

    def handle(self) -> None:
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._answer(receive(self.rfile))
        except (ShedError, KeyError, TypeError, ValueError) as error:
            send(self.wfile, {"ok": False, "error": str(error)})

    def _answer(self, asked: dict[str, Any]) -> None:
        folder, op = self.server.folder, asked.get("op")
        if op == "put":
            size = int(asked["size"])
            folder.write(asked["name"], lambda file: copy_exactly(self.rfile, file, size))
            send(self.wfile, {"ok": True})
        elif op == "get":
            path = folder.file(asked["name"])
            if not path.exists():
                raise ShedError(f"the segment {path.name} is not here")
            send(self.wfile, {"ok": True, "size": path.stat().st_size})
            copy_file(path, self.wfile)
        elif op == "delete":
            folder.delete(asked["name"])
            send(self.wfile, {"ok": True})
        elif op == "list":
            send(self.wfile, {"ok": True, "segments": [asdict(s) for s in folder.list()]})
        else:
            raise ValueError(f"the operation {op!r} does not exist; ask put, get, delete or list")
