"""Shed rows on another machine: the joins' side of it. (The receiver: receiver.py.)

    put   request ──> yes ──> segment and its SHA-256 ──> it is there, synced ──> commit ──> stored

One operation per connection, so that the receiver may be killed and started again any time. The
answers of a put are what keeps rows from being lost or answered twice: before `commit` is sent the
receiver stores nothing; after it, only an answer tells. If none comes the put is Doubtful, and the
segment is deleted before anything else is done. A delete wins over a put that is still under way.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...errors import ShedError
from ...safety import address
from .segment import (
    BAD,
    HINT,
    Doubtful,
    Packed,
    Segment,
    Unreadable,
    gone,
    number_of,
    read_rows,
    unreadable,
)
from .target import Folder, FoundSegments, Target
from .wire import Channel, WireError

DELETES = 100  # names in one request


def open_target(target: str | os.PathLike[str], timeout: float, token: str | None) -> Target:
    address = tcp_address(target)
    return Folder(Path(target)) if address is None else Remote(*address, timeout, token)


def tcp_address(target: str | os.PathLike[str]) -> tuple[str, int] | None:
    """Host and port of tcp://host:port; None: a path."""
    if not isinstance(target, str) or not target.startswith("tcp://"):
        return None
    match = re.fullmatch(r"tcp://(\[[0-9a-fA-F:.]+\]|[^:/\[\]]+):([0-9]{1,5})", target)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise ValueError(f"{address(target)!r} is not an address; write tcp://host:port")
    return match[1].strip("[]"), int(match[2])


def tcp_place(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


class Remote(Target):
    def __init__(self, host: str, port: int, timeout: float, token: str | None = None) -> None:
        self._address, self._timeout, self._token = (host, port), timeout, token
        self.place = tcp_place(host, port)

    def put(self, name: str, rows: pa.RecordBatch, question: str) -> int:
        packed = Packed(rows, question)
        with self._asking("put", name=name, size=packed.size) as (channel, _):
            channel.allow(self._timeout, packed.size)
            digest = channel.send_body(packed.size, packed.write)
            channel.send({"sha256": digest})
            channel.allow(self._timeout)
            self._answer(channel)
            try:
                channel.allow(self._timeout)
                channel.send({"op": "commit"})
                self._answer(channel)
            except WireError as error:
                raise Doubtful(str(self._failed("put", error))) from error
        return packed.size

    def get(self, name: str, size: int | None = None) -> pa.RecordBatch:
        where = f"{name} at {self.place}"
        with self._asking("get", name=name) as (channel, answer):
            count = answer.get("size")
            if not isinstance(count, int) or count <= 0 or (size is not None and count != size):
                raise unreadable(where, f"it has {count} bytes and had {size}")
            content = pa.allocate_buffer(count)
            view, at = memoryview(content).cast("B"), 0

            def take(piece: memoryview) -> None:
                nonlocal at
                view[at : at + len(piece)] = piece
                at += len(piece)

            channel.allow(self._timeout, count)
            digest = channel.receive_body(count, take)
            if self._answer(channel).get("sha256") != digest:
                raise WireError("the segment was garbled on its way")
        try:
            return read_rows(content)
        except BAD as error:
            raise unreadable(where, error) from error

    def delete(self, names: Sequence[str]) -> None:
        for at in range(0, len(names), DELETES):
            with self._asking("delete", names=list(names[at : at + DELETES])):
                pass

    def look(self) -> FoundSegments:
        found, after = FoundSegments(), ""
        while True:
            with self._asking("list", after=after) as (_, page):
                self._add(page, found)
                following = str(page.get("next"))
                if not following:
                    return found
                if following <= after:
                    raise WireError("a list that does not end")
                after = following

    def _add(self, page: dict[str, Any], found: FoundSegments) -> None:
        """A page of the list."""
        try:
            for name, rows, size, question in page["segments"]:
                number_of(name)
                same = sys.intern(str(question))  # all segments of a join have the same
                found.segments.append(Segment(name, int(rows), int(size), same))
            for name, reason in page["unreadable"].items():
                found.unreadable[name] = Unreadable(f"at {self.place}: {reason}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError(f"a list that cannot be understood: {error!r}") from error

    # --- asking --------------------------------------------------------------------------------

    @contextmanager
    def _asking(self, op: str, **words: Any) -> Iterator[tuple[Channel, dict[str, Any]]]:
        """A connection on which this was asked, and the answer."""
        try:
            with socket.create_connection(self._address, self._timeout) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                channel = Channel(connection, self._token, receiver=False)
                channel.allow(self._timeout)
                channel.introduce()
                channel.send({"op": op, **words})
                yield channel, self._answer(channel)
        except (OSError, WireError, pa.ArrowException) as error:
            raise self._failed(op, error) from error

    def _answer(self, channel: Channel) -> dict[str, Any]:
        answer = channel.receive()
        if answer.get("ok"):
            return answer
        kind, reason = answer.get("kind"), str(answer.get("error"))
        if kind == "Gone":
            raise gone(f"{reason} at {self.place}")
        if kind == "Unreadable":
            raise Unreadable(f"at {self.place}: {reason}")
        refused = Doubtful if kind == "Doubtful" else ShedError
        raise refused(f"the receiver {self.place} refused: {reason}; {HINT}")

    def _failed(self, op: str, error: Exception) -> ShedError:
        return ShedError(
            f"the receiver {self.place} failed at {op!r}: {error}; start it with "
            f"`semistream receive`, or see whether the network is up; {HINT}"
        )
