"""The receiver: keeps segments of joins on other machines in a directory.

It has no state beside the directory and may be killed and started again any time. A stranger who
can reach it costs it one of a few threads for some seconds and a few kilobytes, and learns nothing.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import socketserver
from contextlib import suppress
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any

from ...budget import parse_bytes
from ...errors import ShedError, SpecError
from .keeper import Keeper
from .remote import tcp_place
from .segment import Doubtful, Gone, Segment, Unreadable, unreadable
from .wire import Channel, WireError, check_token, turn_away

MOST_CONNECTIONS = 32  # a join uses one at a time
HELLO = 10.0  # seconds until a stranger has shown the token and asked for something
SILENCE = 30.0  # that any later step may take, besides the time for a body


class ShedReceiver:
    """Keeps segments for joins with `Shedding(target="tcp://host:port", token=...)`.

    >>> import tempfile
    >>> with ShedReceiver(tempfile.mkdtemp()) as receiver:
    ...     receiver.address.startswith("tcp://127.0.0.1:")
    True
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
        most_bytes: int | str = "100GB",
    ) -> None:
        """`port=0` takes a free one: see `address` after `start`. Other machines are let in with a
        token only; `most_bytes` is what all segments together may take on disk."""
        check_token(token)
        try:
            most = parse_bytes(most_bytes)
        except SpecError:
            raise SpecError(f'most_bytes={most_bytes!r} is not a size; write "10GB"') from None
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
            raise SpecError(f"port={port!r} must be a number from 0 to 65535; 0: any free one")
        self._family, self._wanted = _resolve(host, port)
        if token is None and not ipaddress.ip_address(self._wanted[0]).is_loopback:
            raise SpecError(
                f"host={host!r} lets other machines in, and nobody is asked for a token; give "
                "token= (semistream receive: --token-file), or listen on 127.0.0.1"
            )
        self._token = token
        self._keeper = Keeper(Path(directory), most)
        self._server: _Server | None = None
        self._serving = False

    def start(self) -> ShedReceiver:
        """Serve in a thread."""
        server = self._open()
        if not self._serving:
            self._serving = True
            Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def serve_forever(self) -> None:
        """Serve in this thread, until interrupted."""
        server, self._serving = self._open(), True
        server.serve_forever()

    def _open(self) -> _Server:
        if self._server is not None:
            return self._server
        self._keeper.open()
        try:
            self._server = _Server(self._family, self._wanted, self._keeper, self._token)
        except OSError as error:
            self._keeper.close()
            raise ShedError(
                f"cannot listen on {tcp_place(*self._wanted)}: {error}; choose another port, or "
                "port=0 for any free one"
            ) from error
        return self._server

    @property
    def address(self) -> str:
        """tcp://host:port, as `Shedding` takes it."""
        host, port = self._open().server_address[:2]
        return tcp_place(str(host), int(port))

    def segments(self) -> list[Segment]:
        """What is kept here, oldest first."""
        return self._keeper.folder.look().segments

    def unreadable(self) -> list[str]:
        """Of segments that are damaged, what is wrong with them."""
        return [str(error) for error in self._keeper.folder.look().unreadable.values()]

    def stop(self) -> None:
        """Stop serving; a segment that is just being stored is stored first."""
        server, self._server = self._server, None
        serving, self._serving = self._serving, False
        if server is not None:
            if serving:
                server.shutdown()
            server.server_close()
            self._keeper.close()

    def __enter__(self) -> ShedReceiver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        known = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise ShedError(
            f"cannot listen on {host!r}: {error}; give the name or number of an address of this "
            "machine"
        ) from error
    family, *_, address = known[0]
    return family, (str(address[0]), int(address[1]))


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(
        self,
        family: socket.AddressFamily,
        address: tuple[str, int],
        keeper: Keeper,
        token: str | None,
    ) -> None:
        self.address_family = family
        self.keeper, self.token = keeper, token
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, _Operation)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                turn_away(request)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is its own problem, not a traceback here."""


class _Operation(socketserver.BaseRequestHandler):
    """One connection."""

    server: _Server
    request: socket.socket

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel = channel = Channel(self.request, self.server.token, receiver=True)
        channel.allow(HELLO)
        try:
            channel.welcome()
            self._do(channel.receive())
        except Exception as error:  # whatever it is, the one who asked hears of it
            kind = next((k for k in (Gone, Unreadable, Doubtful) if isinstance(error, k)), None)
            channel.allow(HELLO)
            channel.send(
                {
                    "ok": False,
                    "error": str(error) or type(error).__name__,
                    "kind": kind.__name__ if kind is not None else "",
                }
            )
            self._hang_up()

    def _hang_up(self) -> None:
        """Closing with bytes unread would take the answer back: read some of them first."""
        self.request.shutdown(socket.SHUT_WR)
        self.request.settimeout(1.0)
        for _ in range(16):
            if not self.request.recv(1 << 16):
                return

    def _do(self, asked: dict[str, Any]) -> None:
        self._channel.allow(SILENCE)
        op = asked.get("op")
        if op == "put":
            self._put(asked.get("name"), asked.get("size"))
        elif op == "get":
            self._get(asked.get("name"))
        elif op == "delete":
            self.server.keeper.delete(asked.get("names"))
            self._say()
        elif op == "list":
            found, following = self.server.keeper.page(str(asked.get("after", "")))
            segments = [[s.name, s.rows, s.bytes, s.question] for s in found.segments]
            reasons = {name: str(error) for name, error in found.unreadable.items()}
            self._say(segments=segments, unreadable=reasons, next=following)
        else:
            raise WireError(f"the operation {op!r} does not exist; ask put, get, delete or list")

    def _say(self, **words: Any) -> None:
        self._channel.allow(SILENCE)
        self._channel.send({"ok": True, **words})

    def _put(self, name: Any, size: Any) -> None:
        keeper, channel = self.server.keeper, self._channel
        with keeper.taking(name, size) as put:
            self._say()
            with keeper.folder.draft(put.name) as file:
                channel.allow(SILENCE, put.size)
                digest = channel.receive_body(put.size, file.write)
                if channel.receive().get("sha256") != digest:
                    raise WireError("the segment was garbled on its way")
                file.flush()
                keeper.folder.check_draft(put.name)
            self._say()
            if channel.receive().get("op") != "commit":
                raise WireError("a put ends with commit")
            keeper.publish(put)
        self._say()

    def _get(self, name: Any) -> None:
        path = self.server.keeper.folder.file(name)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._say(size=size)
                self._channel.allow(SILENCE, size)
                digest = self._channel.send_body(size, lambda out: shutil.copyfileobj(file, out))
                self._say(sha256=digest)
        except FileNotFoundError:
            raise Gone(name) from None
        except OSError as error:
            raise unreadable(str(path), error) from error
