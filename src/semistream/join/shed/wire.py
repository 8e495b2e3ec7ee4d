"""What a join and a receiver say to each other, and how each knows that the other has the token.

    receiver                       join
    greeting, 16 random bytes  ──>
                               <──  16 random bytes
                               <──  frame: a request
    frame: an answer           ──>
    ...

A frame is [length][HMAC-SHA256][JSON]. The HMAC is of who speaks, both sides' random bytes, the
number of the frame and the JSON, with the token as the key. So the token itself never travels, and
what was heard on another connection, or earlier on this one, is of no use. Bodies go between
frames; the next frame has their SHA-256. Nothing is encrypted. Without a token the key is empty:
then a frame shows that nothing was garbled, and no more.

Everything is bounded: frames in size, and every step in time, whatever the pace of single bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections.abc import Callable
from time import monotonic
from typing import Any

from ...errors import SpecError

_MAGIC = b"sshed\x00\x00\x02"
_NONCE = 16
_GREETING = struct.Struct(f">8sB{_NONCE}s")
_LENGTH = struct.Struct(">I")
_MAC = hashlib.sha256().digest_size
_WANTS_TOKEN, _BUSY = 1, 2
MOST_REQUEST = 8 << 10  # bytes of a frame from a join, also of one that has not shown a token
MOST_ANSWER = 8 << 20  # from a receiver: a page of a list with at least one segment
SLOWEST = 256 << 10  # bytes per second; a body may take as long as it takes at this pace
PIECE = 64 << 10
LEAST_TOKEN = 16  # characters


class WireError(Exception):
    """The connection broke, or the other side does not keep to the protocol or has another token.
    Not an OSError, so that nobody takes it for one of a file."""


def check_token(token: object) -> None:
    """The token itself is never shown."""
    if token is None or (isinstance(token, str) and len(token) >= LEAST_TOKEN):
        return
    raise SpecError(
        f"token=: give a text of at least {LEAST_TOKEN} characters, such as "
        "secrets.token_urlsafe() makes, the same for the join and the receiver"
    )


class Channel:
    """One side of a connection."""

    def __init__(self, connection: socket.socket, token: str | None, receiver: bool) -> None:
        self._socket, self._key = connection, (token or "").encode()
        self._has_token = token is not None
        self._mine, self._theirs = (b"R", b"J") if receiver else (b"J", b"R")
        self._most = MOST_REQUEST if receiver else MOST_ANSWER
        self._context = b""
        self._sent = self._received = 0
        self._until = 0.0

    def allow(self, seconds: float, size: int = 0) -> None:
        """From now on, so long for everything until the next call, and more for a body."""
        self._until = monotonic() + seconds + size / SLOWEST

    # --- the beginning -------------------------------------------------------------------------

    def welcome(self) -> None:
        """The receiver's side."""
        mine = secrets.token_bytes(_NONCE)
        flags = _WANTS_TOKEN if self._has_token else 0
        self._send(_GREETING.pack(_MAGIC, flags, mine))
        self._context = mine + self._read(_NONCE)

    def introduce(self) -> None:
        """The join's side."""
        magic, flags, theirs = _GREETING.unpack(self._read(_GREETING.size))
        if magic != _MAGIC:
            raise WireError("it does not answer like a receiver of this version")
        if flags & _BUSY:
            raise WireError("it is busy with as many connections as it takes")
        if bool(flags & _WANTS_TOKEN) != self._has_token:
            wants = "wants a token" if flags & _WANTS_TOKEN else "has no token"
            raise WireError(f"it {wants}; give both sides the same token=, or neither")
        mine = secrets.token_bytes(_NONCE)
        self._send(mine)
        self._context = theirs + mine

    # --- frames --------------------------------------------------------------------------------

    def send(self, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        proof = self._proof(self._mine, self._sent, text)
        self._sent += 1
        self._send(_LENGTH.pack(len(text)) + proof + text)

    def receive(self) -> dict[str, Any]:
        (size,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if size > self._most:
            raise WireError(f"a frame of {size} bytes, more than {self._most}")
        proof, text = self._read(_MAC), self._read(size)
        if not hmac.compare_digest(proof, self._proof(self._theirs, self._received, text)):
            raise WireError("the other side has another token")
        self._received += 1
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WireError(f"a frame that is not JSON: {error}") from error
        if not isinstance(content, dict):
            raise WireError("a frame that is not a JSON object")
        return content

    def _proof(self, speaker: bytes, number: int, text: bytes) -> bytes:
        said = speaker + self._context + number.to_bytes(8, "big") + text
        return hmac.digest(self._key, said, "sha256")

    # --- bodies --------------------------------------------------------------------------------

    def send_body(self, size: int, fill: Callable[[Any], None]) -> str:
        """What `fill` writes, `size` bytes; returns the SHA-256 for the next frame."""
        outgoing = _Outgoing(self._send)
        fill(outgoing)
        outgoing.flush()
        if outgoing.count != size:
            raise ValueError(f"{outgoing.count} bytes were written where {size} were announced")
        return outgoing.digest.hexdigest()

    def receive_body(self, size: int, take: Callable[[memoryview], object]) -> str:
        """`size` bytes, a piece at a time; returns their SHA-256."""
        digest, piece = hashlib.sha256(), memoryview(bytearray(min(size, PIECE)))
        while size > 0:
            part = piece[: min(size, PIECE)]
            self._read_into(part)
            digest.update(part)
            take(part)
            size -= len(part)
        return digest.hexdigest()

    # --- bytes, within the time ----------------------------------------------------------------

    def _send(self, data: Any) -> None:
        try:
            self._limit()
            self._socket.sendall(data)
        except OSError as error:
            raise WireError(str(error)) from error

    def _read(self, size: int) -> bytes:
        content = bytearray(size)
        self._read_into(memoryview(content))
        return bytes(content)

    def _read_into(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            try:
                self._limit()
                count = self._socket.recv_into(target[done:])
            except OSError as error:
                raise WireError(str(error)) from error
            if count == 0:
                raise WireError(f"the connection ended {len(target) - done} bytes early")
            done += count

    def _limit(self) -> None:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)


def turn_away(connection: socket.socket) -> None:
    """Say that there are too many connections, without waiting for anything."""
    connection.setblocking(False)
    connection.send(_GREETING.pack(_MAGIC, _BUSY, bytes(_NONCE)))


class _Outgoing:
    """Sends what is written, by large pieces; remembers how much and its SHA-256."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send, self._pending = send, bytearray()
        self.count, self.digest = 0, hashlib.sha256()

    def write(self, data: Any) -> int:
        self._pending += data
        self.count += len(data)
        if len(self._pending) >= PIECE:
            self.flush()
        return len(data)

    def flush(self) -> None:
        self.digest.update(self._pending)
        self._send(self._pending)
        self._pending = bytearray()
