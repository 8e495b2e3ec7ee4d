"""Bytes that are written and read back: damage is noticed wherever it is."""

from __future__ import annotations

import io
from typing import IO

import pyarrow as pa
import pytest

from semistream.safety.sealed import HEAD_BYTES, SealError, seal, split_sealed, unseal, write_sealed

CONTENT = b"seventeen waiting rows"


def test_what_was_sealed_comes_back() -> None:
    assert unseal("snapshot", seal("snapshot", CONTENT)).to_pybytes() == CONTENT
    assert unseal("snapshot", seal("snapshot", b"")).to_pybytes() == b""


def test_every_flipped_bit_is_noticed() -> None:
    sealed = seal("snapshot", CONTENT)
    for at in range(len(sealed)):
        for bit in range(8):
            damaged = bytearray(sealed)
            damaged[at] ^= 1 << bit
            with pytest.raises(SealError):
                unseal("snapshot", bytes(damaged))


def test_every_cut_and_every_byte_too_many_is_noticed() -> None:
    sealed = seal("snapshot", CONTENT)
    for length in range(len(sealed)):
        with pytest.raises(SealError):
            unseal("snapshot", sealed[:length])
    with pytest.raises(SealError, match="1 bytes follow"):
        unseal("snapshot", sealed + b"\0")


def test_another_kind_is_named() -> None:
    with pytest.raises(SealError, match="'learnt', not a 'snapshot'"):
        unseal("snapshot", seal("learnt", CONTENT))


def test_content_is_aligned_for_arrow_and_may_be_followed_by_more() -> None:
    assert HEAD_BYTES % 64 == 0
    two = seal("about", b"first") + seal("rows", b"second")
    first, rest = split_sealed("about", pa.py_buffer(two))
    second, end = split_sealed("rows", rest)
    assert (first.to_pybytes(), second.to_pybytes(), end.size) == (b"first", b"second", 0)


def test_a_file_is_sealed_while_it_is_written() -> None:
    file = io.BytesIO()

    def in_pieces(out: IO[bytes]) -> None:
        for at in range(0, len(CONTENT), 5):
            out.write(CONTENT[at : at + 5])

    write_sealed(file, "rows", len(CONTENT), in_pieces)
    assert file.getvalue() == seal("rows", CONTENT)
    with pytest.raises(ValueError, match="22 bytes were written where 21"):
        write_sealed(io.BytesIO(), "rows", 21, lambda out: out.write(CONTENT))
