"""The helper that damages bytes sees every kind of end."""

from __future__ import annotations

import ctypes
import os

import pytest

import semistream as ss
from tests.helpers.damage import every_byte, outcomes

RAW = b"0123456789"


def test_every_byte_and_every_length_once() -> None:
    found = dict(every_byte(RAW))
    assert len(found) == 3 * len(RAW) + 1
    assert RAW not in found.values()
    assert {len(damaged) for damaged in found.values()} == set(range(len(RAW) + 2))


def test_every_outcome_is_told_apart() -> None:
    """One use after another, also after the process has died."""

    def use(raw: bytes) -> str:
        if raw == b"typed":
            raise ss.DamagedError("as it should be")
        if raw == b"untyped":
            raise OSError("as it should not")
        if raw == b"dies":
            ctypes.string_at(0)
        if raw == b"leaves":
            os._exit(3)
        return "wrong" if raw == b"wrong" else "right"

    words = [b"typed", b"dies", b"wrong", b"dies", b"untyped", b"leaves", b"fine", b"dies"]
    found = outcomes(RAW, use, [(word.decode(), word) for word in words])
    assert found == {
        "DamagedError": 1,
        "KILLED SIGSEGV": 3,
        "OTHER": 1,
        "UNTYPED OSError": 1,
        "ENDED 3": 1,
        "same": 1,
    }


def test_bytes_that_are_of_no_use_when_whole() -> None:
    with pytest.raises(AssertionError, match=r"as they are cannot be used: .*'5 is missing'"):
        outcomes(RAW, lambda raw: {}["5 is missing"])
