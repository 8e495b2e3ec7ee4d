"""Bytes that we write and read back: their kind, their length and a checksum, looked at before use.

    head     64 bytes: magic, kind, length of the content, CRC32C of the 60 bytes before it
    content  aligned to 64 bytes, so that Arrow can use it where it lies
    tail     8 bytes: CRC32C of the content, magic

A seal shows damage, not malice: whoever can write a file can seal it. Where that matters the folder
must be private (`private.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import IO, Any

import google_crc32c
import pyarrow as pa

_MAGIC, _END = b"semistr\x01", b"seal"
_HEAD = struct.Struct("<8s8sQ36x")
_TAIL = struct.Struct("<I4s")
HEAD_BYTES = _HEAD.size + 4
TAIL_BYTES = _TAIL.size


def checksum(data: bytes | pa.Buffer) -> int:
    return int(google_crc32c.value(data))


class SealError(ValueError):
    """These bytes are not what was sealed. Callers say which file it is and what to do."""


def seal(kind: str, content: bytes) -> bytes:
    tail = _TAIL.pack(checksum(content), _END)
    return b"".join((seal_head(kind, len(content)), content, tail))


def unseal(kind: str, sealed: bytes | pa.Buffer) -> pa.Buffer:
    """The content of sealed bytes, not copied; SealError if a single byte is not as it was."""
    content, rest = split_sealed(kind, pa.py_buffer(sealed))
    if rest.size:
        raise SealError(f"{rest.size} bytes follow the end")
    return content


def split_sealed(kind: str, sealed: pa.Buffer) -> tuple[pa.Buffer, pa.Buffer]:
    """The content at the beginning of some bytes, checked, and the bytes that follow it."""
    length = content_length(kind, sealed.slice(0, min(HEAD_BYTES, sealed.size)).to_pybytes())
    end = HEAD_BYTES + length
    if sealed.size < end + TAIL_BYTES:
        raise SealError(f"{sealed.size} bytes are left of {end + TAIL_BYTES}")
    content = sealed.slice(HEAD_BYTES, length)
    check_tail(sealed.slice(end, TAIL_BYTES).to_pybytes(), checksum(content))
    return content, sealed.slice(end + TAIL_BYTES)


def seal_head(kind: str, length: int) -> bytes:
    """What comes before a content of so many bytes."""
    head = _HEAD.pack(_MAGIC, kind.encode(), length)
    return head + struct.pack("<I", checksum(head))


def content_length(kind: str, head: bytes) -> int:
    """How long the content behind a head is."""
    if len(head) < HEAD_BYTES:
        raise SealError(f"{len(head)} bytes are left of a head of {HEAD_BYTES}")
    magic, name, length = _HEAD.unpack(head[: _HEAD.size])
    if magic != _MAGIC:
        raise SealError("they do not begin like something this version wrote")
    if checksum(head[: _HEAD.size]) != struct.unpack("<I", head[_HEAD.size :])[0]:
        raise SealError("the head does not match its checksum")
    found = name.rstrip(b"\0").decode("ascii", "replace")
    if found != kind:
        raise SealError(f"they are a {found!r}, not a {kind!r}")
    return int(length)


def check_tail(tail: bytes, crc: int) -> None:
    """Compare a tail with the checksum of the content that was read."""
    if len(tail) < TAIL_BYTES or _TAIL.unpack(tail) != (crc, _END):
        raise SealError("the content does not match its checksum")


def write_sealed(file: IO[bytes], kind: str, length: int, fill: Callable[[Any], None]) -> None:
    """Seal what `fill` writes, exactly `length` bytes, without holding it in memory."""
    file.write(seal_head(kind, length))
    checked = Checked(file)
    fill(checked)
    if checked.count != length:
        raise ValueError(f"{checked.count} bytes were written where {length} were announced")
    file.write(_TAIL.pack(checked.crc, _END))


class Checked:
    """A file to write to that remembers how much, and its checksum. It does not own the file."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.count, self.crc = file, 0, 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._file.write(piece)
        self.crc = google_crc32c.extend(self.crc, piece)
        self.count += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self.count

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """The file stays open: a tail follows."""
